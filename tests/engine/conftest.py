"""Clients for the engine tests: over a worker without a model, and helpers that wait without sleeping."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dsv4lab.config.engine import EngineConfig
from dsv4lab.engine.client import EngineClient
from dsv4lab.engine.link import Patience

ROOT = Path(__file__).resolve().parents[2]
FAKE = ("--runner-factory", "tests.engine.fake_runner:make")
PATIENCE = Patience(start_s=120, call_s=60, stall_s=60, stop_s=20)

OpenFake = Callable[..., EngineClient]


def worker_path() -> str:
    """``PYTHONPATH`` of workers: they may be started from anywhere."""
    return os.pathsep.join([str(ROOT), str(ROOT / "kernels")])


def open_fake(*, patience: Patience = PATIENCE, environ: dict[str, str] | None = None, **fields: Any) -> EngineClient:
    config = EngineConfig("tiny", **{"chunked_prefill_size": 64, **fields})
    environ = {"PYTHONPATH": worker_path(), **(environ or {})}
    return EngineClient(config, environ=environ, patience=patience, _worker_arguments=FAKE)


@pytest.fixture
def fake() -> Iterator[OpenFake]:
    """Opens clients over fake workers, and closes them all."""
    opened: list[EngineClient] = []

    def make(**arguments: Any) -> EngineClient:
        opened.append(open_fake(**arguments))
        return opened[-1]

    yield make
    for client in opened:
        client.close()


@pytest.fixture(scope="module")
def client() -> Iterator[EngineClient]:
    """One client over a fake worker for a whole file; tests leave it alive and idle."""
    with open_fake() as opened:
        yield opened


@pytest.fixture
def gone() -> Callable[[int], bool]:
    """``gone(pid)``: whether that process ends within half a minute."""

    def wait(pid: int, seconds: float = 30.0) -> bool:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        try:
            return bool(select.select([handle], [], [], seconds)[0])
        finally:
            os.close(handle)

    return wait
