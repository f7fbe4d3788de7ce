"""``dsv4lab bundle``: measured on the CPU device for real, with parts that fail, and interrupted."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dsv4lab as lab
from dsv4lab.backends.selfcheck import CheckRow, selfcheck
from dsv4lab.cli.main import main
from dsv4lab.tuning.bundle import make
from tests.unit import bundles

WORDS = ["bundle", "--device", "cpu", "--shape", "tiny", "--layers", "4", "--concurrency", "1", "--rounds", "5"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that take no time."""

    def checked(device: str, names: tuple[str, ...], *, apart: bool) -> Iterator[CheckRow]:
        assert apart
        yield CheckRow("torch", "rms_norm", "a", passes=True, text=f"wrote {Path.home()}/cache/x.so")

    def benched(settings: Any, folder: Path, tell: Any) -> Any:
        tell("[  10 s left] concurrency 1")
        (folder / bundles.TRACE).write_bytes(bundles.trace_bytes())
        return bundles.record()

    monkeypatch.setattr(make, "selfcheck", checked)
    monkeypatch.setattr(
        make, "probe_machine", lambda device, rounds: (json.loads(bundles.contents()["probe.json"]), [])
    )
    monkeypatch.setattr(make, "bench", benched)


def test_the_cpu_is_measured_into_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cpu.zip"
    words = [*WORDS, "--kernels", "rms_norm", "--minutes", "30", "-o", str(path), "--json"]
    assert main(words) == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert told["passes"]
    assert told["manifest"]["device_kind"] == "cpu"
    assert set(told["manifest"]["seconds"]) == {"selfcheck", "probe", "overlap"}
    assert "no GPU" in said.err
    assert "[3/3] overlap" in said.err
    bundle = lab.load_bundle(path)
    assert bundle.overlap is not None
    assert bundle.overlap.settings.shape == "tiny"
    assert {row.kernel for row in bundle.selfcheck or ()} == {"rms_norm"}
    assert bundle.probe is not None
    assert bundle.probe.found["handoff_us"] > 0
    assert len(bundle.traces) == 2
    kept = [profile.trace for profile in bundle.overlap.profiles if profile.trace is not None]
    assert sorted(kept) == sorted(bundle.traces)
    for name, trace in bundle.traces.items():
        assert trace.stream_busy().union_busy_ns > 0, name
    assert [p.name for p in tmp_path.iterdir()] == ["cpu.zip"]


@pytest.mark.usefixtures("quick")
def test_no_folder_of_this_machine_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    assert main([*WORDS, "-o", str(path)]) == 0
    with zipfile.ZipFile(path) as archive:
        text = b"".join(archive.read(name) for name in archive.namelist()).decode(errors="replace")
        checks = json.loads(archive.read("selfcheck.json"))["checks"]
    assert checks[0]["text"] == "wrote x.so"
    assert str(Path.home()) + "/" not in text
    assert str(tmp_path) not in text


@pytest.mark.usefixtures("quick")
def test_a_part_that_fails_is_told_and_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError(f"HIP error: invalid device function\nin {Path.home()}/x/kernel.py")

    monkeypatch.setattr(make, "bench", broken)
    path = tmp_path / "a.zip"
    assert main([*WORDS, "-o", str(path)]) == 1
    out, err = capsys.readouterr()
    assert "overlap failed: RuntimeError: HIP error: invalid device function in kernel.py" in out
    assert "overlap failed" in err
    bundle = lab.load_bundle(path)
    assert bundle.overlap is None
    assert bundle.selfcheck is not None
    assert bundle.traces == {}


@pytest.mark.usefixtures("quick")
def test_an_interruption_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(make, "bench", stopped)
    assert main([*WORDS, "-o", str(tmp_path / "a.zip")]) == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("quick")
def test_where_it_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(WORDS) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["dsv4lab-cpu.zip"]
    capsys.readouterr()
    assert main([*WORDS, "-o", "no/a.zip"]) == 2
    assert "-o no/a.zip: it takes a file in a folder that exists" in capsys.readouterr().err
    assert main([*WORDS, "-o", str(tmp_path)]) == 2
    assert main([*WORDS, "--concurrency", "one"]) == 2


def test_a_kernel_that_breaks_its_process_is_a_bad_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    line = json.dumps({"kernel": "rms_norm", "variant": "triton", "case": "a", "passes": True, "text": "max 0"})
    broken.write_text(f"#!/bin/sh\necho '{line}'\necho 'invalid device function' >&2\nkill -ABRT $$\n")
    broken.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(broken))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    rows = list(selfcheck("cuda", apart=True))
    assert [(row.kernel, row.passes) for row in rows] == [("rms_norm", True), ("-", False)]
    assert rows[1].text.startswith("ended with exit code -6: ")
    assert "invalid device function" in rows[1].text
