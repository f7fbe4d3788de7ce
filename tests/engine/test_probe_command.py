"""``dsv4lab probe``: on the CPU device for real, and what it prints and warns of for a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsv4lab.cli.main import main
from dsv4lab.predict.probe import Found, probe_file
from dsv4lab.tuning import machine_probe
from tests.cpu.fake_device import FakeDevice

FOUND = Found(8, True, ((0, 8),), 2.1, 3.4, 1.2, 5.5, 0.0)


def test_the_cpu_device_is_probed_into_a_file_that_calibrate_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "probe.json"
    assert main(["probe", "--device", "cpu", "--rounds", "1", "-o", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"schema", "device", "machine", "found", "rows", "warnings", "out"}
    assert told["device"] == "cpu"
    assert set(told["found"]) == {"handoff_us", "slowdown", "compute_slowdown"}
    assert {name: told[name] for name in json.loads(path.read_text())} == json.loads(path.read_text())
    assert main(["calibrate", str(path), "--fit", "signal_device_us", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["device"] == "cpu"


def test_a_gpu_that_is_not_here_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["probe", "--device", "cuda"]) == 2
    assert "device 'cuda' is not available here; it takes cpu" in capsys.readouterr().err


def test_what_is_found_on_a_gpu_is_shown_and_missing_edges_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def probed(device: str, rounds: int) -> tuple[dict[str, Any], list[str]]:
        told = {**FOUND.to_json(), "host_us": {"launch": 3.3}}
        return probe_file("h200", {"gpu": "NVIDIA H200", "cpu": "x"}, [], told), [machine_probe.NO_EDGES]

    monkeypatch.setattr(machine_probe, "probe_gpu", probed)
    monkeypatch.setattr("dsv4lab.engine.placement.place_of", lambda config: None)
    assert main(["probe", "--device", "hip"]) == 0
    out, err = capsys.readouterr()
    assert "NVIDIA H200" in out
    assert "8 or more" in out
    assert "side streams 0, 8 share a hardware queue" in out
    assert "no ordering edges" in err


def test_a_gpu_is_probed_stream_by_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(distinct=6)
    monkeypatch.setattr("dsv4lab.engine.placement.place_of", lambda config: None)
    monkeypatch.setattr("dsv4lab.engine.placement.device_api", lambda place: device)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H200")
    document, warnings = machine_probe.probe_gpu("cuda", 1)
    assert document["device"] == "h200"
    assert document["machine"]["gpu"] == "NVIDIA H200"
    assert set(document["found"]["host_us"]) == {"launch", "event_record", "event_wait", "graph_launch"}
    names = [row["name"] for row in document["rows"]]
    assert {"chain of 16", "32 pairs on two streams", "chain of 128 beside a waiter"} <= set(names)
    assert "spin on side streams 0, 1, 2, 3" in names
    assert "spin on side streams 0, 1, 2, 3, 4, 5" not in names, "five side streams beside main"
    assert warnings == []
