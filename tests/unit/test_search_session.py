"""Search sessions on simulated arms: what is found, how soon, and what a resumed session measures."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dsv4lab.errors import EngineError, UsageError
from dsv4lab.tuning.block import CRASHED, DIED_AT_START, HUNG, OUTPUTS_DIFFER, Measured
from dsv4lab.tuning.knobs import LIVE, LOAD, PROCESS, Knob, KnobSpace, Setting
from dsv4lab.tuning.profiles import record_profiles
from dsv4lab.tuning.reading import read_session
from dsv4lab.tuning.search import session
from dsv4lab.tuning.search.duel import TIME_OVER
from dsv4lab.tuning.search.forecast import Forecast
from dsv4lab.tuning.search.outcome import NOTHING_BETTER, SearchResult
from dsv4lab.tuning.search.plan import GRID, PARETO, TPE, Effort, SearchPlan
from dsv4lab.tuning.search.runner import Progress
from dsv4lab.tuning.search.session import run_search
from dsv4lab.tuning.search.stand import Stand
from dsv4lab.tuning.search.timer import Timer
from dsv4lab.tuning.simulated_arms import SimulatedArms, SimulatedNoise, additive
from dsv4lab.tuning.store import RECORDS, StoreError, read_records

SPACE = KnobSpace(
    (
        Knob("plan", ("off", "hip", "cuda", "moe"), LIVE),
        Knob("hw_queues", (1, 2, 4, 8), PROCESS),
        Knob("side_streams", (None, 1, 2), LIVE),
        Knob("queue_policy", ("round_robin", "refcount"), LIVE),
    ),
    Setting.of(plan="off", hw_queues=1, side_streams=None, queue_policy="round_robin"),
)
SMALL = KnobSpace(
    (Knob("plan", ("off", "hip", "cuda"), LIVE), Knob("hw_queues", (1, 2), PROCESS), Knob("concurrency", (1, 4), LOAD)),
    Setting.of(plan="off", hw_queues=1),
)
EFFECTS = additive(
    {
        "plan": {"hip": -0.03, "cuda": -0.05, "moe": 0.02},
        "hw_queues": {2: -0.01, 4: -0.03, 8: 0.01},
        "side_streams": {1: 0.01, 2: -0.02},
        "queue_policy": {"refcount": 0.02},
    }
)
BEST = Setting.of(plan="cuda", hw_queues=4, side_streams=2, queue_policy="round_robin")
NOISE = SimulatedNoise(sd=0.01)
QUICK = Effort(explore_pairs=4, confirm_pairs=16, warm_loads=0, burst=1)


@pytest.fixture(autouse=True)
def _no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here loses power, and a busy disk takes its time."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


class Told:
    """A prior: the truth, with an error of its own, or turned round."""

    name = "told"

    def __init__(self, truth: Callable[[Setting], float], sd: float = 0.0, sign: float = 1.0, seed: int = 0) -> None:
        self._truth, self._sd, self._sign, self._random = truth, sd, sign, random.Random(seed)

    def forecasts(self, space: KnobSpace) -> Sequence[Forecast]:
        return [
            Forecast(s, math.expm1(self._sign * self._truth(s) + self._random.gauss(0.0, self._sd)))
            for s in space.grid()
        ]


def search(
    folder: Path, plan: SearchPlan, arms: SimulatedArms, prior: Told | None = None, **more: bool
) -> SearchResult:
    return run_search(plan, arms, folder, prior=prior, **more)


def kinds(folder: Path) -> list[str]:
    return [record["kind"] for record in read_records(folder / RECORDS)[0]]


@pytest.mark.parametrize(("method", "seed"), [(GRID, 0), (TPE, 0), (TPE, 1)])
def test_a_planted_best_is_found_in_a_quarter_of_the_grid(tmp_path: Path, method: str, seed: int) -> None:
    plan = SearchPlan(SPACE, method, QUICK, trials=SPACE.size // 4, seed=seed)
    prior = Told(EFFECTS, sd=0.02, seed=seed)  # errors as large as the effects of most knobs
    result = search(tmp_path / "s", plan, SimulatedArms(SPACE, EFFECTS, NOISE, seed=seed), prior)
    (level,) = result.levels
    assert (level.use, level.verdict) == (BEST, "faster")
    assert result.trials <= 0.25 * SPACE.size
    assert level.confirmation is not None
    assert level.confirmation.delta == pytest.approx(math.expm1(EFFECTS(BEST)), abs=0.02)


@pytest.mark.parametrize("seed", range(2))
def test_a_prior_that_is_wrong_does_not_mislead(tmp_path: Path, seed: int) -> None:
    plan = SearchPlan(SPACE, TPE, QUICK, trials=SPACE.size // 4, seed=seed)
    prior = Told(EFFECTS, sign=-1.0)  # the best last
    result = search(tmp_path / "s", plan, SimulatedArms(SPACE, EFFECTS, NOISE, seed=seed), prior)
    assert result.explored[0].setting != BEST
    (level,) = result.levels
    assert (level.use, level.verdict) == (BEST, "faster")


def test_alike_settings_are_no_difference_and_the_baseline_stays(tmp_path: Path) -> None:
    plan = SearchPlan(SMALL, GRID, QUICK)
    result = search(tmp_path / "s", plan, SimulatedArms(SMALL, noise=NOISE, seed=5))
    assert result.trials == plan.choices == 10
    for level in result.levels:
        assert level.use == level.baseline
        assert level.verdict in (NOTHING_BETTER, "no difference", "undecided")
    assert result.noise is not None
    assert 0.003 < result.noise.pair_sd < 0.05


def test_each_load_has_its_own_answer(tmp_path: Path) -> None:
    def effect(setting: Setting) -> float:
        gain = {1: {"hip": -0.06, "cuda": 0.05}, 4: {"hip": 0.05, "cuda": -0.06}}[int(setting.get("concurrency") or 0)]
        return gain.get(str(setting.get("plan")), 0.0)

    result = search(tmp_path / "s", SearchPlan(SMALL, GRID, QUICK), SimulatedArms(SMALL, effect, NOISE, seed=2))
    assert [(level.load.label, level.use.get("plan")) for level in result.levels] == [
        ("concurrency 1", "hip"),
        ("concurrency 4", "cuda"),
    ]


def test_blocks_are_pairs_under_one_load_from_one_seed_in_random_order(tmp_path: Path) -> None:
    search(tmp_path / "s", SearchPlan(SMALL, GRID, QUICK), SimulatedArms(SMALL, EFFECTS, NOISE))
    records = read_records(tmp_path / "s" / RECORDS)[0]
    pairs: dict[tuple[int, str, int], list[dict[str, object]]] = {}
    for record in records:
        if record["kind"] == "block" and record["pair"] >= 0:
            pairs.setdefault((record["trial"], record["phase"], record["pair"]), []).append(record)
    orders = set()
    for blocks in pairs.values():
        settings = [Setting.from_json(block["setting"]) for block in blocks]  # type: ignore[arg-type]
        assert len({block["seed"] for block in blocks}) == 1
        assert len({setting.get("concurrency") for setting in settings}) == 1
        baseline = [setting == SMALL.baseline_for(setting) for setting in settings]
        assert sorted(baseline) == [False, True]
        orders.add(baseline[0])
    assert orders == {False, True}
    assert len({pair for pair in pairs if pair[1] == "confirm"}) > 0


def test_a_setting_with_its_own_process_is_confirmed_by_fresh_processes(tmp_path: Path) -> None:
    space = KnobSpace((Knob("env:FAST", ("0", "1"), PROCESS),), Setting.from_json({"env:FAST": "0"}))
    effort = replace(QUICK, burst=2)
    noise = SimulatedNoise(sd=0.002, process_sd=0.002)
    arms = SimulatedArms(space, additive({"env:FAST": {"1": -0.05}}), noise)
    result = search(tmp_path / "s", SearchPlan(space, GRID, effort), arms)
    assert result.levels[0].verdict == "faster"
    records = read_records(tmp_path / "s" / RECORDS)[0]
    lives: dict[int, set[tuple[int, int]]] = {}
    for record in records:
        if record["kind"] == "block" and record["phase"] == "confirm":
            lives.setdefault(record["process"], set()).add((record["pair"], record["position"] // 2))
    assert all(len(places) == 1 for places in lives.values())  # a process belongs to one arm of one pair
    assert len(lives) == 2 * max(pair for places in lives.values() for pair, _ in places) + 2


def test_failures_are_recorded_and_never_measured_again(tmp_path: Path) -> None:
    def fails(setting: Setting) -> str | None:
        if setting.get("concurrency") == 4:
            return None
        return {("hip", 1): CRASHED, ("hip", 2): HUNG, ("off", 2): DIED_AT_START}.get(
            (str(setting.get("plan")), int(setting.get("hw_queues") or 0))
        )

    def differs(setting: Setting) -> bool:
        return setting.get("plan") == "cuda" and setting.get("hw_queues") == 2

    arms = SimulatedArms(SMALL, EFFECTS, NOISE, fails=fails, differs=differs)
    result = search(tmp_path / "s", SearchPlan(SMALL, GRID, QUICK), arms)
    failed = {d.setting.label: d.outcome for d in result.explored if not d.ok}
    assert failed == {
        "hip, 1 queue, concurrency 1": CRASHED,
        "hip, 2 queues, concurrency 1": HUNG,
        "off, 2 queues, concurrency 1": DIED_AT_START,
        "cuda, 2 queues, concurrency 1": OUTPUTS_DIFFER,
        "cuda, 2 queues, concurrency 4": OUTPUTS_DIFFER,
    }
    assert all(d.why for d in result.explored if not d.ok)
    tried = [d.setting for d in result.explored]
    assert len(tried) == len(set(tried))
    assert [level.failed for level in result.levels] == [4, 1]


def test_outputs_may_differ_where_that_is_allowed(tmp_path: Path) -> None:
    arms = SimulatedArms(SMALL, EFFECTS, NOISE, differs=lambda setting: setting.get("plan") == "cuda")
    result = search(tmp_path / "s", SearchPlan(SMALL, GRID, QUICK, exact=False), arms)
    assert all(decision.ok for decision in result.explored)
    gates = [r for r in read_records(tmp_path / "s" / RECORDS)[0] if r["kind"] == "gate"]
    assert {r["setting"]["plan"] for r in gates if not r["identical"]} == {"cuda"}


def test_a_baseline_that_fails_ends_the_session_with_its_reason(tmp_path: Path) -> None:
    arms = SimulatedArms(SMALL, fails=lambda s: CRASHED if s == SMALL.baseline_for(s) else None)
    with pytest.raises(EngineError, match=r"baseline cannot be measured.*planted to fail"):
        search(tmp_path / "s", SearchPlan(SMALL, GRID, QUICK), arms)


def test_the_front_holds_what_none_beats_in_both(tmp_path: Path) -> None:
    plan = SearchPlan(SMALL, PARETO, QUICK, trials=10)
    result = search(tmp_path / "s", plan, SimulatedArms(SMALL, EFFECTS, SimulatedNoise(sd=0.001)))
    tpots, rates = [p.tpot_ms for p in result.front], [p.tokens_per_s for p in result.front]
    assert tpots == sorted(tpots)
    assert rates == sorted(rates)
    best = {setting.get("concurrency"): setting for setting in (p.setting for p in result.front)}
    assert {c: (s.get("plan"), s.get("hw_queues")) for c, s in best.items()} == {1: ("cuda", 2), 4: ("cuda", 2)}


def test_time_is_a_budget_too(tmp_path: Path) -> None:
    result = search(tmp_path / "s", SearchPlan(SMALL, GRID, QUICK, seconds=1e-6), SimulatedArms(SMALL, EFFECTS, NOISE))
    assert result.trials == 0
    assert [level.verdict for level in result.levels] == [NOTHING_BETTER, NOTHING_BETTER]


def test_where_time_is_short_every_load_gets_its_part_of_the_fresh_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = KnobSpace(
        (Knob("plan", ("off", "hip", "cuda"), LIVE), Knob("concurrency", (1, 16, 100), LOAD)), Setting.of(plan="off")
    )
    close = additive({"plan": {"hip": -0.03, "cuda": -0.03}})
    arms = SimulatedArms(space, close, SimulatedNoise(sd=0.002), seed=3)
    monkeypatch.setattr(session, "Timer", partial(Timer, clock=lambda: arms.simulated_s))
    never_sure = replace(QUICK, alpha=1e-12, confirm_pairs=1000)
    plan = SearchPlan(space, GRID, never_sure, seconds=60.0)
    result = search(tmp_path / "s", plan, arms)
    pairs = [level.confirmation.pairs if level.confirmation else 0 for level in result.levels]
    assert min(pairs) >= max(pairs) - 1 >= 4
    assert {level.confirmation.stopped for level in result.levels if level.confirmation} == {TIME_OVER}
    assert 59.0 < arms.simulated_s < 63.0


class Slow(SimulatedArms):
    """Profiles that take five minutes each."""

    def profile(self, setting: Setting, folder: Path) -> None:
        self.profiled.append(setting)
        self.simulated_s += 300.0

    profiled: list[Setting]


@pytest.mark.parametrize(("seconds", "profiles"), [(None, 4), (700.0, 2), (250.0, 1), (1.0, 0)])
def test_profiles_begin_only_where_there_is_time_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float | None, profiles: int
) -> None:
    arms = Slow(SMALL, EFFECTS, SimulatedNoise(sd=0.0001))
    arms.profiled = []
    monkeypatch.setattr(session, "Timer", partial(Timer, clock=lambda: arms.simulated_s))
    monkeypatch.setattr(session, "record_profiles", partial(record_profiles, clock=lambda: arms.simulated_s))
    search(tmp_path / "s", SearchPlan(SMALL, GRID, QUICK, trials=2, seconds=seconds), arms)
    assert len(arms.profiled) == profiles


class Starts(SimulatedArms):
    """New processes take their time, as one does that holds a GPU's weights."""

    def prepare(self, setting: Setting, *, fresh: bool = False) -> int:
        before = self.lives
        life = super().prepare(setting, fresh=fresh)
        self.simulated_s += 20.0 * (self.lives - before)
        return life


