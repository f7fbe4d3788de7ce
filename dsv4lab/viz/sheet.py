"""A figure in the making, as plain data: cheap enough to rebuild several times a second.

Building plotly graph objects costs 50 to 150 ms a picture; the same picture as dictionaries costs one or two. Live
views compare two sheets and send what changed; everything else calls :meth:`Sheet.figure` once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go

from dsv4lab.viz import theme as themes

BOTTOM = 44
_FIRST_LINE = 24
_ONE_LINE, _TWO_LINES, _LEGEND, _PANEL = 44, 52, 26, 24
_SMALL = f"<br><span style='font-size:12px;color:{themes.QUIET}'>{{}}</span>"


@dataclass(frozen=True, slots=True)
class Heading:
    """What stands above a figure, top to bottom. ``title`` and ``subtitle`` are taken as escaped text."""

    title: str
    subtitle: str = ""
    legend: bool = False  # a legend row
    panels: bool = False  # the panels have titles

    @property
    def pixels(self) -> int:
        """Height of the heading."""
        return self.lines + _LEGEND * self.legend + _PANEL * self.panels

    @property
    def lines(self) -> int:
        """Height of title and subtitle."""
        return _TWO_LINES if self.subtitle else _ONE_LINE


@dataclass(slots=True)
class Sheet:
    """Panels, each with its own axes, stacked (``heights`` has several) or side by side (``columns`` above 1).

    ``heights`` are pixels of the plots, top to bottom, and ``gap`` the pixels between them. ``titles`` are panel
    titles, taken as escaped text. ``data`` and ``layout`` are what plotly takes.
    """

    head: Heading
    heights: Sequence[int]
    gap: int = 0
    columns: int = 1
    titles: Sequence[str] = ()
    shared_x: bool = False
    shared_y: bool = False
    data: list[dict[str, Any]] = field(default_factory=list)
    layout: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        body = sum(self.heights) + self.gap * (len(self.heights) - 1)
        height = self.head.pixels + body + BOTTOM
        second = _SMALL.format(self.head.subtitle) if self.head.subtitle else ""
        self.layout |= {
            "title": {"text": f"<b>{self.head.title}</b>{second}", "y": 1 - _FIRST_LINE / height},
            "height": height,
            "margin": {"t": self.head.pixels, "b": BOTTOM},
            "showlegend": self.head.legend,
        }
        if self.head.legend:
            top = 1 - (self.head.lines - 2) / height
            self.layout["legend"] = {"x": 0.0, "xanchor": "left", "y": top, "yref": "container", "yanchor": "top"}
        for panel in range(self.panels):
            self._place(panel, body)

    @property
    def panels(self) -> int:
        """Number of panels."""
        return len(self.heights) * self.columns

    def _place(self, panel: int, body: int) -> None:
        row, column = divmod(panel, self.columns)
        above = sum(self.heights[:row]) + self.gap * row
        top, bottom = 1 - above / body, 1 - (above + self.heights[row]) / body
        space = min(0.04, 0.5 / self.columns)
        width = (1 - space * (self.columns - 1)) / self.columns
        left = column * (width + space)
        name = _suffix(panel)
        self.layout[f"xaxis{name}"] = {"domain": [left, left + width], "anchor": f"y{name}"}
        self.layout[f"yaxis{name}"] = {"domain": [max(0.0, bottom), min(1.0, top)], "anchor": f"x{name}"}
        if self.shared_x and row < len(self.heights) - 1:
            self.x_axis(panel, matches=f"x{_suffix(self.panels - 1)}", showticklabels=False)
        if self.shared_y and column:
            self.y_axis(panel, matches="y", showticklabels=False)
        if panel < len(self.titles):
            x, anchor = (0.0, "left") if self.columns == 1 else (left + width / 2, "center")
            note = {
                "x": x,
                "xanchor": anchor,
                "y": min(1.0, top),
                "yanchor": "bottom",
                "xref": "paper",
                "yref": "paper",
            }
            note |= {"text": self.titles[panel], "font": {"size": 12}, "showarrow": False}
            self.layout.setdefault("annotations", []).append(note)

    def add(self, kind: str, panel: int = 0, /, **properties: Any) -> None:
        """Add a trace of plotly type ``kind`` to ``panel``."""
        name = _suffix(panel)
        self.data.append({"type": kind, "xaxis": f"x{name}", "yaxis": f"y{name}", **properties})

    def x_axis(self, panel: int, /, **properties: Any) -> None:
        """Set properties of the x axis of ``panel``."""
        self.layout[f"xaxis{_suffix(panel)}"] |= properties

    def y_axis(self, panel: int, /, **properties: Any) -> None:
        """Set properties of the y axis of ``panel``."""
        self.layout[f"yaxis{_suffix(panel)}"] |= properties

    def figure(self, theme: str) -> go.Figure:
        """The sheet as a plotly figure in ``theme``."""
        layout: Mapping[str, Any] = {"template": themes.template(theme), **self.layout}
        return go.Figure(data=self.data, layout=layout)


def _suffix(panel: int) -> str:
    return str(panel + 1) if panel else ""


def empty_sheet(title: str, why: str) -> Sheet:
    """A sheet that says why there is nothing to draw."""
    sheet = Sheet(Heading(title), [76])
    sheet.x_axis(0, visible=False)
    sheet.y_axis(0, visible=False)
    note = {"text": why, "x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper", "font": {"size": 13}, "showarrow": False}
    sheet.layout["annotations"] = [note]
    return sheet
