"""Groups of ranks that exchange tensors: gloo between CPU processes, NCCL (RCCL on ROCm) between GPUs.

Sums are deterministic. Gloo's are made here, from gathered parts in rank order, so they depend on neither timing nor
the library's choice of algorithm, and every rank gets the same bits. NCCL's are those of its own all-reduce: the same
bits on every rank, and from run to run for one topology and library version (two H200s; RCCL has never been run).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist

from dsv4lab.errors import CollectiveError, UnavailableError
from dsv4lab.parallel.layout import Layout

if TYPE_CHECKING:
    from dsv4lab.overlap.arena import Lane

_C10D: Any = dist.distributed_c10d  # torch does not annotate its options
Tensor = torch.Tensor
LOOPBACK = "127.0.0.1"


class Group(Protocol):
    """Collectives of ``size`` ranks. Tensors are contiguous; a call returns when its result may be read by its stream.

    Raises :class:`CollectiveError` naming the collective when the others do not take part in time.
    """

    rank: int
    size: int
    backend: str

    def all_reduce(self, x: Tensor, lane: Lane) -> None:
        """``x`` becomes the sum of all ranks' ``x``."""
        ...

    def all_gather(self, x: Tensor, out: Tensor) -> None:
        """``out [size, *x.shape]`` (or flat) becomes all ranks' ``x`` in order."""
        ...

    def reduce_scatter(self, x: Tensor, out: Tensor, lane: Lane) -> None:
        """``out`` becomes the sum of all ranks' ``x[rank]``, where ``x`` is ``[size, *out.shape]``."""
        ...

    def close(self) -> None:
        """Leave the group."""
        ...


@dataclass(slots=True, eq=False)
class GlooGroup:
    """See :class:`Group`; CPU tensors."""

    process_group: Any
    rank: int
    size: int
    name: str
    backend: str = "gloo"

    def all_reduce(self, x: Tensor, lane: Lane) -> None:
        """See :meth:`Group.all_reduce`."""
        parts = lane.scratch("all_reduce", (self.size, *x.shape), x.dtype)
        self.all_gather(x, parts)
        torch.sum(parts, 0, out=x)

    def all_gather(self, x: Tensor, out: Tensor) -> None:
        """See :meth:`Group.all_gather`."""
        with _told(f"all_gather of {self.name}"):
            self.process_group._allgather_base(out.view(-1), x.view(-1)).wait()

    def reduce_scatter(self, x: Tensor, out: Tensor, lane: Lane) -> None:
        """See :meth:`Group.reduce_scatter`."""
        parts = lane.scratch("reduce_scatter", (self.size, *out.shape), x.dtype)
        with _told(f"reduce_scatter of {self.name}"):
            self.process_group.alltoall_base(parts.view(-1), x.view(-1), [], []).wait()
        torch.sum(parts, 0, out=out)

    def close(self) -> None:
        """See :meth:`Group.close`."""
        self.process_group = None


@dataclass(slots=True, eq=False)
class NcclGroup:
    """See :class:`Group`; tensors of this process's GPU. Collectives run on the caller's stream, as ops do."""

    process_group: Any
    rank: int
    size: int
    name: str
    backend: str = "nccl"

    def meet(self) -> None:
        """A first collective: NCCL makes its communicator in it, through the store; not while a graph is captured."""
        self.process_group.allreduce([torch.zeros(1, device="cuda")]).wait()
        torch.cuda.synchronize()

    def all_reduce(self, x: Tensor, lane: Lane) -> None:
        """See :meth:`Group.all_reduce`."""
        with _told(f"all_reduce of {self.name}"):
            _joined(self.process_group.allreduce([x], _on_stream(_C10D.AllreduceOptions())))

    def all_gather(self, x: Tensor, out: Tensor) -> None:
        """See :meth:`Group.all_gather`."""
        with _told(f"all_gather of {self.name}"):
            options = _on_stream(_C10D.AllgatherOptions())
            _joined(self.process_group._allgather_base(out.view(-1), x.view(-1), options))

    def reduce_scatter(self, x: Tensor, out: Tensor, lane: Lane) -> None:
        """See :meth:`Group.reduce_scatter`."""
        with _told(f"reduce_scatter of {self.name}"):
            options = _on_stream(_C10D.ReduceScatterOptions())
            _joined(self.process_group._reduce_scatter_base(out.view(-1), x.view(-1), options))

    def close(self) -> None:
        """See :meth:`Group.close`."""
        self.process_group.shutdown()


