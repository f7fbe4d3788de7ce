"""What a prediction leans on: a tornado of the gain when each assumed value is halved and doubled."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import plotly.graph_objects as go

from dsv4lab.queues.sensitivity import Lean
from dsv4lab.queues.values import SWITCH
from dsv4lab.viz import theme as themes
from dsv4lab.viz.sheet import Heading, Sheet, empty_sheet

TITLE = "What the prediction leans on"
MOST = 16
ROW = 34
_HOVER = "%{customdata}<extra></extra>"


def sensitivity_figure(leans: Sequence[Lean], gain: float, *, theme: str = "light") -> go.Figure:
    """Draw the rows of :func:`dsv4lab.queues.sensitivity.sensitivity` around ``gain``, the predicted saving (0 to 1;
    below 0 the plan costs time).

    A bar runs from the gain with the value halved to the gain with it doubled; of a switch, from one position to the
    other. Left of the zero line the recommendation is the opposite. At the right stands the value at which it turns.
    The 16 values with the widest bars are drawn, the widest on top.
    """
    return sensitivity_sheet(leans, gain).figure(theme)


def sensitivity_sheet(leans: Sequence[Lean], gain: float) -> Sheet:
    """The picture of :func:`sensitivity_figure` as plain data."""
    if not leans:
        return empty_sheet(TITLE, "no assumed value moves this answer by 0.2 points when it is halved or doubled")
    rows = sorted(leans, key=_width)[-MOST:]
    word = "saves" if gain >= 0 else "costs"
    said = f"the plan {word} {abs(gain):.1%} of the step; bars: assumed values halved and doubled, one at a time"
    sheet = Sheet(Heading(TITLE, said, legend=True), [ROW * len(rows) + 12])
    labels = [_label(lean) for lean in rows]
    for name, color, ends in (
        ("halved, or switched off", themes.ORANGE, [lean.low for lean in rows]),
        ("doubled, or switched on", themes.BLUE, [lean.high for lean in rows]),
    ):
        sheet.add(
            "bar",
            0,
            orientation="h",
            name=name,
            y=labels,
            base=[100 * gain] * len(rows),
            x=[100 * (end - gain) for end in ends],
            marker={"color": color, "line": {"width": 0}},
            width=0.6,
            customdata=[_hover(lean, gain) for lean in rows],
            hovertemplate=_HOVER,
        )
    _axes(sheet, rows, labels, gain)
    return sheet


def _axes(sheet: Sheet, rows: Sequence[Lean], labels: Sequence[str], gain: float) -> None:
    ends = [0.0, 100 * gain, *(100 * end for lean in rows for end in (lean.low, lean.high))]
    low, high = min(ends), max(ends)
    room = 0.08 * max(high - low, 0.5)
    sheet.x_axis(0, range=[low - room, high + room], title={"text": "time saved by the plan (%)"}, zeroline=False)
    sheet.y_axis(0, type="category", showgrid=False, automargin=True, range=[-0.6, len(rows) - 0.4])
    sheet.layout["barmode"] = "overlay"
    sheet.layout["margin"] |= {"r": 128}
    lines = ((0.0, themes.RED, "solid"), (100 * gain, themes.GREY, "dot"))
    sheet.layout["shapes"] = [
        {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "xref": "x", "yref": "paper", "line": _line(color, dash)}
        for x, color, dash in lines
    ]
    sheet.layout["annotations"] = [
        {
            "text": themes.text(_turn(lean), 24),
            "x": 1.01,
            "y": label,
            "xref": "paper",
            "yref": "y",
            "xanchor": "left",
            "showarrow": False,
            "font": {"size": 11, "color": themes.RED if lean.flips_at is not None else themes.QUIET},
        }
        for lean, label in zip(rows, labels, strict=True)
    ]


def _line(color: str, dash: str) -> dict[str, object]:
    return {"color": color, "width": 1.5, "dash": dash}


def _width(lean: Lean) -> tuple[float, str]:
    return abs(lean.high - lean.low), lean.name


def _label(lean: Lean) -> str:
    now = ("on" if lean.value else "off") if lean.unit == SWITCH else f"{lean.value:g} {lean.unit}".strip()
    return f"{themes.text(lean.name, 28)} ({themes.text(now, 14)})"


def _turn(lean: Lean) -> str:
    if lean.flips_at is None:
        return "never turns" if lean.unit == SWITCH else "turns beyond \N{MULTIPLICATION SIGN}8"
    if lean.unit == SWITCH:
        return f"turns when {'on' if lean.flips_at else 'off'}"
    return f"turns at {lean.flips_at:.3g} (\N{MULTIPLICATION SIGN}{lean.flips_at / lean.value:.2g})"


def _hover(lean: Lean, gain: float) -> str:
    words = ("off", "on") if lean.unit == SWITCH else ("halved", "doubled")
    source = "<br>".join(textwrap.wrap(themes.text(lean.source, 240), 60))
    return (
        f"<b>{themes.text(lean.name, 40)}</b>, {lean.status}<br>{source}<br>"
        f"saved: {words[0]} {lean.low:+.1%}, now {gain:+.1%}, {words[1]} {lean.high:+.1%}<br>{_turn(lean)}"
    )