@pytest.mark.parametrize(("seconds", "lives"), [(None, 4), (2000.0, 4), (100.0, 1)])
def test_a_new_process_for_the_fresh_pairs_starts_only_where_there_is_time_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float | None, lives: int
) -> None:
    space = KnobSpace(
        (Knob("plan", ("off", "cuda"), LIVE), Knob("concurrency", (1, 4, 8), LOAD)), Setting.of(plan="off")
    )
    arms = Starts(space, EFFECTS, SimulatedNoise(sd=0.001))
    monkeypatch.setattr(session, "Timer", partial(Timer, clock=lambda: arms.simulated_s))
    monkeypatch.setattr(session, "Stand", partial(Stand, clock=lambda: arms.simulated_s))
    result = search(tmp_path / "s", SearchPlan(space, GRID, QUICK, seconds=seconds), arms)
    assert [level.verdict for level in result.levels] == ["faster"] * 3
    assert arms.lives == lives


def test_progress_counts_to_its_end_and_then_nothing_is_left(tmp_path: Path) -> None:
    told: list[Progress] = []
    arms = SimulatedArms(SMALL, EFFECTS, NOISE)
    run_search(SearchPlan(SMALL, GRID, QUICK), arms, tmp_path / "s", tell=told.append)
    assert [p.done for p in told] == sorted(p.done for p in told)
    assert {p.total for p in told} == {SMALL.size}
    last = [p for p in told if p.text.startswith("profiling")]
    assert {(p.done, p.left_s) for p in last} == {(SMALL.size, 0.0)}
    again: list[Progress] = []
    run_search(
        SearchPlan(SMALL, GRID, QUICK),
        SimulatedArms(SMALL, EFFECTS, NOISE),
        tmp_path / "s",
        tell=again.append,
        resume=True,
    )
    assert again[-1].done == SMALL.size