def _on_stream(options: Any) -> Any:
    """``options`` of a collective that runs on the caller's stream, not on one that NCCL's group keeps."""
    options.asyncOp = False
    return options


def _joined(work: Any) -> None:
    """Have the current stream wait for ``work``; None: it is on that stream."""
    if work is not None:
        work.wait()


@dataclass(frozen=True, slots=True, eq=False)
class Parallel:
    """A rank's place and its groups: ``tp`` is its attention group, ``dp`` its peers; None where it would be alone.

    ``control`` are the peers again, for small integers on the CPU.
    """

    layout: Layout
    tp: Group | None = None
    dp: Group | None = None
    control: Group | None = None

    def of_drafter(self) -> Parallel:
        """The drafter's ranks; see :meth:`Layout.of_drafter`."""
        return Parallel(self.layout.of_drafter(), self.tp)

    def largest(self, count: int) -> int:
        """The largest ``count`` among the peers."""
        if self.control is None:
            return count
        counts = torch.zeros(self.control.size, dtype=torch.int64)
        self.control.all_gather(torch.tensor([count]), counts)
        return int(counts.max())

    def slowest(self, us: list[list[float]]) -> list[list[float]]:
        """Times that every rank of the attention group has measured: the largest of all ranks, place by place."""
        if self.tp is None:
            return us
        own = torch.tensor(us, dtype=torch.float64, device="cuda" if self.tp.backend == "nccl" else "cpu")
        everybody = own.new_empty(self.tp.size, *own.shape)
        self.tp.all_gather(own, everybody)
        found: list[list[float]] = everybody.amax(0).tolist()
        return found

    def close(self) -> None:
        """Leave all groups."""
        for group in {id(g): g for g in (self.tp, self.dp, self.control) if g is not None}.values():
            group.close()


ALONE = Parallel(Layout())
"""One rank: no groups, no collectives."""


def backend_of(device: str) -> str:
    """``gloo`` for the CPU, ``nccl`` for GPUs (RCCL answers to that name on ROCm).

    Raises :class:`UnavailableError` if torch was built without it.
    """
    name = "gloo" if device == "cpu" else "nccl"
    if name not in backends():
        raise UnavailableError(f"several ranks on {device} take the {name} backend of torch.distributed: not built in")
    return name


def backends() -> tuple[str, ...]:
    """Backends that this torch has."""
    if not dist.is_available():
        return ()
    found = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available()}
    return tuple(name for name, there in found.items() if there)


def open_groups(layout: Layout, store: Any, device: str, timeout_s: float) -> Parallel:
    """Join the others: every rank of ``layout`` calls this with the same ``store``, a ``torch.distributed`` store.

    Raises :class:`CollectiveError` if they do not come within ``timeout_s`` seconds.
    """
    backend = backend_of(device)
    tp = dp = control = None
    if layout.tp_size > 1:
        tp = _open(backend, f"tp{layout.dp_rank}", store, layout.tp_rank, layout.tp_size, timeout_s)
    if layout.dp_size > 1:
        name = f"dp{layout.tp_rank}"
        control = _open("gloo", f"{name}.control", store, layout.dp_rank, layout.dp_size, timeout_s)
        dp = control if backend == "gloo" else _open(backend, name, store, layout.dp_rank, layout.dp_size, timeout_s)
    return Parallel(layout, tp, dp, control)


def _open(backend: str, name: str, store: Any, rank: int, size: int, timeout_s: float) -> Group:
    limit = timedelta(seconds=timeout_s)
    c10d: Any = dist
    own = c10d.PrefixStore(name, store)
    own.set_timeout(limit)
    with _told(f"start of {name}"):
        if backend == "nccl":
            options = c10d.ProcessGroupNCCL.Options()
            options._timeout = limit
            group = NcclGroup(c10d.ProcessGroupNCCL(own, rank, size, options), rank, size, name)
            group.meet()
            return group
        options = c10d.ProcessGroupGloo._Options()
        options._timeout = limit
        options._devices = [c10d.ProcessGroupGloo.create_device(hostname=LOOPBACK, lazy_init=False)]
        return GlooGroup(c10d.ProcessGroupGloo(own, rank, size, options), rank, size, name)


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise CollectiveError(f"{what}: {' '.join(str(error).split())[:300]}") from error
