"""The Tuning Board: a tuning session as it runs or as it was, its trials to compare, replay and take over."""

from __future__ import annotations

import html
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from dsv4lab.engine.client import EngineClient
from dsv4lab.errors import UsageError
from dsv4lab.tuning import reading as reader
from dsv4lab.tuning.reading import read_session
from dsv4lab.tuning.replay import replay
from dsv4lab.tuning.session import Finding
from dsv4lab.tuning.space import Cell
from dsv4lab.tuning.store import RECORDS
from dsv4lab.tuning.target import OpenTarget
from dsv4lab.viz.tuning import delta_bars_sheet, tpot_heatmap_sheet, tradeoff_sheet
from dsv4lab.viz.tuning_lines import parallel_sheet
from dsv4lab.widgets import exports
from dsv4lab.widgets.base import View
from dsv4lab.widgets.board import BOARD_THEMES, Board
from dsv4lab.widgets.page import facts_block, live_block, page_bytes, sheet_blocks
from dsv4lab.widgets.pump import Pump
from dsv4lab.widgets.row_table import RowTable
from dsv4lab.widgets.tuning_texts import COLUMNS, cell_of, cells, detail, headline, stage

LOOK_PERIOD_S = 0.5
HEAT, DELTA, FRONT, LINES = "heat", "delta", "front", "lines"
_CELLS = ((HEAT, True), (FRONT, True), (DELTA, True), (LINES, True))


