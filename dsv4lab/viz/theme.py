"""One colour theme for every picture: fixed colours for roles and kinds, and two plotly templates.

Marks use mid-tone colours of the Okabe-Ito set, which stay apart for colour-blind readers and stand out on white and
on near-black. Everything that must differ between light and dark lives in the template, so
``fig.update_layout(template=template("dark"))`` is all it takes to switch a finished figure.
"""

from __future__ import annotations

import html
import re
import zlib
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from dsv4lab.errors import UsageError
from dsv4lab.timeline.timeline import Kind

if TYPE_CHECKING:
    import plotly.graph_objects as go

BLUE: Final = "#2f83c5"
ORANGE: Final = "#e69f00"
GREEN: Final = "#009e73"
PINK: Final = "#cc79a7"
SKY: Final = "#56b4e9"
RED: Final = "#d55e00"
OLIVE: Final = "#a8981a"
VIOLET: Final = "#8a6fc9"
GREY: Final = "#8c929b"
QUIET: Final = "#7b8794"

IDLE: Final = "rgba(140,146,155,0.22)"
GRID: Final = "rgba(140,146,155,0.25)"
FAINT: Final = "rgba(140,146,155,0.12)"
RESERVED: Final = "rgba(140,146,155,0.60)"
READ: Final = "#e4007c"
CACHED: Final = "#b49a72"
SHARED: Final = "#8a6336"

STREAM_COLORS: Final = {"main": BLUE, "side0": ORANGE, "side1": GREEN, "side2": PINK, "side3": VIOLET}
KIND_COLORS: Final = {
    Kind.KERNEL: BLUE,
    Kind.MEMCPY: ORANGE,
    Kind.MEMSET: OLIVE,
    Kind.WAIT: GREY,
    Kind.HOST: VIOLET,
    Kind.ANNOTATION: SKY,
}
# Of the kinds of work in trace.analyse.categories: neighbours in a step differ in lightness as well as in hue.
CATEGORY_COLORS: Final = {
    "communication": RED,
    "copy": "#b98a00",
    "indexer": PINK,
    "compressor": GREEN,
    "attention": BLUE,
    "mHC": VIOLET,
    "MoE": ORANGE,
    "norm/rope/quant": SKY,
    "sampling": OLIVE,
    "GEMM": "#3b5fa8",
    "elementwise": "#6fae9c",
    "other": "#9a8f86",
}
CAUSE_COLORS: Final = {
    "launch-bound": RED,
    "host gap": ORANGE,
    "other stream": VIOLET,
    "kernel gap": SKY,
    "inside graph": GREEN,
    "unknown": GREY,
}
LAYER_COLORS: Final = {0: SKY, 4: ORANGE, 128: GREEN}
CYCLE: Final = (BLUE, ORANGE, GREEN, PINK, SKY, RED, VIOLET, OLIVE)
THEMES: Final = ("light", "dark")
UNUSED_BUTTONS: Final = ("select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d", "sendChartToCloud")

KERNEL_TONES: Final = (
    *(BLUE, ORANGE, GREEN, PINK, SKY, RED, VIOLET, OLIVE),
    *("#5a9bd0", "#b97f00", "#3fae8d", "#b0578a", "#2e9fb5", "#b5713a", "#6a7fd6", "#7f9a3a"),
)
_TEMPLATE_ARGS: Final = re.compile(r"<[^<>]*>")
_FONT: Final = "Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
_INK: Final = {"light": "#1f2933", "dark": "#e4e8ee"}
_MUTED: Final = {"light": "#5b6673", "dark": "#a3adb9"}
_PAPER: Final = {"light": "#ffffff", "dark": "#14181f"}
_RAISED: Final = {"light": "#ffffff", "dark": "#242b35"}


def stream_color(stream: str, number: int = 0) -> str:
    """Colour of a stream: fixed for ``main`` and ``side0..3``, else the ``number``-th of the cycle."""
    return STREAM_COLORS.get(stream, CYCLE[number % len(CYCLE)])


def owner_color(request_id: int) -> str:
    """Colour of a request in pool pictures; stable while the request lives."""
    return CYCLE[request_id % len(CYCLE)]


