"""The probe reads planted queues and costs back, from times that the queue model makes; its file calibrates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dsv4lab.predict.calibrate import Measured, fit, load_probe
from dsv4lab.predict.cpu_probe import CpuProbe
from dsv4lab.predict.probe import (
    SPIN_US,
    at_once,
    cpu_rows,
    model_device,
    ordering_edges,
    probe,
    probe_file,
    queues_of,
    sharing,
)
from dsv4lab.queues.costs import Machine, machine
from dsv4lab.queues.program_json import workload_from_json
from dsv4lab.queues.simulate import simulate


def simulated(on: Machine, side_streams: int = 0) -> Any:
    """The queue model as a device to be probed, in a process that has made its side streams before."""
    made = [{"name": f"made{n}", "stream": f"side{n}", "duration_us": 0.001} for n in range(side_streams)]

    def measure(document: Mapping[str, Any], clock: str) -> float:
        ops = [*(made if document["name"].startswith("spin") else ()), *document["ops"]]
        run = simulate(workload_from_json({**document, "ops": ops}, on), on)
        if clock == "host":
            return run.elapsed_ns / 1e3
        return run.wall_ns / 1e3 if run.workload.graphs else max(run.times.end) / 1e3

    return measure


@pytest.mark.parametrize("queues", [1, 2, 3, 4, 6])
@pytest.mark.parametrize(("device", "runtime"), [("mi355x", "rocm-7.2"), ("h200", "cuda-13")])
def test_planted_queue_counts_are_found(device: str, runtime: str, queues: int) -> None:
    _, found = probe(simulated(machine(device, runtime, queues)), 16)
    assert (found.queues, found.at_least) == (queues, False)


def test_more_queues_than_streams_is_told_as_a_bound() -> None:
    _, found = probe(simulated(machine("h200", "cuda-13", 32)), 8)
    assert (found.queues, found.at_least) == (8, True)
    assert found.groups == ()


def test_streams_that_share_a_queue_are_found() -> None:
    _, found = probe(simulated(machine("h200", "cuda-13", 3), 6), 6)
    assert found.to_json()["shared_queues"] == [list(group) for group in found.groups]
    assert found.groups == ((0, 3), (1, 4), (2, 5))
    each = SPIN_US
    assert sharing({(0, 1): 2 * each, (1, 2): each, (2, 4): 1.9 * each, (1, 3): 2 * each}, each) == ((0, 1, 3), (2, 4))


def test_waves_of_noisy_times() -> None:
    noise = {1: 1.02, 2: 0.98, 4: 1.04, 5: 1.05, 6: 1.03, 8: 1.01, 16: 0.97}
    times = {n: -(-n // 5) * 200.0 * factor for n, factor in noise.items()}
    assert queues_of(times, 200.0) == (5, False)


def test_planted_costs_come_back_from_the_file(tmp_path: Path) -> None:
    planted = {"gap_us": 0.9, "signal_device_us": 0.7, "graph_us": 3.0}
    rows, found = probe(simulated(machine("h200", "cuda-13", 8, planted)), 8, "cuda-13", 8)
    path = tmp_path / "probe.json"
    path.write_text(json.dumps(probe_file("h200", {"gpu": "simulated"}, rows, found.to_json())))
    loaded = load_probe(path)
    assert loaded.device == "h200"
    fitted = fit(loaded.rows, "h200", tuple(planted))
    assert fitted.unidentified == ()
    for name, value in planted.items():
        assert fitted.values[name] == pytest.approx(value, rel=0.1), name
    assert found.period_us == pytest.approx(1.0 + planted["gap_us"], rel=0.05)
    assert found.fork_join_us > found.period_us - 1.0


def test_the_tax_on_launches_beside_a_waiter_is_found() -> None:
    host = machine("mi355x", "rocm-10", 4, {"poll_tax_us": 1.5, "submit_us": 0.1})
    edges = machine("mi355x", "rocm-10+ordering-edges", 4, {"submit_us": 0.1})
    taxed, free = (probe(simulated(on), 4)[1].waiter_us for on in (host, edges))
    assert taxed == pytest.approx(1.5, rel=0.15)
    assert free < 0.2


def test_rows_of_the_cpu_device_give_its_handoff_back() -> None:
    rows = [Measured(**row) for row in cpu_rows(CpuProbe(42.0, 1.4))]
    assert fit(rows, "cpu", ("signal_device_us",)).values["signal_device_us"] == pytest.approx(42.0, rel=0.1)


def test_names_and_libraries() -> None:
    assert model_device("NVIDIA H200") == "h200"
    assert model_device("AMD Instinct MI355X") == "mi355x"
    assert model_device("GeForce") is None
    maps = "7f0 r-xp 0 08:01 17 /a path/libamdhip64.so.7\n7f1 rw-p 0 00:00 0\n7f2 r-xp 0 08:01 18 /lib/libc.so\n"
    assert ordering_edges(maps, lambda path: b"..DEBUG_CLR_DISABLE_ORDERING_EDGE..") == (
        "/a path/libamdhip64.so.7",
        True,
    )
    assert ordering_edges(maps, lambda path: b"plain") == ("/a path/libamdhip64.so.7", False)
    assert ordering_edges("7f2 r-xp 0 08:01 18 /lib/libc.so\n", lambda path: b"") is None
    assert at_once((0, 3))["name"] == "spin on side streams 0, 3"
