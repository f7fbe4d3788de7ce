"""A machine's first engine compiles the loops of the CPU device; its answers are those of every later one."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from dsv4lab.config.engine import EngineConfig
from dsv4lab.engine.client import EngineClient
from dsv4lab.engine.loop_store import COMPILING, HOMELESS, STAMP

pytestmark = pytest.mark.slow

Answer = list[tuple[int, ...]]


def answers(environ: Mapping[str, str | None]) -> list[Answer]:
    """Fingerprints of the logits of two loads, by an engine of its own: few rows run in the loops."""
    config = EngineConfig("tiny", plan="hip", max_running_requests=4, max_total_tokens=2048)
    with EngineClient(config, environ=environ) as client:
        loads = [client.load(concurrency, 140, 8, 0, fingerprints=True) for concurrency in (1, 3)]
    return [[r.fingerprints for r in load.requests] for load in loads]


def test_the_first_answers_are_the_later_ones_bit_for_bit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    environ = {"NUMBA_CACHE_DIR": str(tmp_path)}
    first = answers(environ)
    assert caplog.messages == [COMPILING]
    assert len(list(tmp_path.glob(f"*/{STAMP}"))) == 1
    assert answers(environ) == first
    assert caplog.messages == [COMPILING]


def test_the_first_start_compiles_what_any_engine_needs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    environ = {"NUMBA_CACHE_DIR": str(tmp_path)}
    answers(environ)
    before = sorted(tmp_path.glob("*/*.nbc"))
    for model, prompt, config in (
        ("tiny", 300, {"speculative": "dspark", "enable_mixed_chunk": True}),
        ("tiny", 300, {"speculative": "mtp"}),
        ("tiny", 20, {"shared_expert_fusion": True}),
        ("demo", 1500, {"plan": "cuda"}),
        ("demo", 20, {"plan": "unfused"}),
    ):
        made = EngineConfig(model, max_running_requests=3, max_total_tokens=3 * 2048, **config)  # type: ignore[arg-type]
        with EngineClient(made, environ=environ) as client:
            for concurrency in (1, 3):
                client.load(concurrency, prompt, 8, 0)
        assert sorted(tmp_path.glob("*/*.nbc")) == before, config
    assert caplog.messages == [COMPILING]


def test_engines_that_start_together_on_a_new_machine_agree(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    environ = {"NUMBA_CACHE_DIR": str(tmp_path)}
    found: list[list[Answer]] = []
    threads = [threading.Thread(target=lambda: found.append(answers(environ))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert caplog.messages.count(COMPILING) == 1
    assert found[0] == found[1] == found[2] == answers({})


def test_without_any_folder_each_engine_compiles_the_same(caplog: pytest.LogCaptureFixture) -> None:
    assert answers({"NUMBA_CACHE_LOCATOR_CLASSES": "IPythonCacheLocator"}) == answers({})
    assert HOMELESS in caplog.messages
