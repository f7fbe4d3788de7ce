"""Forwards on a GPU: decode, verify and drafts as graphs by batch bucket and plan, everything else eagerly."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from dsv4lab.engine.auto_plan import REPLAYS, ROUNDS, Choice, candidates, choose
from dsv4lab.errors import EngineError
from dsv4lab.kv.packed import PackedMetadata
from dsv4lab.kv.padding import Bucket, pad_decode
from dsv4lab.model.builder import Shape
from dsv4lab.overlap.graphs import CapturedGraph, GraphCache
from dsv4lab.overlap.plan import OFF, OverlapPlan, auto_side_streams, is_auto
from dsv4lab.overlap.recording import replay_lanes
from dsv4lab.overlap.streams_device import DeviceStreams, Launched
from dsv4lab.spec.forwards import DraftShape

if TYPE_CHECKING:
    from dsv4lab.config.engine import EngineConfig
    from dsv4lab.kv.geometry import Geometry
    from dsv4lab.kv.metadata import StepMetadata
    from dsv4lab.model.programs import Programs
    from dsv4lab.overlap.arena import Arena
    from dsv4lab.overlap.compile import CompiledProgram
    from dsv4lab.overlap.device_api import DeviceApi

Tapped = Callable[["CompiledProgram"], "CompiledProgram"]
ByPlan = Callable[[OverlapPlan], "CompiledProgram"]
Times = list[list[float]]

MAX_INPUTS = 128
_SMALL_BUCKETS = (1, 2, 4, 8)
_BUCKET_STEP = 8
_log = logging.getLogger(__name__)


def batch_buckets(most: int, asked: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Batch sizes to capture, ascending: those ``asked`` for, else 1, 2, 4, 8, 16, 24, ...; up to ``most``, with it."""
    sizes = asked or (*_SMALL_BUCKETS, *range(2 * _BUCKET_STEP, most, _BUCKET_STEP))
    return tuple(sorted({min(size, most) for size in sizes} | (set() if asked else {most})))


@dataclass(frozen=True, slots=True)
class GraphShape:
    """What a graph's inputs depend on. ``wide``: logits of every token, not only of each request's last."""

    bucket: Bucket
    wide: bool

    @property
    def shape(self) -> Shape:
        """Shape of the programs that read these inputs."""
        tokens = self.bucket.tokens
        return Shape("decode", tokens, tokens if self.wide else self.bucket.requests)


class _Inputs:
    """Inputs at addresses that stay: what graphs of one :class:`GraphShape` read."""

    def __init__(self, of: GraphShape, like: StepMetadata, device: torch.device) -> None:
        self.packed = PackedMetadata(like, device)
        rows = torch.arange(of.bucket.tokens) if of.wide else like.last_rows
        self.rows = rows.to(device)


@dataclass(slots=True)
class DraftCounts:
    """What the drafter did: graphs captured, replays, and forwards that ran ``eager`` for want of a bucket."""

    captures: int = 0
    replays: int = 0
    eager: int = 0


@dataclass(frozen=True, slots=True)
class _Work:
    """What a graph is made of: its shape (with the plan's program it is the graph's key), and its program by plan."""

    of: GraphShape | DraftShape
    tokens: int
    compiled: ByPlan
    arena: Arena


