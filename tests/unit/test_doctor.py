"""``dsv4lab doctor``: documented keys, origins of settings, warnings."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsv4lab import host
from dsv4lab.cli import doctor
from dsv4lab.cli.main import main

KEYS = [
    "dsv4lab",
    "python",
    "platform",
    "cpu",
    "cores",
    "memory_bytes",
    "packages",
    "devices",
    "distributed",
    "device",
    "environment",
    "settings",
    "warnings",
]


def report(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["doctor", "--json", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_json_has_the_documented_keys(capsys: pytest.CaptureFixture[str], repo_root: Path) -> None:
    found = report(capsys)
    assert list(found) == KEYS
    assert found["cores"] >= 1
    assert found["packages"]["numpy"]
    assert found["devices"][0]["kind"] == "cpu"
    assert all(set(setting) == {"value", "origin"} for setting in found["settings"].values())
    documented = next(line for line in (repo_root / "README.md").read_text().splitlines() if "`dsv4lab doctor`" in line)
    assert all(f"`{key}`" in documented for key in KEYS)


def test_settings_say_where_they_come_from(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_MAX_HW_QUEUES", "3")
    monkeypatch.setenv("SGLANG_OPT_USE_MULTI_STREAM_OVERLAP", "1")
    found = report(capsys)
    assert found["settings"]["hw_queues"] == {"value": 3, "origin": "env GPU_MAX_HW_QUEUES"}
    assert found["settings"]["plan"] == {"value": "hip", "origin": "env SGLANG_OPT_USE_MULTI_STREAM_OVERLAP"}
    assert found["settings"]["use_aiter"]["origin"] == "default"
    assert found["environment"] == {"GPU_MAX_HW_QUEUES": 3, "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": True}


def test_a_variable_that_is_not_read_here_is_warned_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    monkeypatch.setenv("SGLANG_HACK_FLASHMLA_BACKEND", "tilelang")
    warnings = "\n".join(report(capsys)["warnings"])
    assert "CUDA_DEVICE_MAX_CONNECTIONS is set, and is not read on cpu (only on cuda)" in warnings
    assert "SGLANG_HACK_FLASHMLA_BACKEND is tilelang: engines keep their rows in the former three pools" in warnings


@pytest.mark.parametrize(("queues", "warned"), [("1", False), ("2", False), ("3", True)])
def test_more_queue_threads_than_cores_are_warned_of(
    queues: str, warned: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_MAX_HW_QUEUES", queues)
    monkeypatch.setattr(host, "usable_cores", lambda: 2)
    assert any("threads on 2 cores" in text for text in report(capsys)["warnings"]) is warned


def test_an_absent_device_is_said_to_be_absent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = {"kind": "cpu", "name": "x", "memory_bytes": None, "blackwell": False}
    monkeypatch.setattr(doctor, "find_devices", lambda: ([cpu], []))
    assert any("there is no hip device here" in text for text in report(capsys, "--device", "hip")["warnings"])


def test_a_gpu_is_described(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    facts = SimpleNamespace(name="Some GPU", major=10, total_memory=1 << 37)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda at: facts)
    monkeypatch.setattr(torch.version, "hip", None)
    found = report(capsys, "--device", "cuda")
    assert found["devices"][1] == {"kind": "cuda", "name": "Some GPU", "memory_bytes": 1 << 37, "blackwell": True}
    assert found["settings"]["token_gate"]["value"] == 128


def test_a_broken_torch_is_a_finding_and_not_a_crash(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def broken(name: str, *rest: Any) -> Any:
        if name == "torch":
            raise OSError("libsomething.so: cannot open")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", broken)
    assert "torch cannot be imported: libsomething.so: cannot open" in report(capsys)["warnings"]


def test_the_printed_form_names_settings_origins_and_warnings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_MAX_HW_QUEUES", "32")
    monkeypatch.setattr(host, "usable_cores", lambda: 2)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "env GPU_MAX_HW_QUEUES" in shown
    assert "warning: 32 hardware queues are 32 threads on 2 cores" in shown


def test_cpu_name_without_a_model_name(tmp_path: Path) -> None:
    named = tmp_path / "cpuinfo"
    named.write_text("processor : 0\nmodel name\t: Some CPU @ 3GHz\n", encoding="utf-8")
    assert host.cpu_name(named) == "Some CPU @ 3GHz"
    assert host.cpu_name(tmp_path / "absent")
