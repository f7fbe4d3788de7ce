from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.timeline.records import StepRecord
from dsv4lab.timeline.timeline import Timeline
from dsv4lab.widgets.feed import KEEP_S, Feed, last_forwards, tokens_per_s
from dsv4lab.widgets.pump import Pump


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_drawing_keeps_its_distance_and_happens_once_per_change() -> None:
    clock, drawn = Clock(), []
    pump = Pump(lambda: drawn.append(clock.now), 0.2, clock)
    assert not pump.turn()
    for tick in range(100):
        clock.now = tick / 100
        pump.touch()
        while pump.turn():
            pass
    assert np.allclose(np.diff(drawn), 0.2, atol=0.011)
    clock.now = 5.0
    assert pump.turn()
    assert not pump.turn()


def test_commands_run_in_order_before_drawing() -> None:
    ran: list[str] = []
    pump = Pump(lambda: ran.append("draw"), 0.2, Clock())
    pump.touch()
    pump.submit(lambda: ran.append("a"))
    pump.submit(lambda: ran.append("b"))
    while pump.turn():
        pass
    assert ran == ["a", "b", "draw"]


def test_nothing_runs_after_close() -> None:
    ran: list[str] = []
    pump = Pump(lambda: ran.append("draw"), 0.2, Clock())
    pump.start()
    pump.close()
    pump.submit(lambda: ran.append("a"))
    assert not pump.turn()
    assert ran == []


def step(number: int, start_s: float, tokens: int = 2, mode: str = "decode") -> StepRecord:
    return StepRecord(number, mode, tokens, tokens, int(start_s * 1e9), 10**6, "off", 4)


def timeline(per_step: list[int]) -> Timeline:
    steps = np.repeat(np.arange(len(per_step)), per_step)
    n = len(steps)
    return Timeline.build(
        start_ns=np.arange(n),
        dur_ns=np.ones(n),
        stream=np.zeros(n),
        name=np.zeros(n),
        names=["k"],
        streams=["main"],
        step=steps,
    )


def test_the_feed_forgets_old_forwards() -> None:
    touched: list[int] = []
    feed = Feed(lambda: touched.append(1))
    feed.take((step(0, 0.0), step(1, 10.0)), timeline([3]))
    feed.take((step(2, KEEP_S + 5),), timeline([0]))
    assert [s.step for s in feed.steps()] == [1, 2]
    latest = feed.latest()
    assert latest is not None
    assert len(latest) == 3
    assert len(touched) == 2


@given(st.lists(st.integers(1, 50), min_size=1, max_size=10), st.integers(1, 120))
def test_last_forwards_are_whole_and_fit(per_step: list[int], most: int) -> None:
    shown = last_forwards(timeline(per_step), most)
    kept = np.unique(shown.step)
    assert kept.tolist() == list(range(kept[0], len(per_step)))
    assert len(shown) == sum(per_step[kept[0] :])
    assert len(shown) <= most or len(kept) == 1
    if kept[0]:
        assert sum(per_step[kept[0] - 1 :]) > most


def test_throughput_counts_decoded_tokens_of_the_last_two_seconds() -> None:
    assert tokens_per_s([]) == 0.0
    steps = [step(n, n * 0.1) for n in range(60)] + [step(60, 6.0, 500, "prefill")]
    assert 19 < tokens_per_s(steps) < 21
