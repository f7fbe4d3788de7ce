"""What figures share: time units, titles, empty states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from dsv4lab.viz import theme as themes

_ONE_LINE, _TWO_LINES, _LEGEND, _PANEL = 44, 52, 26, 24
_SMALL = f"<br><span style='font-size:12px;color:{themes.QUIET}'>{{}}</span>"
_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """A unit for one axis: ``ns`` nanoseconds are one ``name``."""

    ns: int
    name: str

    def scale(self, values_ns: ArrayLike) -> NDArray[np.float64]:
        """``values_ns`` in this unit, ``float64``."""
        return np.asarray(values_ns, dtype=np.float64) / self.ns

    def text(self, value_ns: float) -> str:
        """``12.3 ms``."""
        return f"{_short(value_ns / self.ns)} {self.name}"


def time_unit(span_ns: float) -> TimeUnit:
    """The largest unit that ``span_ns`` fills at least twice; nanoseconds for less."""
    for ns, name in _UNITS:
        if span_ns >= 2 * ns:
            return TimeUnit(ns, name)
    return TimeUnit(1, "ns")


def time_text(value_ns: float) -> str:
    """A duration in the unit that suits it."""
    return time_unit(abs(value_ns)).text(value_ns)


def _short(value: float) -> str:
    digits = 2 if abs(value) < 10 else 1
    return f"{value:,.{digits}f}"


@dataclass(frozen=True, slots=True)
class Heading:
    """What stands above a figure, top to bottom. ``title`` and ``subtitle`` are taken as escaped text."""

    title: str
    subtitle: str = ""
    legend: bool = False  # a legend row
    panels: bool = False  # the figure has panel titles

    @property
    def pixels(self) -> int:
        """Height of the heading."""
        return self.lines + _LEGEND * self.legend + _PANEL * self.panels

    @property
    def lines(self) -> int:
        """Height of title and subtitle."""
        return _TWO_LINES if self.subtitle else _ONE_LINE


def dress(fig: go.Figure, head: Heading, *, theme: str, body: int, **layout: Any) -> go.Figure:
    """Give ``fig`` its template, its heading and ``body`` pixels for plots and axis labels below it; returns it."""
    height = head.pixels + body
    fig.update_layout(
        template=themes.template(theme),
        title={"text": f"<b>{head.title}</b>" + (_SMALL.format(head.subtitle) if head.subtitle else "")},
        height=height,
        margin={"t": head.pixels},
        showlegend=head.legend,
        **layout,
    )
    if head.legend:
        top = 1 - (head.lines - 2) / height
        fig.update_layout(legend={"x": 0.0, "xanchor": "left", "y": top, "yref": "container", "yanchor": "top"})
    return fig


def empty_figure(title: str, why: str, theme: str) -> go.Figure:
    """A figure that says why there is nothing to draw."""
    fig = go.Figure()
    dress(fig, Heading(title), theme=theme, body=120)
    fig.update_xaxes(visible=False)
    fig.update_yaxes(visible=False)
    fig.add_annotation(text=why, x=0.5, y=0.5, xref="paper", yref="paper", font={"size": 13})
    return fig


def panel_titles(fig: go.Figure, *, left: bool) -> None:
    """Set the titles that ``make_subplots`` wrote in the theme's size, at the left edge of the figure if ``left``."""
    for note in fig.layout.annotations:
        note.update(font={"size": 12}, **({"x": 0.0, "xanchor": "left"} if left else {}))