class Dies(SimulatedArms):
    """Ends the session, as a kill would, at a load."""

    at = 0

    def measure(self, setting: Setting, *, seed: int) -> Measured:
        if self.blocks == self.at:
            raise KeyboardInterrupt
        return super().measure(setting, seed=seed)


@pytest.mark.parametrize("at", [0, 7, 30])
def test_a_session_goes_on_where_it_was_ended(tmp_path: Path, at: int) -> None:
    plan, folder = SearchPlan(SMALL, GRID, QUICK), tmp_path / "s"
    first = Dies(SMALL, EFFECTS, NOISE)
    first.at = at
    with pytest.raises(KeyboardInterrupt):
        search(folder, plan, first)
    before = [r for r in read_records(folder / RECORDS)[0] if r["kind"] == "decision"]
    result = search(folder, plan, SimulatedArms(SMALL, EFFECTS, NOISE), resume=True)
    assert [d.to_json() for d in result.decisions][: len(before)] == [
        {k: v for k, v in r.items() if k not in ("kind", "at")} for r in before
    ]
    settings = [d.setting for d in result.explored]
    assert len(settings) == len(set(settings)) == plan.choices
    pairs = [
        (r["trial"], r["phase"], r["pair"], r["position"])
        for r in read_records(folder / RECORDS)[0]
        if r["kind"] == "block" and r["pair"] >= 0
    ]
    assert len(pairs) == len(set(pairs))


