"""What whole search sessions claim, against what is planted: over many sessions on noise as machines have it."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from scipy.stats import binom

from dsv4lab.tuning.knobs import LIVE, PROCESS, Knob, KnobSpace, Setting
from dsv4lab.tuning.search.plan import GRID, Effort, SearchPlan
from dsv4lab.tuning.search.session import run_search
from dsv4lab.tuning.simulated_arms import SimulatedArms, SimulatedNoise, additive

SPACE = KnobSpace(
    (Knob("plan", ("off", "hip", "cuda", "moe", "hip+moe"), LIVE), Knob("side_streams", (None, 1), LIVE)),
    Setting.of(plan="off", side_streams=None),
)
APART = KnobSpace((Knob("env:FAST", ("0", "1"), PROCESS),), Setting.from_json({"env:FAST": "0"}))
NOISE = SimulatedNoise(
    sd=0.01, tail=3.0, autocorrelation=0.5, drift=2e-4, process_sd=0.01, warm_up=0.1, prompt_sd=0.02, spike_rate=0.02
)
EFFORT = Effort(alpha=0.01, confirm_pairs=40)
SESSIONS = 40
GAIN = math.log1p(-0.03)


@pytest.fixture(autouse=True)
def _no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def answer(folder: Path, space: KnobSpace, effects: dict[str, dict[object, float]], seed: int) -> Setting:
    arms = SimulatedArms(space, additive(effects), NOISE, seed=seed)  # type: ignore[arg-type]
    (level,) = run_search(SearchPlan(space, GRID, EFFORT, seed=seed), arms, folder / str(seed)).levels
    return level.use


@pytest.mark.slow
@pytest.mark.timeout(3600)  # a busy machine takes its time
def test_where_all_is_alike_sessions_recommend_nothing(tmp_path: Path) -> None:
    """The best of nine alike settings is nominated each time; fresh pairs turn it down."""
    found = [answer(tmp_path, SPACE, {}, seed) for seed in range(SESSIONS)]
    assert sum(use != SPACE.baseline for use in found) <= 2
    assert binom.sf(2, SESSIONS, EFFORT.alpha) < 0.01  # a right implementation passes


@pytest.mark.slow
@pytest.mark.timeout(3600)  # a busy machine takes its time
def test_a_gain_of_3_percent_is_found_and_named(tmp_path: Path) -> None:
    found = [answer(tmp_path, SPACE, {"plan": {"cuda": GAIN}}, 100 + seed) for seed in range(SESSIONS)]
    right = sum(use.get("plan") == "cuda" for use in found)
    assert right >= binom.ppf(1e-3, SESSIONS, 0.9)
    assert all(use.get("plan") in ("cuda", "off") for use in found)


@pytest.mark.slow
@pytest.mark.timeout(3600)  # a busy machine takes its time
def test_offsets_of_processes_are_no_gain(tmp_path: Path) -> None:
    """Where arms need processes of their own, the luck of one process must not decide."""
    found = [answer(tmp_path, APART, {}, 200 + seed) for seed in range(SESSIONS)]
    assert sum(use != APART.baseline for use in found) <= 2