def kernel_tone(name: str) -> int:
    """Place in :data:`KERNEL_TONES` of a kernel, by its name without template arguments, equal on every machine."""
    bare = name
    while (shorter := _TEMPLATE_ARGS.sub("", bare)) != bare:
        bare = shorter
    return zlib.crc32(bare.encode("utf-8", "replace")) % len(KERNEL_TONES)


def kernel_color(name: str) -> str:
    """Colour of a kernel by its name: see :func:`kernel_tone`."""
    return KERNEL_TONES[kernel_tone(name)]


def fade(color: str, alpha: float) -> str:
    """``#rrggbb`` with an opacity, as ``rgba(r,g,b,a)``."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:g})"


def text(value: object, limit: int = 120) -> str:
    """Untrusted text for a label or hover: shortened to ``limit`` characters and escaped for HTML."""
    raw = str(value)
    shown = raw if len(raw) <= limit else raw[: limit - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return html.escape(shown, quote=False)


def check_theme(theme: str) -> str:
    """``theme`` if it is known. Raises :class:`UsageError` naming the choices otherwise."""
    if theme not in THEMES:
        raise UsageError(f"theme {theme!r} is unknown, it takes one of: {', '.join(THEMES)}")
    return theme


def paper_color(theme: str) -> str:
    """Background colour of pictures in ``theme``."""
    return _PAPER[check_theme(theme)]


def ink_color(theme: str) -> str:
    """Text colour of pictures in ``theme``."""
    return _INK[check_theme(theme)]


def muted_color(theme: str) -> str:
    """Colour of secondary text in ``theme``."""
    return _MUTED[check_theme(theme)]


def raised_color(theme: str) -> str:
    """Background of what lies over a picture in ``theme``."""
    return _RAISED[check_theme(theme)]


@cache
def template(theme: str) -> go.layout.Template:
    """The plotly template of ``theme``, ``light`` or ``dark``."""
    import plotly.graph_objects as go  # not with the colours: explorers draw without it

    check_theme(theme)
    axis = _axis(theme)
    layout: dict[str, Any] = {
        "font": {"family": _FONT, "size": 12, "color": _INK[theme]},
        "title": {
            "font": {"size": 15},
            "x": 0.0,
            "xref": "paper",
            "xanchor": "left",
            "yref": "container",
            "yanchor": "bottom",  # the one anchor that keeps the first line in place however many follow
        },
        "paper_bgcolor": _PAPER[theme],
        "plot_bgcolor": _PAPER[theme],
        "colorway": list(CYCLE),
        "xaxis": axis,
        "yaxis": axis,
        "hoverlabel": {
            "bgcolor": _RAISED[theme],
            "bordercolor": GRID,
            "font": {"family": _FONT, "size": 12, "color": _INK[theme]},
            "align": "left",
            "namelength": -1,
        },
        "legend": {"orientation": "h", "font": {"size": 11, "color": _MUTED[theme]}, "itemsizing": "constant"},
        "annotationdefaults": {"font": {"color": _MUTED[theme], "size": 11}, "showarrow": False},
        "margin": {"l": 76, "r": 16, "t": 40, "b": 44},
        "modebar": {
            "bgcolor": "rgba(0,0,0,0)",
            "color": GREY,
            "activecolor": BLUE,
            "remove": list(UNUSED_BUTTONS),
        },
        "bargap": 0.3,
        "hovermode": "closest",
        "dragmode": "zoom",
    }
    small = {"size": 11, "color": _MUTED[theme]}
    bar = {"thickness": 12, "outlinewidth": 0, "tickfont": small, "title": {"side": "right", "font": small}}
    heat = {"textfont": {"color": _INK[theme]}, "colorbar": bar}
    return go.layout.Template(layout=layout, data={"heatmap": [heat]})


def _axis(theme: str) -> dict[str, Any]:
    return {
        "gridcolor": GRID,
        "zeroline": False,
        "linecolor": GRID,
        "ticks": "",
        "ticklabelstandoff": 4,
        "automargin": True,
        "title": {"font": {"size": 12, "color": _MUTED[theme]}, "standoff": 8},
        "tickfont": {"size": 11, "color": _MUTED[theme]},
    }