def test_a_finished_session_measures_nothing_when_resumed(tmp_path: Path) -> None:
    plan, folder = SearchPlan(SMALL, TPE, QUICK, trials=6), tmp_path / "s"
    first = search(folder, plan, SimulatedArms(SMALL, EFFECTS, NOISE), Told(EFFECTS))
    arms = SimulatedArms(SMALL, EFFECTS, NOISE)
    again = search(folder, plan, arms, Told(EFFECTS), resume=True)
    assert arms.blocks == 0
    assert [level.to_json() for level in again.levels] == [level.to_json() for level in first.levels]
    with pytest.raises(StoreError, match="a search session, no sweep"):
        read_session(folder)
    with pytest.raises(UsageError, match="trials is 6 there and 7 now"):
        search(folder, replace(plan, trials=7), SimulatedArms(SMALL, EFFECTS, NOISE), resume=True)


def test_records_cut_at_any_byte_are_valid_and_the_session_goes_on(tmp_path: Path) -> None:
    """What a kill can leave is a prefix of the file: the study and all that follows is made from it again."""
    plan, folder = SearchPlan(SMALL, GRID, QUICK, trials=6), tmp_path / "whole"
    search(folder, plan, SimulatedArms(SMALL, EFFECTS, NOISE), Told(EFFECTS))
    data = (folder / RECORDS).read_bytes()
    begun = data.index(b"\n") + 1
    cuts = random.Random(7).sample(range(begun, len(data)), 4)
    for cut in cuts:
        part = tmp_path / f"cut{cut}"
        shutil.copytree(folder, part)
        (part / RECORDS).write_bytes(data[:cut])
        kept = [json.loads(line) for line in data[:cut].split(b"\n")[:-1]]
        result = search(part, plan, SimulatedArms(SMALL, EFFECTS, NOISE), Told(EFFECTS), resume=True)
        assert result.trials == 6
        records, torn = read_records(part / RECORDS)
        assert torn == (not data[:cut].endswith(b"\n"))
        assert records[: len(kept)] == kept
        decided = [r["trial"] for r in records if r["kind"] == "decision"]
        assert len(decided) == len(set(decided))
        assert {level.use.get("plan") for level in result.levels} == {"cuda"}


def test_plans_of_a_search_are_checked() -> None:
    for fields, said in (
        ({"method": "bayes"}, "--search: got 'bayes'"),
        ({"trials": 0}, "--trials"),
        ({"seconds": -1.0}, "--time"),
        ({"seed": -1}, "--seed"),
    ):
        with pytest.raises(UsageError, match=said):
            SearchPlan(SMALL, **fields)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--alpha"):
        Effort(alpha=0.7)
    wide = (Knob("hw_queues", tuple(range(1, 1000)), LIVE), Knob("side_streams", tuple(range(200)), LIVE))
    many = KnobSpace(wide, Setting.of(hw_queues=1, side_streams=0))
    with pytest.raises(UsageError, match="199800 settings"):
        SearchPlan(many)
    assert SearchPlan(SPACE, TPE).budget == 24
    assert SearchPlan(SMALL, TPE).budget == 8
    assert SearchPlan(SMALL, GRID).budget == 10
