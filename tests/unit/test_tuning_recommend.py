from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from dsv4lab.tuning.recommend import Choice, Recommendation, pick_candidate, recommend
from dsv4lab.tuning.rows import baseline_noise, row_difference, sweep_rows
from dsv4lab.tuning.space import Cell, PlanChoice, SweepSpace
from dsv4lab.tuning.stats import Noise
from dsv4lab.tuning.trial import CONFIRM, EXPLORE, Trial

QUIET = Noise(0.01, 0.01)
Effect = Callable[[Cell], float]


def make_space(**changes: object) -> SweepSpace:
    plans = tuple(PlanChoice(name, name) for name in ("off", "hip", "cuda"))
    fields: dict[str, object] = {"plans": plans, "hw_queues": (1, 2, 4), "concurrency": (1, 4), **changes}
    return SweepSpace(**fields)  # type: ignore[arg-type]


def trials_of(space: SweepSpace, effect: Effect, rng: np.random.Generator, spread: float = 0.005) -> list[Trial]:
    """Explored trials on a machine whose speed drifts by tens of percent, with ``spread`` between neighbours."""
    return [
        _trial(EXPLORE, visit.round, turn.repeat, turn.cell, effect, rng, spread)
        for visit in space.visits()
        for turn in visit.turns
    ]


def confirmed(space: SweepSpace, choice: Choice, effect: Effect, rng: np.random.Generator) -> list[Trial]:
    return [
        _trial(CONFIRM, space.rounds, repeat, Cell(plan, choice.hw_queues, level), effect, rng, 0.005)
        for repeat in range(space.confirm)
        for level in space.concurrency
        for plan in ("off", choice.plan)
    ]


def _trial(
    phase: str, number: int, repeat: int, cell: Cell, effect: Effect, rng: np.random.Generator, spread: float
) -> Trial:
    drift = 1 + 0.3 * math.sin(number * 7 + repeat * 2.5)
    base = 10.0 * cell.concurrency_level**0.2 * drift
    times = base * (1 + effect(cell)) * np.exp(rng.normal(0, spread, cell.concurrency_level))
    return Trial(phase, number, repeat, cell, (5.0,), tuple(times.tolist()), 1000 / base, 1.0, "x")


def gains(table: Mapping[tuple[str, int], float]) -> Effect:
    return lambda cell: table.get((cell.plan, cell.hw_queues), 0.0)


def decide(space: SweepSpace, effect: Effect, rng: np.random.Generator) -> Recommendation:
    trials = trials_of(space, effect, rng)
    candidate = pick_candidate(space, trials)
    if candidate is not None:
        trials += confirmed(space, candidate, effect, rng)
    return recommend(space, trials, candidate, QUIET)


def test_a_planted_gain_is_found_and_recommended(rng: np.random.Generator) -> None:
    found = decide(make_space(), gains({("hip", 2): -0.12, ("hip", 4): -0.05, ("cuda", 4): 0.08}), rng)
    assert found.verdict == "faster"
    assert found.use == Choice("hip", 2)
    assert found.difference is not None
    assert found.difference.delta == pytest.approx(-0.12, abs=0.02)
    best = found.to_json()
    assert (best["plan"], best["hw_queues"], best["verdict"]) == ("hip", 2, "faster")
    assert [level["concurrency_level"] for level in best["by_concurrency"]] == [1, 4]
    assert "predicts nothing about a GPU" in best["scope"]


def test_no_difference_is_an_answer_and_means_off(rng: np.random.Generator) -> None:
    found = decide(make_space(), gains({}), rng)
    assert found.verdict == "no difference"
    assert found.use == Choice("off", 1)
    assert found.candidate is not None
    assert found.to_json()["delta_vs_off"] == 0.0
    assert found.reason.startswith("No difference")


def test_overlap_that_only_loses_is_called_slower(rng: np.random.Generator) -> None:
    found = decide(make_space(), lambda cell: 0.0 if cell.plan == "off" else 0.1, rng)
    assert found.verdict == "slower"
    assert found.use == Choice("off", 1)
    assert "slower than off" in found.reason


def test_among_equals_the_fewest_queues_win(rng: np.random.Generator) -> None:
    equal = gains({(plan, q): -0.1 for plan in ("hip", "cuda") for q in (2, 4)})
    space = make_space()
    assert pick_candidate(space, trials_of(space, equal, rng, spread=0.0)) == Choice("hip", 2)


