from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4lab.timeline.records import StepRecord
from dsv4lab.viz.tpot_ribbon import tpot_ribbon_figure, tpot_ribbon_sheet


def steps(
    count: int, every_ms: float, *, plan: str = "off", queues: int = 4, after_s: float = 0.0, first: int = 0
) -> list[StepRecord]:
    return [
        StepRecord(
            first + n, "decode", 2, 2, int((after_s + n * every_ms / 1e3) * 1e9), int(every_ms * 0.8e6), plan, queues
        )
        for n in range(count)
    ]


def test_nothing_decoded_yet() -> None:
    prefill = StepRecord(0, "prefill", 9, 1, 0, 5, "off", 4)
    for few in ([], [prefill]):
        assert "start decoding" in tpot_ribbon_figure(few).layout.annotations[0].text


def test_tpot_is_end_to_end_not_the_forward_alone() -> None:
    sheet = tpot_ribbon_sheet(steps(500, 10.0))
    median = np.asarray(next(t for t in sheet.data if t["name"] == "median")["y"])
    assert median[5:] == pytest.approx(10.0)
    assert "median 10.00 ms" in sheet.layout["title"]["text"]
    assert sheet.layout["yaxis"]["title"]["text"] == "ms per token"


def test_a_change_of_settings_is_marked_and_compared() -> None:
    both = steps(500, 10.0) + steps(500, 8.0, plan="hip", after_s=5.0, first=500)
    sheet = tpot_ribbon_sheet(both)
    assert len(sheet.layout["shapes"]) == 1
    assert [n["text"] for n in sheet.layout["annotations"]] == ["off · 4q · 10.00 ms", "hip · 4q · 8.00 ms"]
    assert "-20.0 % against the settings before" in sheet.layout["title"]["text"]


def test_short_glitches_are_no_change() -> None:
    load = (
        steps(500, 10.0) + steps(3, 9.0, queues=2, after_s=5.0, first=500) + steps(500, 10.0, after_s=5.03, first=503)
    )
    assert tpot_ribbon_sheet(load).layout["shapes"] == []


def test_a_pause_leaves_a_hole() -> None:
    sheet = tpot_ribbon_sheet(steps(200, 10.0) + steps(200, 10.0, after_s=10.0))
    median = np.asarray(sheet.data[-1]["y"])
    assert np.isnan(median).sum() == 1
    assert np.isnan(np.asarray(sheet.data[0]["x"])).sum() == 2


def test_old_forwards_are_left_out() -> None:
    sheet = tpot_ribbon_sheet(steps(100, 10.0, plan="old") + steps(100, 10.0, after_s=60.0))
    assert sheet.layout["shapes"] == []
    assert sheet.layout["xaxis"]["range"] == [-30.0, 0]


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.integers(0, 10**9), st.sampled_from(["off", "<b>"]), st.integers(1, 3), st.booleans()), max_size=40
    )
)
def test_any_history_can_be_drawn(history: list[tuple[int, str, int, bool]]) -> None:
    made, now = [], 0
    for n, (dur, plan, requests, decode) in enumerate(history):
        made.append(StepRecord(n, "decode" if decode else "prefill", requests, requests, now, dur, plan, 1))
        now += dur
    fig = tpot_ribbon_figure(made)
    assert "<b><" not in fig.layout.title.text
