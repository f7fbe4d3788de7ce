"""Pictures of the labs: predictions, accepted drafts, step time by queues, parallel coordinates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.errors import UsageError
from dsv4lab.timeline.records import BusySummary, StreamBusy, SweepRow
from dsv4lab.viz.acceptance import acceptance_figure
from dsv4lab.viz.predicted import MOST, Predicted, predicted_figure, predicted_sheet
from dsv4lab.viz.queue_sweep import queue_sweep_figure
from dsv4lab.viz.tuning_lines import AXES, parallel_figure, parallel_sheet

HOSTILE = "<img src=x onerror=alert(1)>"


def row(plan: str, queues: int, level: int, tpot: float, delta: float | None, hidden: int = 0) -> SweepRow:
    streams = (StreamBusy("main", None, "main", 10, 10, 0, 1), StreamBusy("side0", None, "side", 4, 4, hidden, 1))
    busy = BusySummary(20, 10, 14, 14, hidden, streams, ())
    return SweepRow(plan, queues, level, 50.0, tpot, tpot, tpot, 1000 / tpot, delta, busy)


def test_predictions_stand_beside_off_and_the_setting_before() -> None:
    points = [Predicted("a", "", 10.0, 10.0), Predicted("b", "", 9.0, 10.0)]
    figure = predicted_figure(points)
    assert list(figure.data[0].y) == [10.0, 9.0]
    title = figure.layout.title.text
    assert "-10.0 % against off" in title
    assert "-10.0 % against the setting before" in title
    assert "not measured" in title
    assert "simulating" in predicted_figure([]).layout.annotations[0].text


@given(st.lists(st.tuples(st.floats(0.1, 1e3), st.floats(0.1, 1e3)), min_size=1, max_size=30), st.text(max_size=50))
def test_only_the_latest_predictions_are_drawn(values: list[tuple[float, float]], label: str) -> None:
    sheet = predicted_sheet([Predicted(label + HOSTILE, HOSTILE, a, b) for a, b in values])
    assert len(sheet.data[0]["y"]) == min(MOST, len(values))
    assert "<img" not in sheet.figure("dark").to_json()


def test_acceptance_by_place() -> None:
    figure = acceptance_figure([0.8, 0.5], 1.3, 40)
    assert list(figure.data[0].y) == [80.0, 50.0]
    assert "1.30 of 2 drafts a step, so 2.30 tokens" in figure.layout.title.text
    assert "no draft" in acceptance_figure([], 0.0, 0).layout.annotations[0].text


def test_the_fastest_queue_count_is_named() -> None:
    figure = queue_sweep_figure([1, 2, 4], {"hip": [3e6, 2e6, 2e6], "off": [3e6] * 3}, 4)
    assert "hip is fastest from 2 queues" in figure.layout.title.text
    assert figure.layout.shapes[0].x0 == 2


def test_a_line_for_every_setting_through_every_axis() -> None:
    rows = [row("off", 1, 1, 10.0, None), row("hip", 2, 4, 9.0, -0.1, 3), row(HOSTILE, 2, 4, 11.0, 0.1)]
    figure = parallel_figure(rows, theme="dark")
    assert [len(trace.x) for trace in figure.data] == [len(AXES)] * 3
    assert "<img" not in figure.to_json()
    last = parallel_sheet(rows, rows[1]).data[-1]
    assert last["line"]["width"] == 3
    with pytest.raises(UsageError, match="light, dark"):
        parallel_figure(rows, theme="blue")
    assert parallel_figure([]).layout.annotations[0].text == "the session has no measured rows"


@given(
    st.lists(
        st.tuples(st.sampled_from(["off", "hip"]), st.integers(1, 4), st.integers(1, 4), st.floats(1, 99)), max_size=9
    )
)
def test_places_stay_between_the_ends(cells: list[tuple[str, int, int, float]]) -> None:
    rows = [row(plan, queues, level, tpot, None if plan == "off" else 0.01) for plan, queues, level, tpot in cells]
    for trace in parallel_sheet(rows).data:
        assert all(0.0 <= y <= 1.0 for y in trace["y"])
