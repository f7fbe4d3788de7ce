"""Shared by all tests: seeds, markers, and where the sample traces and the browser are."""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from dsv4lab.env import VARIABLES
from dsv4lab.host import cpu_name, usable_cores

ROOT = Path(__file__).resolve().parents[1]

# No deadlines: a shared machine swings. The same examples in every run: a red test can be run again.
settings.register_profile("dsv4lab", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("dsv4lab")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="mixed into the seed that every test gets from its own id")
    parser.addoption("--bench", action="store_true", help="run the tests that report wall-clock figures")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reasons = {
        "bench": None if config.getoption("--bench") else "wall-clock figures: make bench",
        "browser": None if _chromium() else "no chromium on PATH",
    }
    if any(item.get_closest_marker(name) for item in items for name in ("gpu", "rocm")):
        reasons |= _device_reasons()
    for item in items:
        for name, reason in reasons.items():
            if reason and item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))


def _device_reasons() -> dict[str, str | None]:
    import torch

    if not torch.cuda.is_available():
        return {"gpu": "torch sees no GPU", "rocm": "torch sees no GPU"}
    return {"gpu": None, "rocm": None if torch.version.hip else "the GPU is not an AMD one"}


def _chromium() -> str | None:
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return next((path for path in found if path), None)


def _seed_of(request: pytest.FixtureRequest) -> int:
    return zlib.crc32(f"{request.node.nodeid} {request.config.getoption('--seed')}".encode())


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed from the test's own id: independent of order and of other tests, changed by ``--seed``."""
    return _seed_of(request)


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """A numpy generator with this test's seed."""
    return np.random.default_rng(seed)


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    seed = _seed_of(request)
    random.seed(seed)
    np.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests see none of the variables that the developer's shell may have set."""
    for variable in VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def record_figure(request: pytest.FixtureRequest) -> Callable[..., None]:
    """``record_figure(name, value, unit, **detail)`` of a ``bench`` test: printed, and added to bench-results/."""

    def record(name: str, value: float, unit: str, **detail: Any) -> None:
        figure = {"name": name, "value": value, "unit": unit, **detail, "test": request.node.nodeid, **_machine()}
        print(f"\n{name}: {value:.4g} {unit}")
        folder = ROOT / "bench-results"
        folder.mkdir(exist_ok=True)
        with (folder / "figures.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(figure) + "\n")

    return record


def _machine() -> dict[str, Any]:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    versions = {name: metadata.version(name) for name in ("numpy", "torch")}
    return {"cpu": cpu_name(), "cores": usable_cores(), "python": platform.python_version(), **versions, "at": now}


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def sample_traces() -> Path:
    """Folder of the public sample traces, which are too large for the repository."""
    named = os.environ.get("DSV4LAB_SAMPLE_TRACES")
    for folder in (Path(named) if named else None, ROOT.parent / "shared" / "traces"):
        if folder is not None and (folder / "expected.json").is_file():
            return folder
    pytest.skip("sample traces not found: set DSV4LAB_SAMPLE_TRACES to their folder")


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium; tests that use it are marked ``browser``."""
    path = _chromium()
    assert path, "mark the test with pytest.mark.browser: it is then skipped where there is no Chromium"
    return path


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    """A Chromium, driven by Playwright, whose event loop runs as long as it lives: no other test may run one then."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with driver.sync_playwright() as started:
        found = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()
