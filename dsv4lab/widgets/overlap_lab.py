"""The Overlap Lab: choose plan, queues and load, and watch the engine while it decodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from dsv4lab.errors import LabError, UsageError
from dsv4lab.overlap.plan import PRESETS, OverlapPlan
from dsv4lab.queues.policies import POLICIES
from dsv4lab.timeline.records import PoolSnapshot, QueryReads
from dsv4lab.viz import theme as themes
from dsv4lab.viz.axes import plural
from dsv4lab.widgets.base import View
from dsv4lab.widgets.controls import Controls
from dsv4lab.widgets.feed import Feed, tokens_per_s
from dsv4lab.widgets.pictures import Pictures
from dsv4lab.widgets.pump import Pump

if TYPE_CHECKING:
    from dsv4lab.engine.client import EngineClient

DRAW_PERIOD_S = 0.2
POOL_PERIOD_S = 0.5
MAX_NEW_TOKENS = 256
_KINDS = {0: "SWA", 4: "CSA", 128: "HCA"}


class OverlapLab(View):
    """Controls over an engine and live pictures of it; see :func:`dsv4lab.widgets.dashboard`.

    Options: ``plans`` (own :class:`OverlapPlan` objects beside the presets), ``theme`` (``auto`` follows the page;
    ``light``, ``dark``), ``concurrency`` and ``prompt_tokens`` (of the load that the start button begins). Commands
    and drawing run on one thread of the view's own, so the notebook stays free. Pictures pause while no browser shows
    them.
    """

    OPTIONS = ("plans", "theme", "concurrency", "prompt_tokens")
    _endings: tuple[Callable[[], None], ...] = ()  # widgets are closed when they are deleted, even half made

    def __init__(self, client: EngineClient, *, _threaded: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.client = client
        self._plans = _known_plans(client, options.get("plans", ()))
        self._decoding = False
        self._hw_queues = 0  # as last seen; a choice that was not applied yet stays until the engine's number changes
        self._seen = False
        self._pool_at = float("-inf")
        kinds = [_KINDS[ratio] for ratio in client.model_config.compress_ratios]
        self.controls = Controls(list(self._plans), POLICIES, kinds, client.limits)
        self.pictures = Pictures(options.get("theme", "auto"))
        self.status = widgets.HTML()
        self.controls.theme.value = self.pictures.board.theme
        self.controls.concurrency.value = options.get("concurrency", min(2, client.limits.max_requests))
        self.controls.offer(self.controls.prompt_tokens, options.get("prompt_tokens", 64))
        self.children = (
            *self.controls.rows(),
            self.errors,
            self.status,
            self.pictures.board,
        )
        self._pump = Pump(self.guarded(self._draw), DRAW_PERIOD_S)
        self._feed = Feed(self._pump.touch)
        self._sync()
        self._wire()
        self._endings = (client.on_step(self._feed.take), client.on_exit(self._on_exit))
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
            if self._decoding and self.client.alive:
                self.client.stop_load()
        super().close()

    def _wire(self) -> None:
        c = self.controls
        c.plan.observe(self._when(lambda: self.client.plan.name, self._set_plan), "value")
        c.side_streams.observe(self._when(lambda: self.client.side_streams or 0, self._set_side_streams), "value")
        c.policy.observe(self._when(lambda: self.client.config.queue_policy, self.client.set_queue_policy), "value")
        c.decode.observe(self._when(lambda: self._decoding, self._set_decoding), "value")
        for load in (c.concurrency, c.prompt_tokens):
            load.observe(lambda change: self._do(self._reload) if self._decoding else None, "value")
        c.queues.observe(lambda change: c.show_queues(self.client.hw_queues), "value")
        c.apply_queues.on_click(lambda button: self._do(self._apply_queues))
        c.restart.on_click(lambda button: self._do(self._restart))
        widgets.link((c.theme, "value"), (self.pictures.board, "theme"))
        c.pin.observe(lambda change: self._do(lambda: self.pictures.pin(change["new"], self._label())), "value")
        c.freeze.observe(lambda change: self._pump.touch(), "value")
        c.reads.observe(lambda change: self._do(self._draw_pool), "value")

    def _when(self, actual: Callable[[], Any], act: Callable[[Any], None]) -> Callable[[dict[str, Any]], None]:
        """An observer that acts unless the engine is that way already, as it is when a control follows the engine."""

        def observer(change: dict[str, Any]) -> None:
            if not self.controls.following and change["new"] != actual():
                self._do(lambda: act(change["new"]))

        return observer

    def _do(self, act: Callable[[], None]) -> None:
        """Run ``act`` on the view's thread with the controls locked, then show what the engine is like."""

        def command() -> None:
            self.errors.clear()
            self.controls.lock(True)
            try:
                act()
            finally:
                self._sync()
                self._pump.touch()

        self._pump.submit(self.guarded(command))

    def _set_plan(self, name: str) -> None:
        self.client.set_plan(self._plans[name])

    def _set_side_streams(self, count: int) -> None:
        self.client.set_side_streams(count or None)

    def _set_decoding(self, on: bool) -> None:
        if on:
            self._reload()
        else:
            self._decoding = False
            self.client.stop_load()

    def _reload(self) -> None:
        prompt = int(self.controls.prompt_tokens.value)
        room = min(self.client.limits.max_position, self.client.limits.pool_tokens) - prompt
        new = max(1, min(MAX_NEW_TOKENS, room))
        self.client.start_load(self.controls.concurrency.value, prompt_tokens=prompt, max_new_tokens=new)
        self._decoding = True

    def _apply_queues(self) -> None:
        self._restarting(lambda progress: self.client.set_hw_queues(self.controls.queues.value, progress))

    def _restart(self) -> None:
        self._restarting(self.client.restart)

    def _restarting(self, restart: Callable[[Callable[[float, str], None]], None]) -> None:
        self.controls.show_progress(0.0, "ending the worker")
        try:
            restart(self.controls.show_progress)
        finally:
            self.controls.show_progress(None)

    def _label(self) -> str:
        return f"{self.client.plan.name} \N{MIDDLE DOT} {plural(self.client.hw_queues, 'queue')}"

    def _on_exit(self, error: LabError) -> None:
        def died() -> None:
            self._decoding = False
            self.show_error(error)
            self._sync()

        self._pump.submit(self.guarded(died))

    def _sync(self) -> None:
        """Make the controls say what the engine is like, whoever changed it."""
        c, client = self.controls, self.client
        c.offer(c.side_streams, client.side_streams or 0)
        c.policy.value = client.config.queue_policy
        self._plans.setdefault(client.plan.name, client.plan)
        c.offer(c.plan, client.plan.name)
        c.show_decoding(self._decoding)
        c.restart.layout.display = "none" if client.alive else None
        c.lock(not client.alive)
        if self._hw_queues != client.hw_queues:
            self._hw_queues = client.hw_queues
            c.offer(c.queues, client.hw_queues)
        c.show_queues(client.hw_queues)

    def _paused(self) -> bool:
        viewers = self.pictures.board._view_count
        self._seen = self._seen or bool(viewers)
        return self.controls.freeze.value or (self._seen and not viewers)

    def _draw(self) -> None:
        if not self.client.alive:
            self.status.value = _status("no worker")
            return
        if self._paused():
            return
        steps, latest = self._feed.steps(), self._feed.latest()
        self.pictures.show_run(steps, latest, self._label())
        if time.monotonic() - self._pool_at >= POOL_PERIOD_S:
            self._draw_pool()
        text = f"worker {self.client.pid} \N{MIDDLE DOT} {self._label()}"
        self.status.value = _status(f"{text} \N{MIDDLE DOT} {tokens_per_s(steps):,.0f} tokens/s")
        if not self.controls.plan.disabled:
            self._sync()

    def _draw_pool(self) -> None:
        self._pool_at = time.monotonic()
        try:
            snapshot = self.client.pool_snapshot()
            reads = self._query(snapshot)
        except LabError:
            if self.client.alive:
                raise
            return  # its end is told by _on_exit
        self.pictures.show_pool(snapshot, reads)

    def _query(self, snapshot: PoolSnapshot) -> QueryReads | None:
        """Rows that the oldest request reads in the chosen layer in its next forward; it may end before that."""
        layer = self.controls.reads.value
        request = next((r for r in snapshot.requests if r.tokens), None)
        if layer < 0 or request is None:
            return None
        try:
            return self.client.query_reads(request.request_id, None, layer)
        except LabError:
            if not self.client.alive:
                raise
            return None


def _known_plans(client: EngineClient, extra: Iterable[OverlapPlan]) -> dict[str, OverlapPlan]:
    plans = dict(PRESETS)
    for plan in extra:
        if not isinstance(plan, OverlapPlan):
            raise UsageError(f"plans takes OverlapPlan objects, got {type(plan).__name__}")
        plans[plan.name] = plan
    return plans | {client.plan.name: client.plan}


def _status(text: str) -> str:
    return f"<span style='font-size:13px;opacity:.85'>{themes.text(text, 300)}</span>"