class TuningBoard(View):
    """A session's folder, live while it is written; see :func:`dsv4lab.widgets.tuning_board`.

    Options: ``theme``. Choosing a row (in the table or in a picture) marks it in every picture, shows its launch flags
    and offers to measure it again in an engine of its own.
    """

    OPTIONS = ("theme",)
    _pump: Pump | None = None

    def __init__(
        self,
        session: str | Path | Any,
        *,
        _threaded: bool = True,
        _open_target: OpenTarget = EngineClient,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._open_target = _open_target
        self.folder = _folder(session)
        self.reading = read_session(self.folder)
        self._chosen: Cell | None = None
        theme = options.get("theme", "auto")
        self.table = RowTable(COLUMNS, theme)
        self.board = Board(_CELLS, theme)
        self.table.on_choose = self._on_row
        self.board.on_click = self._on_point
        self._make_controls(theme)
        self.children = (
            self.headline,
            widgets.Box([self.progress, self.stage], layout=widgets.Layout(align_items="center")),
            self.errors,
            self.table,
            self.detail,
            widgets.Box(
                [self.again, self.form, self.export, self.theme],
                layout=widgets.Layout(flex_flow="row wrap", align_items="center"),
            ),
            self.outcome,
            self.board,
        )
        self._pump = Pump(self.guarded(self._draw), 0.0)
        self._draw()
        self._closing = threading.Event()
        if _threaded:
            self._pump.start()
            threading.Thread(target=self._watch, name="dsv4lab-tuning", daemon=True).start()

    def close(self) -> None:
        """End the view. The session goes on."""
        if self._pump is not None:
            self._closing.set()
            self._pump.close()
        super().close()

    @property
    def chosen(self) -> Finding | None:
        """The row that is chosen."""
        return next((f for f in self.reading.findings if cell_of(f) == self._chosen), None)

    def choose(self, plan: str, hw_queues: int, concurrency_level: int, *, control: bool = False) -> None:
        """Choose a row. Raises ``UsageError`` if nothing was measured there."""
        cell = Cell(plan, hw_queues, concurrency_level, control)
        if cell not in [cell_of(f) for f in self.reading.findings]:
            raise UsageError(f"the session has no row {cell.label}")
        self._chosen = cell
        self._touch()

    def look(self) -> bool:
        """Read the folder again if there is news; whether there was."""
        path = self.folder / RECORDS
        if path.stat().st_size == self.reading.size:
            return False
        self.reading = read_session(self.folder)
        self._touch()
        return True

    def _make_controls(self, theme: str) -> None:
        wide = {"description_width": "initial"}
        self.headline = widgets.HTML()
        self.progress = widgets.FloatProgress(min=0.0, max=1.0, layout=widgets.Layout(width="240px"))
        self.stage = widgets.HTML()
        self.detail = widgets.HTML()
        self.outcome = widgets.HTML()
        self.again = widgets.Button(
            description="Measure again",
            icon="repeat",
            disabled=True,
            tooltip="Run the chosen row's load in an engine of its own and compare times and tokens",
            layout=widgets.Layout(width="150px"),
        )
        self.form = widgets.Dropdown(options=["PNG", "SVG", "HTML", "CSV"], layout=widgets.Layout(width="80px"))
        self.export = widgets.Button(description="Export", icon="download", layout=widgets.Layout(width="100px"))
        self.theme = widgets.Dropdown(
            options=list(BOARD_THEMES),
            value=theme,
            description="theme",
            style=wide,
            layout=widgets.Layout(width="125px"),
        )
        widgets.link((self.theme, "value"), (self.board, "theme"))
        widgets.link((self.theme, "value"), (self.table, "theme"))
        self.again.on_click(lambda button: self._submit(self._measure_again))
        self.export.on_click(lambda button: self._submit(lambda: self._export(self.form.value)))

    def _submit(self, act: Callable[[], None]) -> None:
        if self._pump is not None:
            self._pump.submit(self.guarded(act))

    def _touch(self) -> None:
        if self._pump is not None:
            self._pump.touch()

    def _watch(self) -> None:
        while not self._closing.wait(LOOK_PERIOD_S):
            self.guarded(self.look)()

    def _on_row(self, row: int) -> None:
        if row < len(self.reading.findings):
            self._chosen = cell_of(self.reading.findings[row])
            self._touch()

    def _on_point(self, cell: str, trace: str, point: int) -> None:
        """A click in a picture: on a point of the front, or on a line."""
        rows = [f for f in self.reading.findings if not f.row.control]
        if cell == LINES and trace.isdecimal() and int(trace) < len(rows):
            found = rows[int(trace)]
        elif cell == FRONT and trace.isdecimal():
            plans = list(dict.fromkeys(f.row.plan for f in rows))
            same = [f for f in rows if int(trace) < len(plans) and f.row.plan == plans[int(trace)]]
            if not 0 <= point < len(same):
                return
            found = same[point]
        else:
            return
        self._chosen = cell_of(found)
        self._touch()

    def _draw(self) -> None:
        reading = self.reading
        rows = [f.row for f in reading.findings]
        best = reading.best()
        chosen = self.chosen
        marks = {n: "control" for n, f in enumerate(reading.findings) if f.row.control}
        marks |= {n: "best" for n, f in enumerate(reading.findings) if f is best}
        place = next((n for n, f in enumerate(reading.findings) if f is chosen), -1)
        self.table.show([cells(reading, f) for f in reading.findings], marks, place)
        self.headline.value = headline(reading, best)
        self.progress.value = 1.0 if reading.phase == reader.FINISHED else len(reading.trials) / max(1, reading.planned)
        self.stage.value = f"<span style='font-size:13px'>{html.escape(stage(reading))}</span>"
        self.detail.value = detail(reading, chosen)
        self.again.disabled = chosen is None
        plain = [row for row in rows if not row.control]
        picked = chosen.row if chosen is not None and not chosen.row.control else None
        self.board.show(
            {
                HEAT: tpot_heatmap_sheet(rows),
                DELTA: delta_bars_sheet(rows),
                FRONT: tradeoff_sheet(plain, picked),
                LINES: parallel_sheet(plain, picked),
            }
        )

    def _measure_again(self) -> None:
        chosen = self.chosen
        if chosen is None:
            return
        self.errors.clear()
        self.again.disabled = True
        self._say(f"measuring {cell_of(chosen).label} in an engine of its own")
        try:
            self._say(replay(self.reading, cell_of(chosen), self._open_target).text)
        except BaseException:
            self._say("")
            raise
        finally:
            self.again.disabled = False

    def _say(self, text: str) -> None:
        self.outcome.value = f"<span role='status' style='font-size:13px'>{html.escape(text)}</span>"

    def _export(self, form: str) -> None:
        if form in ("PNG", "SVG"):
            self.board.save_images("tuning-board", form.lower())
        elif form == "HTML":
            self.board.save_file("tuning-board.html", self.page(), "text/html")
        else:
            rows = [[text for text, _ in cells(self.reading, f)] for f in self.reading.findings]
            data = exports.csv_bytes([name for name, _ in COLUMNS], rows)
            self.board.save_file("tuning-board.csv", data, "text/csv")

    def page(self) -> bytes:
        """See :meth:`View.page`."""
        r = self.reading
        facts = {
            "model": r.config.model,
            "device": r.config.device,
            "machine": r.cpu,
            "made": r.created,
            "state": stage(r),
        }
        table = live_block(self.table, ["row_table.css"])
        return page_bytes("Tuning Board", [facts_block(facts), table, *sheet_blocks(self.board.sheets)])


def _folder(session: Any) -> Path:
    """The folder of a session, given as path or as what has a ``folder``."""
    folder = getattr(session, "folder", session)
    if not isinstance(folder, str | Path):
        raise UsageError(f"tuning_board takes a session's folder or its result, got {type(session).__name__}")
    return Path(folder)