def test_one_queue_overlaps_nothing_and_is_passed_over(rng: np.random.Generator) -> None:
    lucky = gains({("cuda", 1): -0.2, ("hip", 2): -0.1})
    space = make_space()
    assert pick_candidate(space, trials_of(space, lucky, rng)) == Choice("hip", 2)
    alone = make_space(hw_queues=(1,))
    assert pick_candidate(alone, trials_of(alone, lucky, rng)) == Choice("cuda", 1)


def test_a_lucky_pick_does_not_survive_its_own_trials(rng: np.random.Generator) -> None:
    space = make_space()
    explored = trials_of(space, gains({("cuda", 4): -0.2}), rng)
    candidate = pick_candidate(space, explored)
    assert candidate == Choice("cuda", 4)
    found = recommend(space, explored + confirmed(space, candidate, gains({}), rng), candidate, QUIET)
    assert found.verdict == "no difference"
    assert found.use.plan == "off"


def test_levels_where_it_stops_paying_are_named(rng: np.random.Generator) -> None:
    def effect(cell: Cell) -> float:
        return 0.0 if cell.plan == "off" else (-0.3 if cell.concurrency_level == 1 else 0.05)

    found = decide(make_space(), effect, rng)
    assert found.verdict == "faster"
    assert [level.verdict for level in found.levels] == ["faster", "slower"]
    assert "At concurrency 4 it is slower: use off there." in found.reason
    assert [level["plan"] for level in found.to_json()["by_concurrency"]] == [found.use.plan, "off"]


def test_too_few_pairs_recommend_off_and_say_so(rng: np.random.Generator) -> None:
    found = decide(make_space(confirm=3), gains({("hip", 2): -0.2}), rng)
    assert found.verdict == "undecided"
    assert found.use.plan == "off"
    assert "--confirm 5 or more" in found.reason


def test_off_alone_has_nothing_to_be_compared_with(rng: np.random.Generator) -> None:
    found = decide(make_space(plans=(PlanChoice("off", "off"),)), gains({}), rng)
    assert (found.verdict, found.use, found.candidate) == ("nothing to compare", Choice("off", 1), None)
    assert found.to_json()["candidate"] is None


def test_the_control_is_shown_and_never_recommended(rng: np.random.Generator) -> None:
    space = make_space()
    trials = trials_of(space, lambda cell: -0.9 if cell.control else 0.0, rng)
    rows = sweep_rows(space, trials, {})
    controls = [row for row in rows if row.control]
    assert [row.concurrency_level for row in controls] == [1, 4]
    assert all(row.delta_vs_off is not None and row.delta_vs_off < -0.8 for row in controls)
    candidate = pick_candidate(space, trials)
    assert candidate is not None
    assert candidate.plan in ("hip", "cuda")


def test_rows_hold_medians_over_requests_and_deltas_within_a_process(rng: np.random.Generator) -> None:
    space = make_space(rounds=2, repeats=3)
    trials = trials_of(space, gains({("hip", 2): -0.1}), rng)
    rows = {(r.plan, r.hw_queues, r.concurrency_level): r for r in sweep_rows(space, trials, {}) if not r.control}
    assert len(rows) == 18
    row, off = rows["hip", 2, 4], rows["off", 2, 4]
    own = [t for t in trials if t.cell == Cell("hip", 2, 4)]
    assert row.tpot_ms == pytest.approx(float(np.median([x for t in own for x in t.tpot_ms])))
    assert row.delta_vs_off == pytest.approx(row.tpot_ms / off.tpot_ms - 1)
    assert off.delta_vs_off is None
    assert row.tpot_p10_ms <= row.tpot_ms <= row.tpot_p90_ms
    assert row_difference(trials, off) is None
    paired = row_difference(trials, row)
    assert paired is not None
    assert paired.pairs == 6
    assert paired.delta == pytest.approx(-0.1, abs=0.02)


def test_unfinished_sessions_have_rows_for_what_was_measured(rng: np.random.Generator) -> None:
    space = make_space()
    some = [t for t in trials_of(space, gains({}), rng) if t.cell.hw_queues == 1 and not t.cell.control]
    assert {row.hw_queues for row in sweep_rows(space, some, {})} == {1}
    assert sweep_rows(space, [], {}) == []


def test_noise_of_the_machine_is_that_of_off(rng: np.random.Generator) -> None:
    space = make_space(rounds=2)
    noise = baseline_noise(space, trials_of(space, gains({}), rng))
    assert noise.repeat is not None
    assert noise.process is not None
    assert noise.repeat > 0.05  # the drift of trials_of
