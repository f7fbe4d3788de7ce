"""Requests that cannot run are refused with one line that says what would fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsv4lab.engine.load import check_room
from dsv4lab.engine.prompts import batch, plain, synthetic
from dsv4lab.engine.request import Limits, RequestSpec, SamplingParams
from dsv4lab.errors import RequestError, UsageError

LIMITS = Limits(vocab_size=100, pool_tokens=1024, page_size=256, max_requests=4, max_position=5000)


def spec(prompt: tuple[int, ...] = (1, 2), new: int = 8, **rest: Any) -> RequestSpec:
    return RequestSpec(1, prompt, new, rest.pop("sampling", SamplingParams()), **rest)


def refusal(request: RequestSpec, limits: Limits = LIMITS) -> str:
    with pytest.raises(RequestError) as caught:
        limits.check(request)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_what_fits_is_taken() -> None:
    LIMITS.check(spec(tuple([1] * 1016)))
    LIMITS.check(spec(generated=(4, 5)))


@pytest.mark.parametrize("token", [-1, 100, 10**9])
def test_a_token_outside_the_vocabulary(token: int) -> None:
    assert refusal(spec((5, token))) == f"prompt[1] is {token}: token ids are integers from 0 to 99"


def test_an_empty_prompt() -> None:
    assert refusal(spec(())) == "prompt is empty: give at least one token id"


def test_a_prompt_longer_than_the_pool() -> None:
    assert refusal(spec(tuple([1] * 1017))) == (
        "prompt of 1017 tokens plus 8 new ones needs 5 pages of 256, the pool has 4: at most 1016 prompt tokens fit, "
        "or open the engine with max_total_tokens=1280 or more"
    )
    assert "at most 1023 new ones fit" in refusal(spec(new=2000))


def test_beyond_the_last_position_of_the_model() -> None:
    limits = Limits(100, 1 << 20, 256, 4, 5000)
    assert "together at most 5000" in refusal(spec(tuple([1] * 4999), new=2), limits)


@pytest.mark.parametrize("new", [0, -3, True, 1.5])
def test_max_new_tokens(new: Any) -> None:
    assert "max_new_tokens" in refusal(spec(new=new))


def test_replayed_tokens_are_checked_too() -> None:
    assert "generated[0]" in refusal(spec(generated=(100,)))
    assert "fewer tokens than max_new_tokens" in refusal(spec(new=2, generated=(1, 2)))


def test_stop_tokens_are_tokens() -> None:
    assert "stop_token_ids[0] is 100" in refusal(spec(sampling=SamplingParams(stop_token_ids=(100,))))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "hot"),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("seed", -1),
        ("seed", 2**63),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("presence_penalty", 2.1),
        ("frequency_penalty", None),
        ("min_new_tokens", -1),
        ("stop", "END"),
        ("stop", ("",)),
        ("ignore_eos", 1),
        ("logprobs", 65),
        ("logprobs", True),
        ("stop_token_ids", [1]),
        ("stop_token_ids", ("a",)),
    ],
)
def test_sampling_parameters_are_checked(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"^{field} is .*: it takes"):
        SamplingParams(**{field: value})


def test_prompts_come_as_lists_arrays_or_many() -> None:
    assert batch([1, 2, 3]) == [(1, 2, 3)]
    assert batch([[1, 2], (3,)]) == [(1, 2), (3,)]
    assert batch(np.array([[1, 2], [3, 4]])) == [(1, 2), (3, 4)]
    assert batch(np.array([1, 2], np.int32)) == [(1, 2)]
    assert batch(iter([[1], [2]])) == [(1,), (2,)]
    assert batch([]) == [()]
    assert all(type(token) is int for token in plain(np.array([1, 2])))


@pytest.mark.parametrize(
    ("prompt", "text"), [("abc", "prompt is text"), ([1, 2.0], r"prompt\[1\] is 2\.0"), ([None], "None")]
)
def test_prompts_of_something_else_are_refused(prompt: Any, text: str) -> None:
    with pytest.raises(RequestError, match=text):
        plain(prompt)


def test_synthetic_prompts_do_not_depend_on_how_many_there_are() -> None:
    many = synthetic(1000, 5, 50, seed=3)
    assert many[:2] == synthetic(1000, 2, 50, seed=3)
    assert many[0] != many[1]
    assert many[0] != synthetic(1000, 1, 50, seed=4)[0]
    assert all(2 <= token < 1000 for row in many for token in row)


def test_a_load_that_cannot_be_in_flight_at_once_is_refused() -> None:
    check_room(LIMITS, 4, 256)
    with pytest.raises(UsageError, match="max_running_requests=5"):
        check_room(LIMITS, 5, 10)
    with pytest.raises(UsageError, match="max_total_tokens=2048"):
        check_room(LIMITS, 4, 257)
    with pytest.raises(UsageError, match="concurrency is 0"):
        check_room(LIMITS, 0, 10)
