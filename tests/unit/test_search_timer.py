"""A session's time: what is left to explore, what is kept to confirm."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from dsv4lab.tuning.knobs import LIVE, LOAD, Knob, KnobSpace, Setting
from dsv4lab.tuning.search import session
from dsv4lab.tuning.search.forecast import Forecast
from dsv4lab.tuning.search.plan import GRID, Effort, SearchPlan
from dsv4lab.tuning.search.session import run_search
from dsv4lab.tuning.search.timer import Timer
from dsv4lab.tuning.simulated_arms import SimulatedArms

SPACE = KnobSpace((Knob("plan", ("off", "hip"), LIVE), Knob("concurrency", (1,), LOAD)), Setting.of(plan="off"))
ONE, FOUR, SIXTEEN = (Setting.of(concurrency=count) for count in (1, 4, 16))


class Watch:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def timed(seconds: float | None, before: float = 0.0, pairs: int = 10) -> tuple[Timer, Watch]:
    watch = Watch()
    return Timer(seconds, before, pairs, watch), watch


def trial(timer: Timer, watch: Watch, blocks: int, seconds: float) -> None:
    with timer.trial():
        for _ in range(blocks):
            timer.count(ONE, seconds / blocks, confirming=False)
        watch.now += seconds


def test_confirming_gets_its_time_at_the_end() -> None:
    timer, watch = timed(100.0)
    assert timer.left(5) == 100.0
    trial(timer, watch, blocks=12, seconds=24.0)  # 2 s a block: 20 blocks to confirm take 40 s
    assert timer.reserve == pytest.approx(40.0)
    assert not timer.exploring_over()
    assert timer.left(1) == pytest.approx(24.0 + 40.0)
    assert timer.left(9) == pytest.approx(76.0)  # the session's end comes first
    watch.now = 61.0
    assert timer.exploring_over()
    assert not timer.over()
    for _ in range(5):
        timer.count(ONE, 2.0, confirming=True)
    assert timer.reserve == pytest.approx(30.0)
    watch.now = 100.0
    assert timer.over()
    timer.still_to_confirm(0.5)
    assert timer.reserve == pytest.approx(20.0)
    timer.still_to_confirm(0.0)
    assert timer.reserve == 0.0


def test_seconds_set_aside_do_not_count() -> None:
    watch, aside = Watch(), Watch()
    timer = Timer(30.0, 0.0, 10, watch, aside)
    watch.now, aside.now = 40.0, 15.0
    assert timer.elapsed == 25.0
    assert not timer.over()
    watch.now = 45.0
    assert timer.over()


@pytest.mark.parametrize(("seconds", "aside", "trials"), [(1e-6, 1e6, 1), (60.0, -1e6, 0)])
def test_a_session_s_time_begins_before_its_forecasts_and_leaves_out_what_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, aside: float, trials: int
) -> None:
    known: list[Forecast] = []
    known_before: list[Forecast] = []

    def begin(*given: Any, **options: Any) -> Timer:
        known_before.extend(known)
        return Timer(*given, **options)

    monkeypatch.setattr(session, "Timer", begin)

    class Prior:
        name = "one setting"

        def forecasts(self, space: KnobSpace) -> list[Forecast]:
            known.extend(Forecast(setting, 0.0) for setting in space.grid())
            return known

    result = run_search(
        SearchPlan(SPACE, GRID, Effort(explore_pairs=1, confirm_pairs=1), seconds=seconds),
        SimulatedArms(SPACE),
        tmp_path / "s",
        prior=Prior(),
        aside=lambda: aside,
    )
    assert (result.trials, known_before, len(known)) == (trials, [], 2)


def test_never_more_than_half_is_kept_and_earlier_lives_count() -> None:
    timer, watch = timed(100.0, before=30.0, pairs=1000)
    trial(timer, watch, blocks=2, seconds=10.0)
    assert timer.elapsed == 40.0
    assert timer.reserve == 50.0
    watch.now = 20.0
    assert timer.exploring_over()


def test_without_a_bound_nothing_is_ever_over() -> None:
    timer, watch = timed(None)
    assert timer.left(3) is None
    trial(timer, watch, blocks=4, seconds=8.0)
    assert timer.left(3) == pytest.approx(3 * 8.0 + 20 * 2.0)
    watch.now = 1e9
    assert not timer.over()
    assert not timer.exploring_over()


def test_loads_share_what_is_left_by_what_their_blocks_take() -> None:
    timer, watch = timed(100.0)
    timer.count(ONE, 9.0, confirming=False)
    timer.count(ONE, 1.0, confirming=False)  # the first had to compile
    timer.count(FOUR, 3.0, confirming=False)
    timer.count(FOUR, math.nan, confirming=False)
    watch.now = 20.0
    first = timer.share(ONE, (ONE, FOUR))
    assert first.left_s() == pytest.approx(20.0)
    half = first.part(0.5)
    watch.now = 29.0
    assert (half.over(), half.left_s()) == (False, pytest.approx(1.0))
    watch.now = 30.0
    assert half.over()
    assert not first.over()
    assert timer.share(FOUR, (FOUR,)).left_s() == pytest.approx(70.0)  # what the first left is the others'
    assert timer.share(SIXTEEN, (FOUR, SIXTEEN)).left_s() == pytest.approx(35.0)  # no block yet: as the slowest
    watch.now = 130.0
    assert timer.share(FOUR, (FOUR,)).over()
    assert timer.whole().part(0.5).left_s() == 0.0


def test_a_session_without_a_bound_has_no_parts() -> None:
    timer, watch = timed(None)
    watch.now = 1e9
    assert timer.share(ONE, (ONE, FOUR)).part(0.5).left_s() == math.inf
