"""A grid of pictures in the browser that are changed in place: no flicker, and only what changed is sent.

plotly's own ``FigureWidget`` sends 5 MB of library with every figure and validates every update; a board sends the
library once a page and patches of plain data. It follows the theme of JupyterLab, the width of the page, and holds a
picture still while the pointer is on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

import anywidget
import traitlets
from plotly.offline import get_plotlyjs

from dsv4lab.errors import UsageError
from dsv4lab.viz import theme as themes
from dsv4lab.viz.sheet import Sheet
from dsv4lab.widgets import front, wire

BOARD_THEMES = ("auto", *themes.THEMES)
PATIENCE_S = 1.0


class Board(anywidget.AnyWidget):
    """Pictures by name, laid out in the order of ``cells``: pairs of a name and whether it takes the whole width.

    The browser says when it has drawn what it was sent, and only then gets the next: a slow page skips drawings and
    stays responsive. Where no answer comes (no page, or a kernel that is busy with a cell) it gets one a second.
    ``on_click(cell, trace, point)`` is told of clicks on points of traces that have a text as ``meta``.
    """

    _esm = front.module("board.js")
    _css = front.style("board.css")
    cells: traitlets.List[Any] = traitlets.List().tag(sync=True)
    theme = traitlets.Unicode("auto").tag(sync=True)

    def __init__(
        self, cells: Sequence[tuple[str, bool]], theme: str = "auto", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._lock = Lock()
        self._wanted: dict[str, Sheet] = {}
        self._sent: dict[str, Sheet] = {}
        self.on_click: Callable[[str, str, int], None] | None = None
        self._asked_at: float | None = None  # when the drawing was sent that the browser has not answered yet
        super().__init__(cells=[list(cell) for cell in cells], theme=theme)
        self.on_msg(self._answer)

    @traitlets.validate("theme")
    def _known_theme(self, proposal: Mapping[str, Any]) -> Any:
        if proposal["value"] not in BOARD_THEMES:
            raise UsageError(f"theme {proposal['value']!r} is unknown, it takes one of: {', '.join(BOARD_THEMES)}")
        return proposal["value"]

    @property
    def sheets(self) -> Mapping[str, Sheet]:
        """What was asked for last, by name."""
        return dict(self._wanted)

    def show(self, sheets: Mapping[str, Sheet]) -> None:
        """Draw these pictures as soon as the browser is ready. Safe on any thread."""
        with self._lock:
            self._wanted |= sheets
            if self._asked_at is None or self._clock() - self._asked_at >= PATIENCE_S:
                self._flush()

    def save_file(self, name: str, data: bytes, mime: str) -> None:
        """Hand ``data`` to the browser as a download called ``name``."""
        self.send({"kind": "save", "name": name, "type": mime}, buffers=[data])

    def save_images(self, name: str, form: str) -> None:
        """Have the browser save every picture as a file of ``form``, ``png`` or ``svg``, in the colours of the page."""
        self.send({"kind": "images", "format": form, "name": name})

    def _flush(self) -> None:
        whole: dict[str, Any] = {}
        patches: dict[str, Any] = {}
        whole_buffers: list[bytes] = []
        patch_buffers: list[bytes] = []
        for name, sheet in self._wanted.items():
            old = self._sent.get(name)
            if old is sheet:
                continue
            change = wire.patch(old, sheet, patch_buffers) if old is not None else None
            if change is None:
                whole[name] = wire.full(sheet, whole_buffers)
            elif not wire.is_empty(change):
                patches[name] = change
        self._sent = dict(self._wanted)
        if whole:
            self._send_full(whole, whole_buffers)
        if patches:
            self.send({"kind": "patch", "cells": patches}, buffers=patch_buffers)
        self._asked_at = self._clock() if whole or patches else None

    def _send_full(self, cells: Mapping[str, Any], buffers: list[bytes]) -> None:
        templates = {name: themes.template(name).to_plotly_json() for name in themes.THEMES}
        self.send({"kind": "full", "cells": cells, "templates": templates}, buffers=buffers)

    def _answer(self, _widget: object, message: Mapping[str, Any], _buffers: object) -> None:
        kind = message.get("kind")
        if kind == "need-plotly":
            self.send({"kind": "plotly"}, buffers=[get_plotlyjs().encode()])
            return
        if kind == "click":
            if self.on_click is not None:
                self.on_click(str(message.get("cell")), str(message.get("trace")), int(message.get("point", -1)))
            return
        with self._lock:
            if kind == "hello":
                self._sent = {}
            self._flush()

    def __repr__(self) -> str:
        return f"<Board of {len(self.cells)} pictures>"
