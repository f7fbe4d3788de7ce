from __future__ import annotations

import json

import pytest

from dsv4lab.tuning.gate import Divergence, Gate, first_divergence
from dsv4lab.tuning.space import Cell

OFF, HIP = Cell("off", 1, 2), Cell("hip", 4, 2)
ALONE = Cell("off", 1, 1)


def test_equal_tokens_pass() -> None:
    gate = Gate()
    assert gate.check(OFF, [[1, 2, 3], [4, 5, 6]]) is None
    assert gate.check(HIP, [[1, 2, 3], [4, 5, 6]]) is None
    assert gate.check(ALONE, [[1, 2, 3]]) is None


def test_the_first_divergence_is_named() -> None:
    gate = Gate()
    gate.check(OFF, [[1, 2, 3], [4, 5, 6]])
    found = gate.check(HIP, [[1, 2, 3], [4, 9, 8]])
    assert found == Divergence("tokens", HIP, OFF, 1, 1, 5, 9)
    assert str(found) == (
        "prompt 1, new token 1: [hip, 4 queues, concurrency 2] gave 9, [off, 1 queue, concurrency 2] gave 5"
    )
    assert Divergence.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_logits_are_compared_where_fingerprints_were_taken_and_within_a_level() -> None:
    gate = Gate()
    assert gate.check(OFF, [[1, 2], [4, 5]], [[70, 71], [72, 73]]) is None
    assert gate.check(HIP, [[1, 2], [4, 5]], [[], []]) is None
    assert gate.check(ALONE, [[1, 2]], [[90, 91]]) is None
    found = gate.check(HIP, [[1, 2], [4, 5]], [[70, 71], [72, 99]])
    assert found == Divergence("logits", HIP, OFF, 1, 1, 73, 99)
    assert str(found).startswith("prompt 1, new token 1: the logits of [hip, 4 queues, concurrency 2] are not those of")


def test_a_shorter_output_diverges_where_it_ends() -> None:
    gate = Gate()
    gate.check(OFF, [[1, 2, 3]])
    found = gate.check(HIP, [[1, 2]])
    assert found is not None
    assert (found.position, found.expected, found.got) == (2, 3, None)


def test_levels_are_compared_in_float32_only() -> None:
    for across in (True, False):
        gate = Gate(across_levels=across)
        gate.check(OFF, [[1, 2, 3], [4, 5, 6]])
        assert (gate.check(ALONE, [[1, 2, 7]]) is not None) is across


def test_a_control_is_no_reference() -> None:
    gate = Gate()
    assert gate.check(OFF, [[9, 9, 9]], reference=False) is None
    assert gate.check(OFF, [[1, 2, 3]]) is None
    assert gate.check(OFF, [[9, 9, 9]], reference=False) is not None
    assert gate.check(HIP, [[1, 2, 3]]) is None


def test_the_reference_survives_a_restart_of_the_session() -> None:
    first = Gate()
    first.check(OFF, [[1, 2, 3]])
    kept = json.loads(json.dumps(first.take_new()))
    assert first.take_new() == []
    second = Gate()
    second.restore(kept)
    assert second.check(HIP, [[1, 2, 3]]) is None
    assert second.check(HIP, [[1, 2, 4]]) is not None


@pytest.mark.parametrize(
    ("a", "b", "where"), [([], [], None), ([1], [1], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([], [1], 0)]
)
def test_first_divergence(a: list[int], b: list[int], where: int | None) -> None:
    assert first_divergence(a, b) == where
