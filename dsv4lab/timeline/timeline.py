"""The columnar timeline: one row per slice of work, whatever recorded it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Ids = NDArray[np.int32]

UNKNOWN = -1


class Kind(IntEnum):
    """What a slice is. Only ``KERNEL``, ``MEMCPY`` and ``MEMSET`` count as busy time."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    WAIT = 3
    HOST = 4
    ANNOTATION = 5


BUSY_KINDS = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)


@dataclass(frozen=True, eq=False)
class Timeline:
    """Slices of work in columns of equal length ``n``.

    Times are integer nanoseconds on one clock. Id columns index the label tuples; ``UNKNOWN`` (-1) means that the
    source did not say. ``queued_ns`` is when the packet entered its hardware queue (-1 if unknown), so a slice waits
    in ``[queued_ns, start_ns)`` and runs in ``[start_ns, start_ns + dur_ns)``. ``op`` is the name of the operator that
    launched the row (an id into ``names``), ``device`` the position of its device in ``meta["devices"]``.
    """

    start_ns: Ints
    dur_ns: Ints
    stream: Ids
    queue: Ids
    name: Ids
    kind: NDArray[np.int8]
    queued_ns: Ints
    correlation: Ints
    step: Ids
    layer: Ids
    rank: Ids
    device: Ids
    op: Ids
    names: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    main_stream: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @classmethod
    def build(
        cls,
        *,
        start_ns: Any,
        dur_ns: Any,
        stream: Any,
        name: Any,
        names: Sequence[str],
        streams: Sequence[str],
        queue: Any = None,
        queues: Sequence[str] = (),
        kind: Any = None,
        queued_ns: Any = None,
        correlation: Any = None,
        step: Any = None,
        layer: Any = None,
        rank: Any = None,
        device: Any = None,
        op: Any = None,
        main_stream: str | None = None,
        meta: Mapping[str, Any] | None = None,
        warnings: Sequence[str] = (),
    ) -> Self:
        """Make a timeline from sequences; columns left out are filled with ``UNKNOWN`` (``kind``: ``KERNEL``)."""
        n = len(start_ns)

        def col(value: Any, dtype: type, default: int = UNKNOWN) -> Any:
            return np.full(n, default, dtype) if value is None else np.ascontiguousarray(value, dtype=dtype)

        return cls(
            start_ns=col(start_ns, np.int64),
            dur_ns=col(dur_ns, np.int64),
            stream=col(stream, np.int32),
            queue=col(queue, np.int32),
            name=col(name, np.int32),
            kind=col(kind, np.int8, int(Kind.KERNEL)),
            queued_ns=col(queued_ns, np.int64),
            correlation=col(correlation, np.int64),
            step=col(step, np.int32),
            layer=col(layer, np.int32),
            rank=col(rank, np.int32, 0),
            device=col(device, np.int32),
            op=col(op, np.int32),
            names=tuple(names),
            streams=tuple(streams),
            queues=tuple(queues),
            main_stream=main_stream,
            meta=dict(meta or {}),
            warnings=tuple(warnings),
        )

    @classmethod
    def empty(cls) -> Self:
        """A timeline without rows."""
        return cls.build(start_ns=(), dur_ns=(), stream=(), name=(), names=(), streams=())

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> Ints:
        """``int64 [n]``: end of each slice."""
        return self.start_ns + self.dur_ns

    @property
    def busy_mask(self) -> NDArray[np.bool_]:
        """``bool [n]``: rows that count as busy (kernels, copies, fills)."""
        return self.kind <= int(Kind.MEMSET)

    def select(self, rows: NDArray[np.bool_] | Ints) -> Self:
        """The timeline restricted to ``rows`` (a mask or row numbers); label tuples stay whole."""
        picked = {name: getattr(self, name)[rows] for name in COLUMNS}
        return replace(self, **picked)

    def stream_busy(self, main: str | None = None) -> Any:
        """Busy table of this timeline: see :func:`dsv4lab.timeline.busy.summarise`."""
        from dsv4lab.timeline.busy import summarise

        return summarise(self, main=main)

    def queue_occupancy(self) -> Any:
        """Packets waiting and running per queue over time: see :func:`dsv4lab.timeline.occupancy.occupancy`."""
        from dsv4lab.timeline.occupancy import occupancy

        return occupancy(self)

    def check(self) -> None:
        """Raise ``ValueError`` unless columns agree in length, ids are in range and durations are not negative."""
        n = len(self)
        for name in COLUMNS:
            if len(getattr(self, name)) != n:
                raise ValueError(f"timeline column {name} has {len(getattr(self, name))} rows, expected {n}")
        labelled = (("stream", self.streams), ("queue", self.queues), ("name", self.names), ("op", self.names))
        for name, labels in labelled:
            ids = getattr(self, name)
            if n and (ids.max() >= len(labels) or ids.min() < UNKNOWN):
                raise ValueError(f"timeline column {name} has ids outside [-1, {len(labels)})")
        if n and self.dur_ns.min() < 0:
            raise ValueError("timeline has negative durations")


_NOT_COLUMNS = {"names", "streams", "queues", "main_stream", "meta", "warnings"}
COLUMNS = tuple(f.name for f in fields(Timeline) if f.name not in _NOT_COLUMNS)
