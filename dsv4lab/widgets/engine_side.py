"""The Overlap Lab on the engine behind a client: what its controls offer and do, and its pictures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dsv4lab.errors import LabError, UsageError
from dsv4lab.overlap.plan import PRESETS, OverlapPlan
from dsv4lab.queues.policies import POLICIES, QueuePool
from dsv4lab.timeline.program import MAIN
from dsv4lab.timeline.records import PoolSnapshot, QueryReads
from dsv4lab.timeline.timeline import Timeline
from dsv4lab.viz.axes import plural
from dsv4lab.widgets.controls import Offer
from dsv4lab.widgets.feed import Feed, tokens_per_s
from dsv4lab.widgets.pictures import Pictures
from dsv4lab.widgets.plan_editor import PlanEditor
from dsv4lab.widgets.plan_rows import EngineSource

if TYPE_CHECKING:
    from dsv4lab.engine.client import EngineClient

POOL_PERIOD_S = 0.5
MAX_NEW_TOKENS = 256
ISL_CHOICES = (16, 64, 256, 1024, 4096, 16384)
NONE_HERE = "the CPU device has none: its queues are threads of one priority that get a step's ops at once"
AT_OPENING = "chosen when the engine is opened"
_CPU_RUNTIME = "threads"


class EngineSide:
    """Puts settings into force on ``client`` and draws what it tells. Used from the view's thread, but for ``feed``."""

    live = True

    def __init__(
        self,
        client: EngineClient,
        plans: Iterable[OverlapPlan],
        load: tuple[int, int],
        pictures: Pictures,
        changed: Callable[[], None],
    ) -> None:
        """``load``: concurrency level and prompt tokens of the load to come."""
        self.client = client
        self.feed = Feed(changed)
        self._plans = known_plans(client, plans)
        self._concurrency, self._isl = load
        self._pictures = pictures
        self._source: EngineSource | None = None
        self._source_of: int | None = None  # process that it was made of
        self._pool_at = float("-inf")
        self._mine: object = None  # the load that this view started

    @property
    def hw_queues(self) -> int:
        """Hardware queues in force."""
        return self.client.hw_queues

    @property
    def usable(self) -> bool:
        """Whether settings can be changed."""
        return self.client.alive

    @property
    def label(self) -> str:
        """The settings in force, in a few words."""
        return f"{self.client.plan.name} \N{MIDDLE DOT} {plural(self.client.hw_queues, 'queue')}"

    def offers(self) -> dict[str, Offer]:
        """What the controls offer; see :class:`dsv4lab.widgets.controls.Controls`."""
        client = self.client
        running = client.load_running
        if running is not None:
            self._concurrency, self._isl = running.concurrency, running.prompt_tokens
        self._plans.setdefault(client.plan.name, client.plan)
        sides = (("as the plan says", 0), ("1", 1), ("2", 2), ("3", 3))
        return {
            "runtime": Offer((_CPU_RUNTIME,), _CPU_RUNTIME, AT_OPENING),
            "model": Offer((client.config.model,), client.config.model, AT_OPENING),
            "speculation": Offer((client.config.speculative,), client.config.speculative, AT_OPENING),
            "plan": Offer(tuple(self._plans), client.plan.name),
            "side_streams": Offer(sides, client.side_streams or 0),
            "policy": Offer(POLICIES, client.config.queue_policy),
            "priority": Offer((("as main", 0),), 0, NONE_HERE),
            "isl": Offer(isl_choices(client.limits), self._isl),
            "concurrency": Offer((1, client.limits.max_requests), self._concurrency),
            "graphs": Offer((), False, NONE_HERE),
        }

    def value(self, name: str) -> Any:
        """What of setting ``name`` is in force."""
        return self.offers()[name].value

    def put(self, name: str, value: Any) -> None:
        """Put a setting into force."""
        if name == "plan":
            self.client.set_plan(self._plans[value])
        elif name == "side_streams":
            self.client.set_side_streams(value or None)
        elif name == "policy":
            self.client.set_queue_policy(value)
        else:
            running = self.client.load_running
            concurrency, isl = (
                value if name == n else own for n, own in (("concurrency", self._concurrency), ("isl", self._isl))
            )
            self._concurrency, self._isl = concurrency, isl
            if running is not None:
                self._load()

    def set_plan(self, plan: OverlapPlan) -> None:
        """Use ``plan`` from the next forward on."""
        self._plans[plan.name] = plan
        self.client.set_plan(plan)

    def set_queues(self, count: int, progress: Callable[[float, str], None]) -> None:
        """Restart the worker with so many queues."""
        self.client.set_hw_queues(count, progress)

    def decode(self, on: bool) -> None:
        """Start or end the load."""
        if on:
            self._load()
        else:
            self.client.stop_load()

    def _load(self) -> None:
        room = min(self.client.limits.max_position, self.client.limits.pool_tokens) - self._isl
        new = max(1, min(MAX_NEW_TOKENS, room))
        self.client.start_load(self._concurrency, prompt_tokens=self._isl, max_new_tokens=new)
        self._mine = self.client.load_running

    def leave(self) -> None:
        """End the load that this view started, if it is still the one that runs."""
        if self.client.alive and self._mine is not None and self.client.load_running is self._mine:
            self.client.stop_load()

    def show_plan(self, editor: PlanEditor) -> None:
        """Have the editor show the plan in force."""
        if not self.client.alive:
            return
        if self._source is None or self._source_of != self.client.pid:
            self._source_of = self.client.pid
            self._source = EngineSource(self.client.ops(), lambda plan: self.client.program("decode", 1, plan))
        editor.follow(self._source, self.client.plan, side_streams=self.client.side_streams, queue_of=self._queues_of)

    def _queues_of(self, streams: Sequence[str]) -> dict[str, int]:
        pool = QueuePool(self.client.hw_queues, self.client.config.queue_policy)
        return {stream: pool.acquire(stream) for stream in sorted(streams, key=lambda s: (s != MAIN, len(s), s))}

    def draw(self, reads_layer: int) -> str:
        """Draw what the engine told last and return a line about it."""
        if not self.client.alive:
            return "no worker"
        steps, latest = self.feed.steps(), self.feed.latest()
        self._pictures.show_run(steps, latest, self.label)
        if time.monotonic() - self._pool_at >= POOL_PERIOD_S:
            self.draw_pool(reads_layer)
        text = (
            f"worker {self.client.pid} \N{MIDDLE DOT} {self.label} \N{MIDDLE DOT} {tokens_per_s(steps):,.0f} tokens/s"
        )
        return f"{text}{self._pictures.against_pin()}"

    def draw_pool(self, layer: int) -> None:
        """Draw the pool, with the rows that a query reads in ``layer`` (-1: none), and what is accepted of drafts."""
        self._pool_at = time.monotonic()
        try:
            snapshot = self.client.pool_snapshot()
            reads = self._query(snapshot, layer)
            speculation = self.client.status().get("speculation") if self._pictures.speculates else None
        except LabError:
            if self.client.alive:
                raise
            return  # its end is told by the view
        self._pictures.show_pool(snapshot, reads)
        if speculation is not None:
            self._pictures.show_acceptance(speculation)

    def timeline(self) -> Timeline | None:
        """The latest timeline, for export."""
        return self.feed.latest()

    def _query(self, snapshot: PoolSnapshot, layer: int) -> QueryReads | None:
        """Rows that the oldest request reads in ``layer`` in its next forward; it may end before that."""
        request = next((r for r in snapshot.requests if r.tokens), None)
        if layer < 0 or request is None:
            return None
        try:
            return self.client.query_reads(request.request_id, None, layer)
        except LabError:
            if not self.client.alive:
                raise
            return None

    def facts(self) -> dict[str, object]:
        """The settings in force, for an exported page."""
        c = self.client
        names = {
            "model": c.config.model,
            "device": c.config.device,
            "plan": c.plan.name,
            "hardware queues": c.hw_queues,
        }
        return {
            **names,
            **({"side streams": c.side_streams} if c.side_streams else {}),
            "queue policy": c.config.queue_policy,
        }


def known_plans(client: EngineClient, extra: Iterable[OverlapPlan]) -> dict[str, OverlapPlan]:
    """Presets, ``extra`` and the plan in force, by name. Raises ``UsageError`` for what is no plan."""
    plans = dict(PRESETS)
    for plan in extra:
        if not isinstance(plan, OverlapPlan):
            raise UsageError(f"plans takes OverlapPlan objects, got {type(plan).__name__}")
        plans[plan.name] = plan
    return plans | {client.plan.name: client.plan}


def isl_choices(limits: Any) -> tuple[int, ...]:
    """Prompt lengths that leave room for at least as many new tokens; the smallest always."""
    room = min(limits.max_position, limits.pool_tokens) // 2
    return tuple(n for n in ISL_CHOICES if n <= room) or ISL_CHOICES[:1]
