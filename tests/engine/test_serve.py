"""The server over the real ``tiny`` model: what it answers is what the engine gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import dsv4lab as lab
from dsv4lab.engine.client import EngineClient
from tests.engine.serving import Site, site

PROMPT = [5, 9, 13, 200, 7]
GREEDY = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0, "return_token_ids": True}


@pytest.fixture(scope="module")
def client() -> Iterator[EngineClient]:
    with lab.open("tiny", max_running_requests=4) as opened:
        yield opened


@pytest.fixture(scope="module")
def served(client: EngineClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(client, profile_dir=tmp_path_factory.mktemp("profiles"), max_prompt_tokens=300) as opened:
        yield opened


@pytest.fixture(scope="module")
def expected(client: EngineClient) -> list[int]:
    return client.generate([PROMPT], max_new_tokens=8).tokens[0]


def test_token_ids_give_the_engines_tokens_whole_and_streamed(served: Site, expected: list[int]) -> None:
    whole = served.ask("/v1/completions", GREEDY)
    assert whole.status == 200
    (choice,) = whole.json["choices"]
    assert (choice["token_ids"], choice["finish_reason"]) == (expected, "length")
    assert whole.json["usage"] == {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = served.ask("/v1/completions", {**GREEDY, **options})
    assert streamed.headers["Content-Type"] == "text/event-stream"
    *chunks, last, end = streamed.events
    assert end == b"data: [DONE]"
    assert (last["choices"], last["usage"]) == ([], whole.json["usage"])
    choices = [chunk["choices"][0] for chunk in chunks]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert [token for c in choices for token in c["token_ids"]] == expected
    assert "".join(c["text"] for c in choices) == choice["text"]
    assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["length"]
    assert len({chunk["id"] for chunk in (*chunks, last)}) == 1


def test_text_prompts_and_their_stop_strings(served: Site, client: EngineClient) -> None:
    full = client.generate(["stream"], max_new_tokens=12)
    assert full.texts is not None
    stop = full.texts[0][2:4]
    asked = {"prompt": "stream", "max_tokens": 12, "temperature": 0, "stop": stop}
    (choice,) = served.ask("/v1/completions", asked).json["choices"]
    assert (choice["text"], choice["finish_reason"]) == (full.texts[0][: full.texts[0].index(stop)], "stop")


def test_log_probabilities_of_completions(served: Site, client: EngineClient, expected: list[int]) -> None:
    given = client.generate([PROMPT], max_new_tokens=8, sampling=lab.SamplingParams(logprobs=2)).requests[0].logprobs
    for stream in (False, True):
        answer = served.ask("/v1/completions", {**GREEDY, "logprobs": 2, "stream": stream})
        choices = [e["choices"][0] for e in answer.events[:-1]] if stream else answer.json["choices"]
        told = [choice["logprobs"] for choice in choices]
        flat = {name: [value for part in told for value in part[name]] for name in told[0]}
        assert flat["token_logprobs"] == pytest.approx([entry.logprob for entry in given])
        assert all(1 <= len(top) <= 2 for top in flat["top_logprobs"])
        assert len(flat["tokens"]) == len(flat["text_offset"]) == len(expected)
        assert flat["text_offset"] == sorted(flat["text_offset"])


def test_choices_of_a_seed_differ_and_repeat(served: Site, client: EngineClient) -> None:
    asked = {"prompt": [PROMPT, [3, 4]], "n": 3, "seed": 11, "max_tokens": 6, "return_token_ids": True}
    first, again = (served.ask("/v1/completions", asked).json for _ in range(2))
    rows = [choice["token_ids"] for choice in first["choices"]]
    assert [choice["index"] for choice in first["choices"]] == list(range(6))
    assert rows == [choice["token_ids"] for choice in again["choices"]]
    assert len({tuple(row) for row in rows}) == 6
    assert first["usage"]["prompt_tokens"] == 7
    alone = lab.SamplingParams(temperature=1.0, seed=12)
    assert rows[1][:6] == client.submit(PROMPT, max_new_tokens=6, sampling=alone, text=True).result()
    streamed = served.ask("/v1/completions", {**asked, "stream": True}).events[:-1]
    by_index: dict[int, list[int]] = {}
    for event in streamed:
        for choice in event["choices"]:
            by_index.setdefault(choice["index"], []).extend(choice["token_ids"])
    assert [by_index[index] for index in range(6)] == rows


def test_chats_are_the_clients_chats(served: Site, client: EngineClient) -> None:
    given = client.chat(CHAT["messages"], max_new_tokens=8)
    whole = served.ask("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 1}).json
    (choice,) = whole["choices"]
    assert choice["token_ids"] == given.tokens
    assert choice["message"].get("reasoning_content", "") == given.turn.reasoning
    assert whole["usage"]["prompt_tokens"] == given.prompt_tokens
    assert [len(entry["top_logprobs"]) for entry in choice["logprobs"]["content"]] == [1] * len(given.tokens)
    *chunks, end = served.ask("/v1/chat/completions", {**CHAT, "stream": True}).events
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert end == b"data: [DONE]"
    assert [delta.get("role") for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == given.turn.reasoning
    plain = served.ask("/v1/chat/completions", {**CHAT, "reasoning_effort": "none", "max_completion_tokens": 3}).json
    assert plain["usage"]["completion_tokens"] == 3
    assert "reasoning_content" not in plain["choices"][0]["message"]


SCHEMA = {"type": "json_schema"}
BAD: list[tuple[str, dict[str, Any], str, str]] = [
    ("completions", {"prompt": []}, "prompt", "token ids"),
    ("completions", {"prompt": [1, "x"]}, "prompt", "list of integers"),
    ("completions", {"prompt": [[1], 2]}, "prompt", "list of integers"),
    ("completions", {"prompt": [99999999]}, "prompt", "token ids are integers from 0"),
    ("completions", {"prompt": ""}, "prompt", "empty"),
    ("completions", {"prompt": [3], "max_tokens": 0}, "max_tokens", "1 or more"),
    ("completions", {"prompt": [3], "max_tokens": True}, "max_tokens", "1 or more"),
    ("completions", {"prompt": [3], "temperature": -1}, "temperature", "0 (greedy) or more"),
    ("completions", {"prompt": [3], "temperature": "hot"}, "temperature", "a number"),
    ("completions", {"prompt": [3], "n": 65}, "n", "from 1 to 64"),
    ("completions", {"prompt": [[3]] * 8, "n": 9}, "n", "at most 64 choices"),
    ("completions", {"prompt": [3], "stop": [1]}, "stop", "list of strings"),
    ("completions", {"prompt": [3], "echo": True}, "echo", "False"),
    ("completions", {"prompt": [3], "logprobs": 65}, "logprobs", "0 to 64"),
    ("completions", {"prompt": [3], "max_tokns": 5}, "max_tokns", "no such field"),
    ("completions", {"prompt": [3], "stream_options": {"include_usage": True}}, "stream_options", "stream is true"),
    ("chat/completions", {}, "messages", "list of messages"),
    ("chat/completions", {"messages": [{"role": "me"}]}, "messages[0].role", "user"),
    ("chat/completions", {**CHAT, "top_logprobs": 3}, "top_logprobs", "logprobs is true"),
    ("chat/completions", {**CHAT, "tool_choice": {"type": "function"}}, "tool_choice", "required"),
    ("chat/completions", {**CHAT, "response_format": {"type": "yaml"}}, "response_format.type", "json_schema"),
    ("chat/completions", {**CHAT, "response_format": {**SCHEMA, "json_schema": {}}}, "response_format", "the schema"),
    (
        "chat/completions",
        {**CHAT, "response_format": {**SCHEMA, "json_schema": {"schema": {}, "strict": True}}},
        "response_format.json_schema.strict",
        "answers are not held to it",
    ),
    ("chat/completions", {**CHAT, "reasoning_effort": "huge"}, "reasoning_effort", "high"),
]


@pytest.mark.parametrize(("path", "fields", "param", "says"), BAD, ids=lambda value: str(value)[:40])
def test_a_bad_field_is_a_400_that_names_it(served: Site, path: str, fields: Any, param: str, says: str) -> None:
    answer = served.ask(f"/v1/{path}", fields)
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
    assert answer.error["param"] is None or answer.error["param"].startswith(param)
    assert param.partition(".")[0] in answer.error["message"]
    assert says in answer.error["message"]


BODIES = [
    b"",
    b"{",
    b"[1]",
    b'"x"',
    b'{"prompt": NaN}',
    b"\xff\xfe{}",
    b"[" * 100_000,
    b'{"prompt": "\xff"}',
    b"{}" * 2,
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:12]))
def test_a_malformed_body_is_a_400(served: Site, body: bytes) -> None:
    answer = served.ask("/v1/completions", body)
    assert (answer.status, answer.error["code"]) == (400, "invalid_json")


def test_prompts_that_do_not_fit(served: Site) -> None:
    for fields in ({"prompt": [3] * 301}, {"prompt": [3], "max_tokens": 10**6}, {"prompt": "a" * 2000}):
        answer = served.ask("/v1/completions", fields)
        assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    long = [{"role": "user", "content": "word " * 900}]
    assert served.ask("/v1/chat/completions", {"messages": long}).error["code"] == "context_length_exceeded"
    assert served.ask("/v1/completions", b" " * (9 << 20)).status == 413
    served.until_empty()


def test_wrong_ways_in(served: Site) -> None:
    assert served.ask("/v1/nothing").status == 404
    assert served.ask("/v1/completions").status == 405
    wrong = served.ask("/v1/completions", {**GREEDY, "model": "gpt"})
    assert (wrong.status, wrong.error["code"]) == (404, "model_not_found")
    assert served.ask("/v1/completions", GREEDY, headers={"Content-Type": "text/plain"}).status == 415
    assert served.ask("/health", headers={"Origin": "http://elsewhere.example"}).status == 403
    assert served.ask("/health", headers={"Origin": served.running.url}).status in (200, 403)


def test_models_health_and_metrics(served: Site, client: EngineClient) -> None:
    assert served.ask("/health").json == {"status": "ready"}
    (entry,) = served.ask("/v1/models").json["data"]
    assert (entry["id"], entry["max_model_len"]) == ("tiny", client.limits.pool_tokens)
    before = _samples(served)
    served.ask("/v1/completions", GREEDY)
    after = _samples(served)
    assert after["dsv4lab_generated_tokens_total"] - before.get("dsv4lab_generated_tokens_total", 0) == 8
    assert after["dsv4lab_ttft_seconds_count"] - before.get("dsv4lab_ttft_seconds_count", 0) == 1
    assert (after["dsv4lab_up"], after["dsv4lab_in_flight"]) == (1, 0)
    assert after["dsv4lab_engine_free_slots"] == client.limits.max_requests


def _samples(served: Site) -> dict[str, float]:
    text = served.ask("/metrics").body.decode()
    return {s.name: s.value for family in text_string_to_metric_families(text) for s in family.samples if not s.labels}


def test_profiles_become_runs_that_load(served: Site, expected: list[int]) -> None:
    assert served.ask("/stop_profile", b"").error["code"] == "no_profile"
    assert served.ask("/start_profile", b"").status == 200
    assert served.ask("/start_profile", b"").error["code"] == "profile_running"
    (choice,) = served.ask("/v1/completions", GREEDY).json["choices"]
    assert choice["token_ids"] == expected
    told = served.ask("/stop_profile", b"").json
    directory = served.running.profile_dir
    path = Path(told["trace"])
    assert not path.is_absolute()
    timeline = lab.load_trace(directory / path)
    assert len(set(timeline.step.tolist()) - {-1}) == 8
    assert served.ask("/stop_profile", b"").status == 409
