"""One forward at a time: metadata, the cached program of its shape, a replay on the streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dsv4lab.backends.rows import PACKED_ROWS
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.model import ModelConfig
from dsv4lab.engine.ahead import Ahead, Derived
from dsv4lab.engine.device_runs import DeviceRuns
from dsv4lab.engine.forward_result import ForwardResult
from dsv4lab.engine.placement import check_model, device_api, place_of, room_for, take_there
from dsv4lab.engine.selection import SelectionTap
from dsv4lab.engine.snapshots import DraftEdges, RequestSnapshot, restore, save
from dsv4lab.engine.step import Resume
from dsv4lab.errors import PlanError, UnavailableError
from dsv4lab.kv.memory import plan_for_engine
from dsv4lab.kv.metadata import BatchItem, Mode, build_metadata
from dsv4lab.kv.pool import KvPool
from dsv4lab.model.builder import OpListBuilder, Shape
from dsv4lab.model.hyper_connection import STREAMS
from dsv4lab.model.programs import Programs
from dsv4lab.model.tap import TAPS
from dsv4lab.model.transformer import list_forward, list_idle_forward, logits_view
from dsv4lab.model.weights import Experts, Named, build_weights
from dsv4lab.overlap.arena import Arena
from dsv4lab.overlap.audit import Resources
from dsv4lab.overlap.compile import CompiledProgram
from dsv4lab.overlap.device_api import DeviceApi
from dsv4lab.overlap.ops import Op, op_names
from dsv4lab.overlap.plan import OFF, OverlapPlan, is_auto, resolve_plan
from dsv4lab.overlap.run_record import RunRecord
from dsv4lab.overlap.streams import SerialStreams, Streams
from dsv4lab.overlap.streams_cpu import cpu_streams
from dsv4lab.overlap.tracer import Tracer
from dsv4lab.parallel.groups import ALONE, Parallel
from dsv4lab.parallel.order import COMM
from dsv4lab.timeline.program import StreamProgram

if TYPE_CHECKING:
    from dsv4lab.engine.speculation import Speculator


class Runner:
    """A model with its pool and its streams. Not thread-safe: one thread calls it.

    ``tensors`` are the canonical weights (:mod:`dsv4lab.checkpoint.names`), or this rank's parts of them; they are
    consumed. ``taps`` are layers whose output a DSpark drafter reads. All ranks of ``parallel`` run the same forwards;
    those with peers run one, or :meth:`idle_forward`, whenever a peer does. ``device`` is the runtime of a GPU, by
    default torch's where ``config`` names a GPU.

    Raises :class:`UnavailableError` for a device that this backend does not run on, :class:`PlanError` for a plan that
    does not fit the model's ops, and :class:`PoolError`, saying what would fit, for a pool larger than the memory.
    """

    def __init__(
        self,
        model: ModelConfig,
        tensors: Named,
        config: EngineConfig,
        taps: tuple[int, ...] = (),
        parallel: Parallel = ALONE,
        device: DeviceApi | None = None,
    ) -> None:
        self.model = model
        self.config = config
        self.place = place_of(config)
        check_model(model, self.place)
        device = device or device_api(self.place)
        pool = plan_for_engine(model, config, room_for(tensors, self.place))
        self.geometry = pool.geometry
        self.pool = KvPool(pool.geometry, self.place.dtype, self.place.device, pool.form, PACKED_ROWS)
        if config.debug_poison:
            self.pool.poison()
        self.parallel, self.rounds = parallel, 0
        local, layout = parallel.layout.local(model), parallel.layout
        held = layout.experts(model) if layout.ep_size > 1 else None
        take_there(tensors, self.place)
        self.weights = build_weights(local, tensors, Experts(held, config.shared_expert_fusion))
        self._most_rows = config.max_running_requests * config.verify_tokens  # more are whole prompts': to the host
        self.arena = Arena(max(config.chunked_prefill_size, self._most_rows), self.place.device)
        self._taps = taps
        self._programs = Programs(
            local, self.place.ops, self.arena, self.pool, self._list, parallel, late_sides=device is not None
        )
        self.speculator: Speculator | None = None
        self._tap: SelectionTap | None = None
        self._plan = OFF
        self._streams: Streams = SerialStreams()
        self.gpu: DeviceRuns | None = None
        self.ahead = Ahead(self.geometry, self._derived)
        if device is None:
            self.set_streams(config.streams, config.hw_queues, config.queue_policy, config.intra_op_threads)
        else:
            self.gpu = DeviceRuns(device, self._programs, self.geometry, model.index_topk, config, parallel.slowest)
            self._streams = self.gpu.streams
        plan = resolve_plan(config.plan)
        self.set_plan(plan if config.side_streams is None else plan.fold(config.side_streams))

    def forward(
        self, items: Sequence[BatchItem], mode: Mode, *, all_rows: bool = False, wide_items: int = 0
    ) -> ForwardResult:
        """Compute the items' tokens; ``logits`` hold one row per item, of its last token.

        Of the first ``wide_items``, or with ``all_rows`` of all items, they hold one row per token instead.
        """
        return self._run(items, mode, all_rows=all_rows, wide_items=wide_items)

    def hidden_rows(self, tokens: int) -> torch.Tensor:
        """What a drafter reads of the last forward's ``tokens`` flat tokens, copied.

        ``[T, hc, D]`` output streams, or with taps ``[T, taps, D]``, the streams' means after those layers.
        """
        return self.arena.buffers[TAPS if self._taps else STREAMS][:tokens].clone()

    def all_logits(self, items: Sequence[BatchItem], mode: Mode) -> torch.Tensor:
        """As :meth:`forward`, with the logits of every token: float32 ``[T, vocab]``."""
        return self._run(items, mode, all_rows=True).logits

    def set_plan(self, plan: str | Mapping[str, Any] | OverlapPlan) -> None:
        """Use ``plan`` from the next forward on. Raises :class:`PlanError` and keeps the old one for an unknown preset,
        a rule that matches no op, or ``auto`` where nothing can be measured.
        """
        resolved = resolve_plan(plan)
        if is_auto(resolved) and (self.gpu is None or not self.config.times_plans):
            raise PlanError("plan auto measures graphs on GPUs, with dp_size 1; here it takes a preset, or a plan")
        resolved.check(self._op_names())
        self._plan = resolved

    @property
    def plan(self) -> OverlapPlan:
        """The plan in force."""
        return self._plan

    def set_streams(self, kind: str, hw_queues: int, policy: str, intra_op_threads: int) -> None:
        """Replace what programs are replayed on: ``queue`` or ``serial`` streams of the CPU device.

        Raises :class:`UnavailableError` on a GPU, whose queues its runtime makes when the process starts.
        """
        if self.gpu is not None:
            raise UnavailableError("queue policy and threads are the CPU device's; a GPU has its queues from its start")
        self._streams.close()
        self._streams = cpu_streams(kind, hw_queues, policy, intra_op_threads, self._streams.tracer)

    def trace_with(self, tracer: Tracer | None) -> None:
        """Tell ``tracer`` of every run and, where ops are called one by one, of every op; None: nobody."""
        self._streams.tracer = tracer

    def profile_ranks(self, path: Path | None) -> dict[int, str]:
        """See :meth:`ModelRunner.profile_ranks`."""
        return {}

    def watch_selection(self, layer: int | None) -> None:
        """Have later results tell what the indexer of this ratio-4 ``layer`` chose; None: no longer."""
        if layer is None:
            self._tap = None
        elif self._tap is None or self._tap.layer != layer:
            self._tap = SelectionTap(layer, self.arena)

    def replay(self, compiled: CompiledProgram, arena: Arena) -> RunRecord:
        """Run another program (a drafter's) on the same streams."""
        return self._streams.run(compiled, arena)

    def reset_slot(self, slot: int) -> None:
        """Forget what an earlier request left in ``slot``."""
        self.pool.reset_slot(slot)

    def save_slot(self, slot: int, length: int) -> RequestSnapshot:
        """What the request in ``slot`` needs to go on at position ``length``, a page boundary."""
        return save(self.pool, self._edges(), slot, length)

    def restore_slot(self, resume: Resume) -> None:
        """Put a snapshot into a slot that was just cleared."""
        restore(self.pool, self._edges(), resume)

    def device_status(self) -> dict[str, Any] | None:
        """See :meth:`DeviceRuns.status`; None on the CPU."""
        return None if self.gpu is None else self.gpu.status()

    def op_table(self) -> list[dict[str, Any]]:
        """``{"name", "layer", "kind", "parts"}`` of every op of a decode forward, in program order."""
        ops = self.op_list("decode", 1)
        return [{"name": o.name, "layer": o.layer, "kind": o.kind, "parts": [p.name for p in o.parts]} for o in ops]

    def op_list(self, mode: Mode, tokens: int, outputs: int | None = None) -> list[Op]:
        """Ops of a forward of this shape (``outputs`` defaults to one row of logits per token)."""
        return self._programs.ops(self._shape(mode, tokens, tokens if outputs is None else outputs))

    def program(self, mode: Mode, tokens: int, plan: OverlapPlan | None = None) -> StreamProgram:
        """The stream program of a forward of ``tokens`` tokens under ``plan``, else under the one in force.

        Raises ``PlanError`` if a rule of ``plan`` matches no op.
        """
        if plan is not None:
            plan.check(self._op_names())
        return self._programs.compiled(self._shape(mode, tokens, tokens), plan or self._plan).program

    def compiled(self, shape: Shape, plan: OverlapPlan) -> CompiledProgram:
        """The program of ``shape``, as :meth:`prepare` returns it, under ``plan``, with what it calls."""
        return self._programs.compiled(shape, plan)

    def resources(self) -> Resources:
        """Every resource that ops may declare, with its memory: pool and arena."""
        buffers = {name: (tensor,) for name, tensor in self.arena.buffers.items()}
        return {**self.pool.resources(), **buffers, COMM: ()}

    def prepare(self, items: Sequence[BatchItem], mode: Mode, *, all_rows: bool = False, wide_items: int = 0) -> Shape:
        """Set the inputs of the next replay and return its shape, on which peers agree. :meth:`forward` does this.

        Raises :class:`PoolError` for items that the pool cannot hold, before any other rank hears of them.
        """
        wide = len(items) if all_rows else wide_items
        known = self.ahead.take(items if self.gpu is not None and mode == "decode" and not wide else ())
        meta = build_metadata(self.geometry, self.model.index_topk, items, mode) if known is None else known.meta
        rows = meta.last_rows
        if wide:
            first = int(rows[wide - 1]) + 1
            rows = torch.cat((torch.arange(first), rows[wide:]))
        if self.gpu is not None:
            shape = self.gpu.prepare(meta, rows, None if known is None else known.padded)
            return replace(shape, gathered=self._agree(meta.T))
        self._programs.inputs.set(meta, rows)
        return replace(Shape(mode, meta.T, rows.numel()), gathered=self._agree(meta.T))

    def launch(self, shape: Shape) -> ForwardResult:
        """Run what :meth:`prepare` has set."""
        with torch.inference_mode():
            record = self._start(shape)
            tokens, outputs = (shape.tokens, shape.outputs) if self.gpu is None else self.gpu.asked(shape)
            selection = None if self._tap is None else self._tap.take(tokens)
            logits = logits_view(self._programs.builder(shape))[:outputs]
            rows = logits.clone() if outputs <= self._most_rows else logits.to("cpu", copy=True)
            self.ahead.expect()
            return ForwardResult(rows, record(), selection, on_gpu=self.gpu is not None)

    def idle_forward(self) -> RunRecord | None:
        """Take part in the peers' forward without tokens of one's own; None if no peer has any."""
        rows = self._agree(0)
        if not rows:
            return None
        with torch.inference_mode():
            plan = self._plan if self.gpu is None else self.gpu.eager_plan(self._plan)
            return self._streams.run(self._programs.compiled(Shape("idle", 0, 0, rows), plan), self.arena)

    def close(self) -> None:
        """End the streams' threads, and leave the groups."""
        self._streams.close()
        if self.gpu is not None:
            self.gpu.close()
        self.parallel.close()

    def _run(self, items: Sequence[BatchItem], mode: Mode, *, all_rows: bool, wide_items: int = 0) -> ForwardResult:
        with torch.inference_mode():
            shape = self.prepare(items, mode, all_rows=all_rows, wide_items=wide_items)
            self._announce(items, mode, all_rows=all_rows, wide_items=wide_items)
            return self.launch(shape)

    def _start(self, shape: Shape) -> Callable[[], RunRecord]:
        """Run what is set, on a GPU without waiting for it; what it took, which waits."""
        if self.gpu is not None:
            return self.gpu.launch(shape, self._plan, self._tapped).record
        record = self._streams.run(self._tapped(self._programs.compiled(shape, self._plan)), self.arena)
        return lambda: record

    def _derived(self, items: Sequence[BatchItem]) -> Derived:
        meta = build_metadata(self.geometry, self.model.index_topk, items, "decode")
        return Derived(meta, None if self.gpu is None else self.gpu.padded(meta, meta.last_rows))

    def _edges(self) -> DraftEdges | None:
        return None if self.speculator is None else self.speculator.edges

    def _tapped(self, compiled: CompiledProgram) -> CompiledProgram:
        return compiled if self._tap is None else self._tap.into(compiled)

    def _announce(self, items: Sequence[BatchItem], mode: Mode, *, all_rows: bool, wide_items: int) -> None:
        """These items have been checked, and run next: whoever leads other ranks tells them."""

    def _list(self, b: OpListBuilder) -> list[Op]:
        return (
            list_idle_forward(b, self.weights) if b.shape.mode == "idle" else list_forward(b, self.weights, self._taps)
        )

    def _shape(self, mode: Mode, tokens: int, outputs: int) -> Shape:
        """A shape for which peers bring as many tokens each."""
        return Shape(mode, tokens, outputs, tokens if self.parallel.dp is not None else 0)

    def _agree(self, tokens: int) -> int:
        """Rows that each peer brings to this round's experts: the most tokens that one has; 0 without peers."""
        self.rounds += 1
        return self.parallel.largest(tokens) if self.parallel.dp is not None else 0

    def _op_names(self) -> tuple[str, ...]:
        return op_names([*self.op_list("decode", 1), *self.op_list("prefill", 1)])
