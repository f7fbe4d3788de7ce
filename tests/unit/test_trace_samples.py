from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsv4lab.errors import UsageError
from dsv4lab.trace import samples
from dsv4lab.trace.samples import SAMPLES, sample_trace


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_listed_with_source_and_licence(name: str, repo_root: Path) -> None:
    manifest = json.loads((repo_root / "traces" / "MANIFEST.json").read_text(encoding="utf-8"))
    (entry,) = [entry for entry in manifest["files"] if entry["file"] == SAMPLES[name]]
    assert sample_trace(name).stat().st_size == entry["bytes"]
    assert entry["licence"]


def test_a_wheel_brings_them(repo_root: Path) -> None:
    text = (repo_root / "pyproject.toml").read_text(encoding="utf-8")
    assert all(f'"traces/{file}" = "share/dsv4lab/traces/{file}"' in text for file in SAMPLES.values())


def test_unknown_and_missing_samples_are_errors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes one of: mi300x, cuda"):
        sample_trace("mi9000")
    monkeypatch.setattr(samples, "_CHECKOUT", tmp_path)
    monkeypatch.setattr(samples, "_BUNDLED", tmp_path)
    with pytest.raises(UsageError, match="give the path of a trace"):
        sample_trace()
