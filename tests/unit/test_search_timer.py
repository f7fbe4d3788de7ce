"""A session's time: what is left to explore, what is kept to confirm."""

from __future__ import annotations

import pytest

from dsv4lab.tuning.search.timer import Timer


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
            timer.count(confirming=False)
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
        timer.count(confirming=True)
    assert timer.reserve == pytest.approx(30.0)
    watch.now = 100.0
    assert timer.over()


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
