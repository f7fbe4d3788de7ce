"""Kernels by themselves and in pairs on an H200: what the shipped values of the device come from."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from dsv4lab.errors import TraceError
from dsv4lab.predict.few_cus import crowd_slow
from dsv4lab.predict.kernel_rows import Launch, launches_of
from dsv4lab.predict.pairs import EDGE_US, TICK, Pairs, reduced
from dsv4lab.queues.costs import machine

FILE = Path(__file__).parents[2] / "docs" / "measurements" / "h200-pairs" / "pairs.json"
PLACES = FILE.parents[1] / "h200-places"
H200 = machine("h200")


@pytest.fixture(scope="module")
def measured() -> Pairs:
    return Pairs(json.loads(FILE.read_text()), H200)


def test_the_values_that_are_shipped_are_the_measured_ones(measured: Pairs) -> None:
    assert measured.ahead_us() == pytest.approx(H200["ahead_us"], abs=0.005)
    assert measured.dispatch_us() == pytest.approx(H200["dispatch_us"], abs=0.005)
    assert measured.corun_slow() == pytest.approx(H200["corun_slow"], abs=0.001)
    assert all(H200.values[name].status == "calibrated" for name in ("ahead_us", "dispatch_us", "corun_slow"))


def test_what_crowding_costs_is_measured_on_few_sms() -> None:
    data = json.loads((PLACES / "crowd.json").read_text())
    moved = json.loads(FILE.read_text())["bytes"]
    errors = crowd_slow(data["rows"], data["carveouts"], moved, H200)
    assert min(errors, key=errors.__getitem__) == pytest.approx(H200["crowd_slow"], abs=0.11)
    assert errors[0.5] < 0.18 < 0.22 < errors[0.0]
    assert H200.values["crowd_slow"].status == "calibrated"


def test_pairs_that_were_held_out_are_simulated_better_too(measured: Pairs) -> None:
    """The Pro shard and eight tokens: no value is determined from theirs."""
    own, others = (measured.steps(held_out=held_out) for held_out in (False, True))
    assert (len(own), len(others)) == (90, 90)
    assert measured.mean_error(own) < 0.09 < 0.10 < measured.mean_error(own, corun_slow=0.0)
    assert measured.mean_error(others) < 0.085 < 0.09 < measured.mean_error(others, corun_slow=0.0)
    best = min((0.2, 0.3, 0.4, 0.5, 0.6), key=lambda slow: measured.mean_error(others, corun_slow=slow))
    assert best == pytest.approx(H200["corun_slow"], abs=0.11)


def test_streams_that_go_first_and_experts_begun_apart_are_simulated_too(measured: Pairs) -> None:
    high = [row for row in measured.pairs if row.get("high")]
    apart = [row for row in measured.pairs if row["kind"] == "pair"]
    assert (len(high), len(apart)) == (36, 28)
    assert measured.mean_error(high) < 0.07
    assert measured.mean_error(apart) < 0.11


def row(kind: str, kernels: list[dict[str, Any]], **told: Any) -> dict[str, Any]:
    return {"kind": kind, "name": "a", "tokens": 1, "kernels": kernels, **told}


def seen(name: str, start: float, end: float, blocks: int = 66) -> dict[str, Any]:
    return {"name": name, "start_us": start, "end_us": end, "blocks": blocks, "footprint": 0.5, "shared": 0.01}


def test_a_pair_by_hand() -> None:
    """Two kernels of 5 us that fit beside each other: 0.2 us to the first start, 0.3 to the second, nothing is lost."""
    rows = [
        row("early", [seen("k", -2.0, 3.5)]),
        row("edge", [seen("k", 0.2, 5.2)]),
        row("pair", [seen("k", 0.2, 5.2), seen("k", 0.3, 6.0)], main=["a"], side=["a"], after_us={}),
    ]
    pairs = Pairs({"rows": rows, "bytes": {"a 1": 0.0}}, H200)
    assert pairs.ahead_us() == pytest.approx(1.5)
    start = EDGE_US + H200["dispatch_us"]
    assert pairs.errors(corun_slow=0.0) == [pytest.approx(start + 5.0 - 6.0)]


def test_a_step_by_hand() -> None:
    """Behind a tick: main is launched early and adds 3.5 us behind it, the side begins behind its edge. They share CUs
    while main runs: each has half of the places taken, so both take 1.2 times as long.
    """
    side = seen("s", 0.2, 5.2)
    rows = [
        row("early", [seen("k", -2.0, 3.5)]), row("edge", [seen("k", 0.2, 5.2)]),
        {**row("early", [side]), "name": "b"}, {**row("edge", [side]), "name": "b"},
        row("step", [seen("k", -2.0, 3.6), seen("s", 0.2, 7.0)], main=["a"], side=["b"], model="m", high=False),
    ]  # fmt: skip
    for kernel in (k for r in rows for k in r["kernels"]):
        kernel["blocks"] = 132
    pairs = Pairs({"rows": rows, "bytes": {"a 1": 0.0, "b 1": 0.0}}, H200)
    main, late = pairs.errors(corun_slow=0.4)
    shared = (3.5 - 0.2) * 1.2
    assert main == pytest.approx(0.2 + shared - 3.6)
    assert late == pytest.approx(0.2 + 5.0 + shared - shared / 1.2 - 7.0)
    assert [r["model"] for r in pairs.steps(held_out=False)] == ["m"]


def launch(name: str, start: float, end: float, blocks: int = 1) -> Launch:
    return Launch(name, start, end, blocks, 0.25, 0.5, 0.25)


def test_steps_become_medians_from_the_end_of_their_first_kernel() -> None:
    replay = [
        step
        for at, more in ((0.0, 0.0), (100.0, 1.0), (200.0, 5.0))
        for step in (
            launch(TICK, at, at + 10), launch("k", at + 11, at + 12 + more), launch("k", at + 13, at + 20),
            launch("void at::native::fill", at + 20, at + 21),
        )
    ]  # fmt: skip
    found = reduced([replay], 3)
    assert [(k["name"], k["start_us"], k["end_us"]) for k in found] == [("k", 1.0, 3.0), ("k", 3.0, 10.0)]
    shape = {"blocks": 1, "footprint": 0.25, "shared": 0.5, "prefers": 0.25}
    assert {name: found[0][name] for name in shape} == shape
    with pytest.raises(TraceError, match="9 kernels of a replay are not 4 equal steps"):
        reduced([replay], 4)


def test_launches_of_different_graphs_are_read(tmp_path: Path) -> None:
    gpu = {"name": "H200", "numSms": 132, "warpSize": 32, "regsPerMultiprocessor": 65536}
    gpu |= {"sharedMemPerMultiprocessor": 233472, "maxThreadsPerMultiprocessor": 2048}
    args = {"grid": [2, 1, 1], "block": [64, 1, 1], "registers per thread": 32, "shared memory": 0}
    events = [
        {"cat": "kernel", "name": name, "ts": at, "dur": 1, "args": {**args, "correlation": of}}
        for name, at, of in (("b", 30, 2), ("c", 35, 2), ("a", 10, 1), ("b", 20, 1), ("alone", 5, 3))
    ]
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"deviceProperties": [gpu], "traceEvents": events}).encode()))
    found, of = launches_of(path, {"c": 25})
    assert [[k.prefers for k in rows] for rows in found] == [[0, 0], [0, 0.25]]
    assert [[k.name for k in rows] for rows in found] == [["a", "b"], ["b", "c"]]
    assert of["name"] == "H200"
