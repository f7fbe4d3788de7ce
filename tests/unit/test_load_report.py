"""Figures of a load from known arrival times, its prompts and times from its seed, events from pieces of bytes."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.errors import EngineError, UsageError
from dsv4lab.load.report import RequestRecord, summarise
from dsv4lab.load.spec import LoadSpec, read_prompts
from dsv4lab.load.sse import MAX_EVENT_BYTES, EventReader

MS = 1_000_000


def record(
    index: int, sent: int, chunks: list[int], ended: int, tokens: int | None = None, error: str | None = None
) -> RequestRecord:
    """Times in milliseconds."""
    return RequestRecord(index, 10, tokens, sent * MS, tuple(c * MS for c in chunks), ended * MS, error=error)


def test_a_stream_with_known_times() -> None:
    """By hand, with the definitions of ``vllm bench serve`` (vllm/benchmarks/serve.py, calculate_metrics)."""
    records = [
        record(0, 0, [100, 110, 130, 160], 161, tokens=4),
        record(1, 50, [250, 350], 351, tokens=3),  # two tokens in one chunk
        record(2, 100, [400], 1000),  # the server counts nothing
        record(3, 0, [10, 20], 900, tokens=2, error="the stream broke off"),
    ]
    report = summarise(records, gpus=2)
    assert (report.completed, report.failed, report.duration_s) == (3, 1, 1.0)
    assert (report.new_tokens, report.prompt_tokens) == (8, 30)
    assert (report.tokens_per_s, report.tokens_per_s_per_gpu, report.total_tokens_per_s) == (8.0, 4.0, 38.0)
    assert report.requests_per_s == 3.0
    assert report.ttft_ms is not None
    assert report.ttft_ms.mean == pytest.approx((100 + 200 + 300) / 3)
    assert report.ttft_ms.median == 200.0
    assert report.ttft_ms.percentiles["p90"] == pytest.approx(280.0)
    assert report.ttft_ms.std == pytest.approx(np.std([100, 200, 300]))
    assert report.tpot_ms is not None
    assert report.tpot_ms.count == 2  # one token has no TPOT
    assert report.tpot_ms.mean == pytest.approx((60 / 3 + 100 / 2) / 2)
    assert report.itl_ms is not None
    assert report.itl_ms.mean == pytest.approx((10 + 20 + 30 + 100) / 4)
    assert report.e2e_ms is not None
    assert report.e2e_ms.mean == pytest.approx((160 + 300 + 300) / 3)
    assert report.concurrency_level == pytest.approx(0.76)
    assert report.errors == ("the stream broke off",)
    assert json.loads(json.dumps(report.to_json()))["ttft_ms"]["percentiles"]["p50"] == 200.0


def test_nothing_at_all_has_no_figures() -> None:
    report = summarise([])
    assert (report.completed, report.tokens_per_s, report.ttft_ms, report.tpot_ms, report.itl_ms) == (
        0,
        0.0,
        None,
        None,
        None,
    )


def test_the_seed_fixes_prompts_lengths_and_arrivals() -> None:
    spec = LoadSpec(40, prompt_tokens=100, max_new_tokens=50, range_ratio=0.5, rate=8.0, seed=3)
    again = LoadSpec(40, prompt_tokens=100, max_new_tokens=50, range_ratio=0.5, rate=8.0, seed=3)
    prompts = spec.prompts(500)
    assert (prompts, spec.new_tokens(), spec.arrivals_s()) == (
        again.prompts(500),
        again.new_tokens(),
        again.arrivals_s(),
    )
    assert all(50 <= len(p) <= 100 and set(p) <= set(range(2, 500)) for p in prompts)
    assert all(25 <= n <= 50 for n in spec.new_tokens())
    assert len({len(p) for p in prompts}) > 10
    fewer = LoadSpec(10, prompt_tokens=100, max_new_tokens=50, range_ratio=1.0, seed=3).prompts(500)
    assert fewer == LoadSpec(20, prompt_tokens=100, max_new_tokens=50, range_ratio=1.0, seed=3).prompts(500)[:10]


def test_arrivals_are_a_poisson_process() -> None:
    times = LoadSpec(20_000, rate=50.0, seed=1).arrivals_s()
    gaps = np.diff(times)
    assert times[0] == 0.0
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 50, rel=0.05)
    assert np.mean(gaps > 1 / 50) == pytest.approx(math.exp(-1), abs=0.02)
    assert set(LoadSpec(5).arrivals_s()) == {0.0}


@pytest.mark.parametrize(
    "fields",
    [
        {"requests": 0},
        {"requests": 1.5},
        {"prompt_tokens": 0},
        {"range_ratio": 1.1},
        {"rate": 0.0},
        {"concurrency": 0},
        {"seed": -1},
    ],
    ids=str,
)
def test_bad_loads_name_the_field(fields: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=f"^{next(iter(fields))} is "):
        LoadSpec(**{"requests": 1, **fields})  # type: ignore[arg-type]


def test_prompts_of_a_file(tmp_path: Path) -> None:
    plain = tmp_path / "prompts.txt"
    plain.write_text("one\n\ntwo words\n")
    assert read_prompts(plain) == ["one", "two words"]
    lines = tmp_path / "prompts.jsonl"
    lines.write_text('"one"\n[1, 2]\n{"prompt": "three", "id": 4}\n{"prompt": [5]}\n')
    assert read_prompts(lines) == ["one", (1, 2), "three", (5,)]
    assert LoadSpec(3).cycled(["a", "b"]) == ["a", "b", "a"]
    for text, says in {"{": "not JSON", "[1.5]": "token ids", '{"text": "x"}': "as prompt", "": "no prompt"}.items():
        lines.write_text(text)
        with pytest.raises(UsageError, match=says):
            read_prompts(lines)
    with pytest.raises(UsageError, match=r"none\.txt: No such file"):
        read_prompts(tmp_path / "none.txt")


@given(
    st.lists(st.binary(max_size=20).filter(lambda b: not set(b) & set(b"\r\n")), max_size=6),
    st.lists(st.integers(0, 200), max_size=8),
    st.sampled_from([b"\n", b"\r\n"]),
)
def test_events_do_not_depend_on_how_bytes_come(data: list[bytes], cuts: list[int], end: bytes) -> None:
    raw = b": comment" + end + b"".join(b"event: x" + end + b"data: " + d + end * 2 for d in data)
    reader, places = EventReader(), sorted({0, len(raw), *(min(c, len(raw)) for c in cuts)})
    found = [e for a, b in pairwise(places) for e in reader.feed(raw[a:b])]
    assert found == data


def test_an_event_without_end_is_an_error() -> None:
    with pytest.raises(EngineError, match="more than"):
        EventReader().feed(b"data: " + b"x" * MAX_EVENT_BYTES)
