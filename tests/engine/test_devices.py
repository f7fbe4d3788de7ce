from __future__ import annotations

import pytest

from dsv4lab.engine import devices
from dsv4lab.engine.devices import choose_device, find_devices
from dsv4lab.errors import UnavailableError

CPU = {"kind": "cpu", "name": "a CPU", "memory_bytes": 1, "blackwell": False}
GPU = {"kind": "hip", "name": "a GPU", "memory_bytes": 2, "blackwell": False}


def test_the_cpu_is_always_there() -> None:
    found, problems = find_devices()
    assert found[0]["kind"] == "cpu"
    assert problems == []
    assert choose_device("cpu").device == "cpu"


def test_without_a_gpu_it_says_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "find_devices", lambda: ([CPU], ["torch is odd"]))
    chosen = choose_device()
    assert chosen.device == "cpu"
    assert chosen.text.startswith("torch is odd; torch sees no GPU")
    assert "predicts nothing about a GPU" in chosen.text


def test_a_gpu_that_the_engine_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(config: object) -> None:
        raise UnavailableError("not here")

    monkeypatch.setattr(devices, "find_devices", lambda: ([CPU, GPU], []))
    monkeypatch.setattr("dsv4lab.engine.placement.place_of", refuse)
    chosen = choose_device()
    assert chosen.device == "cpu"
    assert "a GPU is here" in chosen.text
    assert "the engine does not run on it: not here" in chosen.text
    with pytest.raises(UnavailableError):
        choose_device("hip")


def test_a_gpu_that_the_engine_runs_on_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "find_devices", lambda: ([CPU, GPU], []))
    monkeypatch.setattr("dsv4lab.engine.placement.place_of", lambda config: None)
    assert choose_device() == devices.Chosen("hip", "a GPU")
