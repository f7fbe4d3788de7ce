"""What a search does not measure: settings without a gain are stopped, the front is found in a quarter of the grid."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4lab.tuning.block import Measured
from dsv4lab.tuning.knobs import LOAD, Knob, KnobSpace, Setting
from dsv4lab.tuning.search.duel import BEHIND
from dsv4lab.tuning.search.plan import GRID, PARETO, SearchPlan
from dsv4lab.tuning.search.session import run_search
from dsv4lab.tuning.simulated_arms import SimulatedArms, SimulatedNoise, additive
from tests.unit.test_search_session import BEST, EFFECTS, QUICK, SMALL, SPACE

MOST = 24
QUIET = SimulatedNoise(sd=0.003)


@pytest.fixture(autouse=True)
def _no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here loses power, and a busy disk takes its time."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def test_the_sequential_test_stops_what_has_no_gain_and_what_is_behind(tmp_path: Path) -> None:
    effects = additive({"plan": {"hip": -0.06, "cuda": 0.03}, "hw_queues": {2: 0.02}})
    plan = SearchPlan(SMALL, GRID, replace(QUICK, explore_pairs=MOST))
    result = run_search(plan, SimulatedArms(SMALL, effects, QUIET), tmp_path / "s")
    best = Setting.of(plan="hip", hw_queues=1)
    for decision in result.explored:
        if SMALL.tuned_of(decision.setting) == best:
            assert (decision.verdict, decision.pairs) == ("faster", MOST)  # its figures get better until the end
        else:
            assert decision.pairs < MOST / 2
            assert decision.stopped in (BEHIND, "a gain of 1 % is ruled out", "a loss is shown")
    assert {SMALL.tuned_of(level.use) for level in result.levels} == {best}
    assert any(decision.stopped == BEHIND for decision in result.explored)


class Rates(SimulatedArms):
    """One plan costs TPOT and gives throughput, as another batching does."""

    def measure(self, setting: Setting, *, seed: int) -> Measured:
        found = super().measure(setting, seed=seed)
        return replace(found, tokens_per_s=found.tokens_per_s * (1.3 if setting.get("plan") == "cuda" else 1.0))


def test_a_setting_that_gains_in_throughput_alone_is_kept_where_both_count(tmp_path: Path) -> None:
    effects = additive({"plan": {"hip": -0.05, "cuda": 0.05}})
    plan = SearchPlan(SMALL, PARETO, replace(QUICK, explore_pairs=12), trials=SMALL.size)
    result = run_search(plan, Rates(SMALL, effects, QUIET), tmp_path / "s")
    assert {point.setting.get("plan") for point in result.front} == {"hip", "cuda"}
    cuda = [decision for decision in result.explored if decision.setting.get("plan") == "cuda"]
    assert all(decision.pairs == 12 for decision in cuda)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_front_of_tpot_and_throughput_is_found_in_a_quarter_of_the_grid(tmp_path: Path, seed: int) -> None:
    """By Optuna's multi-objective sampler: of 288 points, loads among them, the best setting under each load."""
    space = KnobSpace((*SPACE.knobs, Knob("concurrency", (1, 8, 64), LOAD)), SPACE.baseline)
    plan = SearchPlan(space, PARETO, replace(QUICK, explore_pairs=3, confirm_pairs=1), seed=seed)
    assert plan.budget == space.size / 4
    result = run_search(plan, SimulatedArms(space, EFFECTS, QUIET, seed=seed), tmp_path / "s")
    assert result.trials <= plan.budget
    assert [point.setting for point in result.front] == [space.join(BEST, load) for load in space.strata()]
