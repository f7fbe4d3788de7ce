"""What the engine needs of a model runner. The real one is :class:`dsv4lab.engine.runner.Runner`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dsv4lab.engine.choice import Likeliest
from dsv4lab.engine.step import Mode, Resume
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.prefix_cache import Snapshot
from dsv4lab.timeline.program import StreamProgram

if TYPE_CHECKING:
    from dsv4lab.engine.speculation import Speculator
    from dsv4lab.kv.metadata import BatchItem
    from dsv4lab.overlap.plan import OverlapPlan
    from dsv4lab.overlap.run_record import RunRecord
    from dsv4lab.overlap.tracer import Tracer


class Pool(Protocol):
    """The part of :class:`dsv4lab.kv.pool.KvPool` that follows requests come and go."""

    def reset_slot(self, slot: int) -> None:
        """Clear what an earlier request left in the slot; before a request's first forward."""
        ...

    def release(self, slot: int | None, pages: Sequence[int]) -> None:
        """The slot, if any, and the pages lost their owner."""
        ...

    def check_live(self, slot: int, pages: Sequence[int], tokens: int) -> None:
        """Raise ``PoolError`` unless all that the request's next token can read is finite."""
        ...


class ForwardResult(Protocol):
    """What one forward gave."""

    @property
    def logits(self) -> Any:
        """float32 ``[items, vocab]``, of the last token of each item, on the CPU."""
        ...

    @property
    def likeliest(self) -> Likeliest | None:
        """The largest of each row of ``logits``, where it is at hand without reading them; None elsewhere."""
        ...

    @property
    def selection(self) -> Any:
        """int32 ``[tokens, topk]``: entries that the watched layer's indexer chose, -1 for none; None if unwatched."""
        ...

    @property
    def record(self) -> RunRecord:
        """When each op ran."""
        ...

    @property
    def others(self) -> Mapping[int, RunRecord]:
        """The same on other ranks of the attention group, by rank; asking may wait for them."""
        ...


class ModelRunner(Protocol):
    """Runs forwards over the pool that it owns. Used from one thread."""

    speculator: Speculator | None
    """What decodes with drafts; None to decode token by token."""

    @property
    def geometry(self) -> Geometry:
        """Shape of the pool."""
        ...

    @property
    def pool(self) -> Pool:
        """The memory of all requests."""
        ...

    def forward(self, items: Sequence[BatchItem], mode: Mode) -> ForwardResult:
        """Compute the items' tokens, and leave their rows in the pool."""
        ...

    def save_slot(self, slot: int, length: int) -> Snapshot:
        """What the request in ``slot`` needs to go on at position ``length``, a page boundary that it just passed."""
        ...

    def restore_slot(self, resume: Resume) -> None:
        """Put a snapshot into a slot that was just cleared."""
        ...

    def set_plan(self, plan: str | Mapping[str, Any] | OverlapPlan) -> None:
        """Use ``plan`` from the next forward on. Raises ``PlanError`` and keeps the old one if it does not fit."""
        ...

    def set_streams(self, kind: str, hw_queues: int, policy: str, intra_op_threads: int) -> None:
        """Replace what the ops run on."""
        ...

    def trace_with(self, tracer: Tracer | None) -> None:
        """Tell ``tracer`` of all that is issued from now on; None: nobody."""
        ...

    def profile_ranks(self, path: Path | None) -> dict[int, str]:
        """Have the other ranks of the group record through torch's profiler, into files beside ``path``, by rank.

        None: no longer; the files are there then. Raises ``EngineError`` naming the rank that could not write.
        """
        ...

    def watch_selection(self, layer: int | None) -> None:
        """Have later results tell what the indexer of this ratio-4 layer chose; None: no longer."""
        ...

    def device_status(self) -> dict[str, Any] | None:
        """What a GPU has captured, replayed and run without a graph, and what plan ``auto`` took; None on the CPU."""
        ...

    def op_table(self) -> list[dict[str, Any]]:
        """``{"name", "layer", "kind"}`` of every op of a forward."""
        ...

    def program(self, mode: Mode, tokens: int, plan: OverlapPlan | None = None) -> StreamProgram:
        """The compiled program of a forward of ``tokens`` tokens under ``plan``, else under the one in force."""
        ...

    def close(self) -> None:
        """Release threads and memory."""
        ...
