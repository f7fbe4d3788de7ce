"""A table that sorts, takes the keyboard, and says which row is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anywidget
import traitlets

from dsv4lab.widgets import front


class RowTable(anywidget.AnyWidget):
    """Rows of texts under headings. Each cell is ``[text, number]``; columns sort by number where there is one.

    ``on_choose(row)`` is told which row was chosen in the page, counted from 0 in the order given.
    """

    _esm = front.module("row_table.js")
    _css = front.style("row_table.css")
    columns: traitlets.List[Any] = traitlets.List().tag(sync=True)
    rows: traitlets.List[Any] = traitlets.List().tag(sync=True)
    marks: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    chosen = traitlets.Int(-1).tag(sync=True)
    palettes: traitlets.Dict[str, Any] = traitlets.Dict(front.palettes()).tag(sync=True)
    theme = traitlets.Unicode("auto").tag(sync=True)

    def __init__(self, columns: Sequence[tuple[str, str]], theme: str = "auto") -> None:
        """``columns`` are headings and what they mean."""
        self.on_choose: Callable[[int], None] | None = None
        super().__init__(columns=[list(column) for column in columns], theme=theme)
        self.on_msg(self._hear)

    def show(self, rows: Sequence[Sequence[tuple[str, float | None]]], marks: Mapping[int, str], chosen: int) -> None:
        """Show ``rows``; ``marks`` are classes of some (``best``, ``control``)."""
        self.rows = [[list(cell) for cell in row] for row in rows]
        self.marks = {str(row): mark for row, mark in marks.items()}
        self.chosen = chosen

    def _hear(self, _widget: object, message: Mapping[str, Any], _buffers: object) -> None:
        row = message.get("row") if isinstance(message, dict) else None
        if isinstance(row, int) and 0 <= row < len(self.rows) and self.on_choose is not None:
            self.on_choose(row)

    def __repr__(self) -> str:
        return f"<RowTable of {len(self.rows)} rows>"
