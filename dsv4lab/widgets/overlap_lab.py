"""The Overlap Lab: choose plan, queues and load, on the engine or on a simulated GPU, and watch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from dsv4lab.errors import LabError
from dsv4lab.overlap.plan import OverlapPlan
from dsv4lab.predict.setting import GPUS
from dsv4lab.viz import theme as themes
from dsv4lab.viz.html import Picture, Text
from dsv4lab.widgets import exports
from dsv4lab.widgets.base import View
from dsv4lab.widgets.controls import Controls
from dsv4lab.widgets.engine_side import EngineSide, known_plans
from dsv4lab.widgets.page import facts_block, live_block, page_bytes, sheet_blocks
from dsv4lab.widgets.pictures import Pictures
from dsv4lab.widgets.plan_editor import PlanEditor
from dsv4lab.widgets.pump import Pump
from dsv4lab.widgets.simulated_side import SimulatedSide

if TYPE_CHECKING:
    from dsv4lab.engine.client import EngineClient

DRAW_PERIOD_S = 0.1
ENGINE = "engine"
_KINDS = {0: "SWA", 4: "CSA", 128: "HCA"}
_NAME = "overlap-lab"


class OverlapLab(View):
    """Controls over an engine and live pictures of it; see :func:`dsv4lab.widgets.dashboard`.

    Options: ``plans`` (own :class:`OverlapPlan` objects beside the presets), ``theme`` (``auto`` follows the page;
    ``light``, ``dark``), ``concurrency`` and ``prompt_tokens`` (of the load that the start button begins). Commands
    and drawing run on one thread of the view's own, so the notebook stays free. Pictures pause while no browser shows
    them. Several labs on one client show each other's changes.
    """

    OPTIONS = ("plans", "theme", "concurrency", "prompt_tokens")
    _endings: tuple[Callable[[], None], ...] = ()  # widgets are closed when they are deleted, even half made

    def __init__(self, client: EngineClient, *, _threaded: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.client = client
        plans = list(known_plans(client, options.get("plans", ())).values())
        self._hw_queues = 0  # as last seen; a choice that was not applied yet stays until the number in force changes
        self._seen = False
        here = (f"this engine ({client.config.device})", ENGINE)
        kinds = [_KINDS[ratio] for ratio in client.model_config.compress_ratios]
        self.controls = Controls([here, *((f"{name}, simulated", name) for name in GPUS)], kinds)
        self.pictures = Pictures(options.get("theme", "auto"), speculates=client.config.speculative != "off")
        self._pump = Pump(self.guarded(self._draw), DRAW_PERIOD_S)
        load = (options.get("concurrency", min(2, client.limits.max_requests)), options.get("prompt_tokens", 64))
        self.engine = EngineSide(client, plans, load, self.pictures, self._on_news)
        self.simulated = SimulatedSide({plan.name: plan for plan in plans}, self.pictures)
        self.side: EngineSide | SimulatedSide = self.engine
        self.editor = PlanEditor(self._edited, self._do, self.pictures.board.theme)
        self.editor.layout.display = "none"
        self.status = widgets.HTML()
        self.controls.theme.value = self.pictures.board.theme
        self.children = (*self.controls.rows(), self.errors, self.editor, self.status, self.pictures.board)
        self._sync()
        self._wire()
        self._endings = (
            client.on_step(self.engine.feed.take),
            client.on_exit(self._on_exit),
            client.on_change(lambda: self._pump.submit(self.guarded(self._sync))),
        )
        self.pictures.board._view_count = 0  # asks the front end to count its views
        if _threaded:
            self._pump.start()
        self._pump.touch()

    def close(self) -> None:
        """End the view and the load that it started. The client goes on."""
        endings, self._endings = self._endings, ()
        for end in endings:
            end()
        if endings:
            self._pump.close()
            self.engine.leave()
        super().close()

    def _wire(self) -> None:
        c = self.controls
        for name, control in c.settings.items():
            control.observe(self._when(name), "value")
        c.where.observe(lambda change: self._do(lambda: self._go(change["new"])), "value")
        c.decode.observe(self._when_decoding, "value")
        c.queues.observe(self._when_queues, "value")
        c.apply_queues.on_click(lambda button: self._do(self._apply_queues))
        c.restart.on_click(lambda button: self._do(self._restart))
        widgets.link((c.theme, "value"), (self.pictures.board, "theme"))
        widgets.link((c.theme, "value"), (self.editor, "theme"))
        c.edit.observe(lambda change: self._do(lambda: self._show_editor(change["new"])), "value")
        c.pin.observe(lambda change: self._do(lambda: self.pictures.pin(change["new"], self.side.label)), "value")
        c.freeze.observe(lambda change: self._pump.touch(), "value")
        c.reads.observe(lambda change: self._do(self._draw_pool), "value")
        c.export.on_click(lambda button: self._do(lambda: self._export(c.form.value)))

    def _when(self, name: str) -> Callable[[dict[str, Any]], None]:
        """An observer that acts unless it is so already, as it is when a control follows."""

        def observer(change: dict[str, Any]) -> None:
            if not self.controls.following and change["new"] != self.side.value(name):
                self._do(lambda: self.side.put(name, change["new"]))

        return observer

    def _when_decoding(self, change: dict[str, Any]) -> None:
        if change["new"] != (self.client.load_running is not None):
            self._do(lambda: self.engine.decode(change["new"]))

    def _when_queues(self, change: dict[str, Any]) -> None:
        self.controls.show_queues(self.side.hw_queues, at_once=not self.side.live)
        if not self.controls.following and not self.side.live and change["new"] != self.side.hw_queues:
            self._do(self._apply_queues)

    def _do(self, act: Callable[[], None]) -> None:
        """Run ``act`` on the view's thread with the controls locked, then show what is in force."""

        def command() -> None:
            self.errors.clear()
            if self.side.live:
                self.controls.lock(True)
            try:
                act()
            finally:
                self._sync()
                self._pump.touch()

        self._pump.submit(self.guarded(command))

    def _go(self, where: str) -> None:
        """Act on the engine, or on a simulated device."""
        self._hw_queues = 0
        if where == ENGINE:
            self.side = self.engine
            self.pictures.clear()
            return
        if self.side.live:
            self.pictures.clear()
        self.simulated.on_device(where)
        self.simulated.put("runtime", self.simulated.setting.runtime)
        self.side = self.simulated

    def _edited(self, plan: OverlapPlan) -> None:
        self.side.set_plan(plan)

    def _show_editor(self, on: bool) -> None:
        self.editor.layout.display = None if on else "none"

    def _apply_queues(self) -> None:
        self._restarting(lambda progress: self.side.set_queues(self.controls.queues.value, progress))

    def _restart(self) -> None:
        self._restarting(self.client.restart)

    def _restarting(self, restart: Callable[[Callable[[float, str], None]], None]) -> None:
        if not self.side.live:
            restart(lambda fraction, stage: None)
            return
        self.controls.show_progress(0.0, "ending the worker")
        try:
            restart(self.controls.show_progress)
        finally:
            self.controls.show_progress(None)

    def _on_news(self) -> None:
        if self.side.live:
            self._pump.touch()

    def _on_exit(self, error: LabError) -> None:
        def died() -> None:
            self.show_error(error)
            self._sync()

        self._pump.submit(self.guarded(died))

    def _sync(self) -> None:
        """Make the controls say what is in force, whoever changed it."""
        c, side = self.controls, self.side
        c.show(side.offers(), usable=side.usable)
        c.decode.layout.display = None if side.live else "none"
        c.reads.layout.display = None if side.live else "none"
        c.show_decoding(self.client.load_running is not None)
        c.restart.layout.display = "none" if self.client.alive or not side.live else None
        if self._hw_queues != side.hw_queues:
            self._hw_queues = side.hw_queues
            c.choose_queues(side.hw_queues)
        c.show_queues(side.hw_queues, at_once=not side.live)
        if c.edit.value:
            side.show_plan(self.editor)

    def _paused(self) -> bool:
        viewers = self.pictures.board._view_count
        self._seen = self._seen or bool(viewers)
        return self.controls.freeze.value or (self._seen and not viewers)

    def _draw(self) -> None:
        if self._paused():
            if not self.side.usable:
                self._say("no worker")
            return
        self._say(self.side.draw(self.controls.reads.value))
        if not self.side.live:
            self._pump.later(self.guarded(self.simulated.finish))

    def _draw_pool(self) -> None:
        if self.side.live:
            self.engine.draw_pool(self.controls.reads.value)

    def _say(self, text: str) -> None:
        self.status.value = f"<span style='font-size:13px;opacity:.85'>{themes.text(text, 400)}</span>"

    def _export(self, form: str) -> None:
        """Hand what is shown to the browser as a file."""
        board = self.pictures.board
        if form in ("PNG", "SVG"):
            board.save_images(_NAME, form.lower())
        elif form == "HTML":
            board.save_file(f"{_NAME}.html", self.page(), "text/html")
        elif form == "CSV":
            if self.side.live:
                board.save_file(f"{_NAME}-steps.csv", exports.steps_csv(self.engine.feed.steps()), "text/csv")
            if self.pictures.summary is not None:
                board.save_file(f"{_NAME}-busy.csv", exports.busy_csv(self.pictures.summary), "text/csv")
        elif (timeline := self.side.timeline()) is not None:
            board.save_file(f"{_NAME}.pt.trace.json", exports.kineto_bytes(timeline), "application/json")
        else:
            self.errors.show("there is no timeline to export yet: start decoding")

    def page(self) -> bytes:
        """See :meth:`View.page`."""
        self.side.show_plan(self.editor)
        blocks: list[Text | Picture] = [facts_block(self.side.facts())]
        if self.editor.state:
            blocks.append(live_block(self.editor, ["plan_editor.css"]))
        return page_bytes("Overlap Lab", [*blocks, *sheet_blocks(self.pictures.board.sheets)])