class DeviceRuns:
    """Runs the programs of one model on ``api``'s streams; see :meth:`prepare` and :meth:`launch`.

    ``choices`` are what plan ``auto`` has taken, by graph shape. ``eager`` counts decode forwards that ran without a
    graph, because graphs are off or the batch is larger than the largest bucket. ``agreed`` makes one table of the
    times that ranks have measured, so that all of them take the same plan.
    """

    def __init__(
        self,
        api: DeviceApi,
        programs: Programs,
        geometry: Geometry,
        topk: int,
        config: EngineConfig,
        agreed: Callable[[Times], Times] = lambda us: us,
    ) -> None:
        self.streams = DeviceStreams(api, high_main=config.high_priority_main)
        self.graphs = GraphCache(self.streams, config.max_graphs, config.graph_memory_bytes)
        self.choices: dict[GraphShape | DraftShape, Choice] = {}
        self.eager = 0
        self.drafts = DraftCounts()
        self._programs = programs
        self._geometry = geometry
        self._topk = topk
        self._gate = config.token_gate
        self._agreed = agreed
        self._forks = api.kind != "hip" if config.eager_fork is None else config.eager_fork
        most = min(config.max_running_requests, config.graph_max_bs or config.max_running_requests)
        self._buckets = batch_buckets(most, config.graph_buckets) if config.graphs else ()
        self._inputs: dict[GraphShape, _Inputs] = {}
        self._now: GraphShape | None = None
        self._asked = (0, 0)

    def padded(self, meta: StepMetadata, rows: torch.Tensor) -> StepMetadata | None:
        """``meta`` padded to the bucket that this forward is a graph of; None if it is none."""
        of = self._graph_shape(meta, rows)
        return None if of is None else pad_decode(meta, self._geometry, self._topk, of.bucket)

    def prepare(self, meta: StepMetadata, rows: torch.Tensor, padded: StepMetadata | None = None) -> Shape:
        """Set the inputs of the next forward, padded to its bucket if it will be a graph; the shape to launch.

        ``padded``: what :meth:`padded` gave for it, if it was asked before.
        """
        self._now, self._asked = self._graph_shape(meta, rows), (meta.T, rows.numel())
        if self._now is None:
            self.eager += meta.mode == "decode"
            self._programs.inputs.set(meta, rows)
            return Shape(meta.mode, meta.T, rows.numel())
        if padded is None:
            padded = pad_decode(meta, self._geometry, self._topk, self._now.bucket)
        with torch.inference_mode():
            inputs = self._inputs.get(self._now)
            if inputs is None:
                inputs = self._inputs[self._now] = _Inputs(self._now, padded, self._programs.arena.device)
            inputs.packed.load(padded)
        self._programs.inputs.place(inputs.packed.meta, inputs.rows)
        return self._now.shape

    def launch(self, shape: Shape, plan: OverlapPlan, tapped: Tapped) -> Launched:
        """Issue what :meth:`prepare` has set, under ``plan``; ``tapped`` may add to the program that is run.

        Raises :class:`EngineError` if the forward belongs into a graph and cannot be captured.
        """
        of = self._now
        if of is None or shape != of.shape:
            compiled = self._programs.compiled(shape, self.eager_plan(plan))
            return self.streams.launch(tapped(compiled), self._programs.arena)
        return self._launch(self._work(of), plan, tapped)

    def replay(self, of: DraftShape, tokens: int, compiled: ByPlan, arena: Arena, plan: OverlapPlan) -> Launched:
        """Issue a drafter's graph ``of`` under ``plan``, captured now if there is none; its inputs have been set.

        Raises :class:`EngineError` if it cannot be captured.
        """
        return self._launch(_Work(of, tokens, compiled, arena), plan)

    def bucket(self, requests: int) -> int | None:
        """Batch size that ``requests`` are padded to; None: graphs are off, or have no bucket that large."""
        return next((size for size in self._buckets if size >= requests), None)

    def turns_us(self, plans: Sequence[OverlapPlan], rounds: int, replays: int) -> list[list[float]]:
        """Microseconds ``[plan][round]`` of one of ``replays`` replays in a row of what :meth:`prepare` has set.

        In a round all plans take turns, the order shifted by one from round to round.
        Raises :class:`EngineError` for a forward that is no graph.
        """
        if self._now is None:
            raise EngineError("a forward without a graph has no replays to time")
        return self._turns_us(self._work(self._now), plans, rounds, replays)

    def _turns_us(self, work: _Work, plans: Sequence[OverlapPlan], rounds: int, replays: int) -> list[list[float]]:
        us: list[list[float]] = [[] for _ in plans]
        with torch.inference_mode():
            captured = [self._captured(work, work.compiled(plan)) for plan in plans]
            for start in range(rounds):
                for place in range(len(plans)):
                    at = (start + place) % len(plans)
                    us[at].append(self.graphs.time_us(captured[at], replays))
        return us

    def asked(self, shape: Shape) -> tuple[int, int]:
        """Flat tokens, and rows of logits, of the forward that :meth:`prepare` set; behind them is padding."""
        return (shape.tokens, shape.outputs) if self._now is None else self._asked

    def eager_plan(self, plan: OverlapPlan) -> OverlapPlan:
        """The plan of a forward without a graph: on HIP streams fork only inside captures, unless ``eager_fork``."""
        return plan if self._forks and not is_auto(plan) else OFF

    def status(self) -> dict[str, Any]:
        """``captures``, ``replays``, graphs ``held`` and their ``bytes``, decode forwards that ran ``eagerly``; and by
        batch what ``auto`` took: ``requests``, ``width``, ``pages``, ``plan``, ``us`` of every candidate. ``drafts``
        has the drafter's part of the ``captures`` and ``replays``, what it ran ``eagerly``, and its own ``auto``.
        """
        graphs = self.graphs
        return {
            "captures": graphs.captures,
            "replays": graphs.replays,
            "held": len(graphs),
            "bytes": graphs.bytes,
            "eagerly": self.eager,
            "auto": self._taken(GraphShape),
            "drafts": {
                "captures": self.drafts.captures,
                "replays": self.drafts.replays,
                "eagerly": self.drafts.eager,
                "auto": self._taken(DraftShape),
            },
        }

    def close(self) -> None:
        """Wait for the device and let the graphs go."""
        self.streams.close()
        self.graphs.clear()

    def _taken(self, kind: type[GraphShape | DraftShape]) -> list[dict[str, Any]]:
        """What ``auto`` took for shapes of this kind."""
        return [
            {**asdict(of.bucket if isinstance(of, GraphShape) else of), "plan": choice.plan.name, "us": dict(choice.us)}
            for of, choice in self.choices.items()
            if isinstance(of, kind)
        ]

    def _graph_shape(self, meta: StepMetadata, rows: torch.Tensor) -> GraphShape | None:
        n, width = meta.n_items, meta.T // max(1, meta.n_items)
        wide = rows.numel() == meta.T
        size = self.bucket(n)
        if meta.mode != "decode" or size is None or n * width != meta.T or not (wide or rows.numel() == n):
            return None
        pages = min(_power_of_two(meta.page_table.shape[1]), self._geometry.pages - 1)
        return GraphShape(Bucket(size, width, max(pages, meta.page_table.shape[1])), wide and width > 1)

    def _work(self, of: GraphShape) -> _Work:
        return _Work(of, of.bucket.tokens, partial(self._programs.compiled, of.shape), self._programs.arena)

    def _launch(self, work: _Work, plan: OverlapPlan, tapped: Tapped | None = None) -> Launched:
        if is_auto(plan):
            plan = self._automatic(work, auto_side_streams(plan))
        compiled = work.compiled(plan)
        return self.graphs.launch(self._captured(work, compiled if tapped is None else tapped(compiled)))

    def _captured(self, work: _Work, compiled: CompiledProgram) -> CapturedGraph:
        key = (work.of, compiled)
        if key not in self.graphs:
            lanes = replay_lanes(compiled.program)
            _log.info("capturing %s under plan %s: %d replay lanes", work.of, compiled.program.plan, len(lanes))
            self._trim()
        return self.graphs.get(key, compiled, work.arena)

    def _automatic(self, work: _Work, side_streams: int | None) -> OverlapPlan:
        if self._gate is not None and work.tokens > self._gate:
            return OFF
        choice = self.choices.get(work.of)
        if choice is None:
            choice = self.choices[work.of] = self._measure(work, self._possible(work, side_streams))
            _log.info("auto takes plan %s for %s: %s us", choice.plan.name, work.of, dict(choice.us))
        return choice.plan

    def _possible(self, work: _Work, side_streams: int | None) -> list[OverlapPlan]:
        """Candidates of ``auto`` that run this shape's ops differently and that this process has the streams for."""
        plans = _distinct(work, candidates(side_streams))
        return [plan for plan in plans if self.streams.has(work.compiled(plan).program)]

    def _measure(self, work: _Work, plans: list[OverlapPlan]) -> Choice:
        """Replay all candidates in turn on the inputs that are set: a forward run twice leaves what one leaves."""
        choice = choose(plans, self._agreed(self._turns_us(work, plans, ROUNDS, REPLAYS)))
        for plan in plans:
            if plan not in (OFF, choice.plan):
                self.graphs.drop((work.of, work.compiled(plan)))
        return choice

    def _trim(self) -> None:
        """Where there are too many inputs, forget all but those that are set, and all graphs, which read them."""
        if len(self._inputs) > MAX_INPUTS:
            self.graphs.clear()
            self._inputs = {of: inputs for of, inputs in self._inputs.items() if of == self._now}


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def _distinct(work: _Work, plans: tuple[OverlapPlan, ...]) -> list[OverlapPlan]:
    """Those of ``plans`` that place this shape's ops differently, or have other streams go first."""
    found: dict[tuple[str, ...], OverlapPlan] = {}
    for plan in plans:
        program = work.compiled(plan).program
        found.setdefault((*program.high, *(f"{op.label} {op.stream}" for op in program.ops)), plan)
    return list(found.values())
