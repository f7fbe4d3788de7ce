"""Pictures of any session: changes with their intervals, and latency against throughput."""

from __future__ import annotations

import pytest

from dsv4lab.viz.changes import MOST_ROWS, ChangeRow, Point, changes_figure, points_figure

HOSTILE = "<b>x</b>"


def row(delta: float, verdict: str = "undecided", panel: str = "one", **bounds: float | None) -> ChangeRow:
    low, high = bounds.get("low", delta - 0.01), bounds.get("high", delta + 0.01)
    return ChangeRow(panel, f"{HOSTILE} {delta}", delta, low, high, 7, verdict)


def test_changes_are_sorted_marks_over_their_intervals() -> None:
    fig = changes_figure([row(0.03, "slower"), row(-0.05, "faster"), row(0.001)])
    lines, marks = fig.data[0::2], fig.data[1::2]
    assert [mark.x[0] for mark in marks] == [-5.0, 0.1, 3.0]
    assert [tuple(line.x) for line in lines] == [pytest.approx(x) for x in ((-6, -4), (-0.9, 1.1), (2, 4))]
    assert [mark.marker.symbol for mark in marks] == ["diamond", "circle", "square"]
    assert len({mark.marker.color for mark in marks}) == 3
    assert fig.layout.yaxis.ticktext[0].startswith("&lt;b&gt;")
    assert "-5.00 % (-6.00 % to -4.00 %), 7 pairs" in marks[0].customdata[0]


def test_open_sides_reach_the_end_and_far_losses_sit_there() -> None:
    fig = changes_figure([row(-0.05, "faster", low=None, high=-0.01), row(0.04), row(9.0, low=None, high=None)])
    reach = fig.layout.xaxis.range[1] / 1.04
    assert reach == pytest.approx(15.0)
    assert (fig.data[0].x[0], fig.data[0].line.dash) == (-reach, "dot")
    assert (fig.data[5].x[0], fig.data[5].marker.symbol) == (reach, "triangle-right")
    assert "open" in fig.data[1].customdata[0]


def test_a_panel_per_load_and_a_limit_on_rows() -> None:
    rows = [row(0.001 * n) for n in range(MOST_ROWS + 3)] + [row(0.1, panel="two")]
    fig = changes_figure(rows)
    assert [note.text for note in fig.layout.annotations] == ["one", "two"]
    assert len(fig.layout.yaxis.ticktext) == MOST_ROWS
    assert "3 slower settings not shown" in fig.layout.title.text
    assert "no setting has been compared" in changes_figure([]).layout.annotations[0].text


def test_points_and_their_front() -> None:
    points = [
        Point("concurrency 1", "off", 10.0, 100.0, baseline=True),
        Point("concurrency 1", HOSTILE, 9.0, 110.0),
        Point("concurrency 4", "off", 20.0, 200.0, baseline=True),
        Point("concurrency 4", "bad", 25.0, 150.0),
    ]
    front, one, four = points_figure(points).data
    assert (tuple(front.x), tuple(front.y)) == ((9.0, 20.0), (110.0, 200.0))
    assert (one.name, tuple(one.marker.symbol)) == ("concurrency 1", ("x", "circle"))
    assert tuple(four.y) == (200.0, 150.0)
    assert "<b>&lt;b&gt;" in one.customdata[1]
    assert "nothing was measured" in points_figure([]).layout.annotations[0].text
