"""Result records: frozen, JSON-ready, free of torch. Times are integer nanoseconds unless the name says otherwise."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StreamBusy:
    """Busy time of one stream: length of the union of its slices."""

    stream: str
    queue: str | None
    role: str  # "main" or "side"
    busy_ns: int
    sum_dur_ns: int
    hidden_ns: int  # of a side stream: busy covered by main busy; 0 for main
    events: int


@dataclass(frozen=True, slots=True)
class QueueBusy:
    """Busy time of one hardware queue."""

    queue: str
    busy_ns: int
    sum_dur_ns: int
    events: int


@dataclass(frozen=True, slots=True)
class BusySummary:
    """The busy table of a timeline (see DESIGN, Words)."""

    wall_ns: int
    union_busy_ns: int
    sum_busy_ns: int
    sum_dur_ns: int
    hidden_ns: int
    streams: tuple[StreamBusy, ...]
    queues: tuple[QueueBusy, ...]
    warnings: tuple[str, ...] = ()

    @property
    def concurrency(self) -> float:
        """``sum_busy_ns / union_busy_ns``; 0.0 for an empty timeline."""
        return self.sum_busy_ns / self.union_busy_ns if self.union_busy_ns else 0.0

    @property
    def main_busy_ns(self) -> int:
        """Busy time of the main stream."""
        return sum(s.busy_ns for s in self.streams if s.role == "main")

    @property
    def side_busy_ns(self) -> int:
        """Busy time of all side streams, added."""
        return sum(s.busy_ns for s in self.streams if s.role != "main")

    def to_json(self) -> dict[str, Any]:
        """The documented ``trace summary --json`` object."""
        return {
            "wall_ns": self.wall_ns,
            "union_busy_ns": self.union_busy_ns,
            "sum_busy_ns": self.sum_busy_ns,
            "sum_dur_ns": self.sum_dur_ns,
            "concurrency": self.concurrency,
            "hidden_ns": self.hidden_ns,
            "streams": [asdict(s) for s in self.streams],
            "queues": [asdict(q) for q in self.queues],
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True, eq=False, slots=True)
class QueueOccupancy:
    """Step functions per queue.

    In ``[edges_ns[i], edges_ns[i+1])`` queue ``q`` has ``running[q, i]`` and ``waiting[q, i]`` packets.
    ``edges_ns`` is ``int64 [m+1]``; ``running`` and ``waiting`` are ``int32 [n_queues, m]``. Unless ``exact``, they are
    the counts at the start of equal cells, and packets that come and go inside a cell are not in them.
    """

    queues: tuple[str, ...]
    edges_ns: NDArray[np.int64]
    running: NDArray[np.int32]
    waiting: NDArray[np.int32]
    exact: bool = True


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """Who owns a slot: its ring and its pages, oldest page first."""

    request_id: int
    slot: int
    tokens: int  # committed length: positions [0, tokens) are in the pool
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """What the pool held after one step. Row numbers follow ``dsv4lab.kv.geometry``.

    ``compress_ratios`` gives the layer kinds; ring rows are ``slot * ring_rows + pos % ring_rows`` in every layer,
    compressed rows start at ``ring_rows * slots`` and are addressed by page.
    """

    step: int
    slots: int  # ring slots, the reserved slot 0 included
    ring_rows: int  # R, rows of one ring
    window: int
    pages: int  # usable pages are 1..pages-1; page 0 is reserved
    page_size: int  # tokens
    head_dim: int
    dtype_bytes: int
    compress_ratios: tuple[int, ...]
    requests: tuple[PoolRequest, ...]
    free_pages: tuple[int, ...]
    free_slots: tuple[int, ...]
    row_bytes: int = 0  # of a KV row as it is stored; 0: head_dim * dtype_bytes
    cached_pages: tuple[int, ...] = ()  # held by the prefix cache; requests may hold them too, several of them one

    def to_json(self) -> dict[str, Any]:
        """Plain data for the wire."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> PoolSnapshot:
        """Inverse of :meth:`to_json`."""
        owners = data["requests"]
        requests = tuple(PoolRequest(r["request_id"], r["slot"], r["tokens"], tuple(r["pages"])) for r in owners)
        rest: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k != "requests"}
        return cls(requests=requests, **rest)


@dataclass(frozen=True, slots=True)
class QueryReads:
    """Rows that one query token reads in one layer: pool row numbers, window first."""

    request_id: int
    position: int
    layer: int
    ratio: int
    window_rows: tuple[int, ...]
    compressed_rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One forward of the engine."""

    step: int
    mode: str  # "prefill", "decode" or "mixed"
    tokens: int
    requests: int
    start_ns: int
    dur_ns: int
    plan: str
    hw_queues: int
    busy_ns: dict[str, int] = field(default_factory=dict)  # by stream
    hidden_ns: int = 0
    free_pages: int = 0


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One measured point of a tuning session."""

    plan: str
    hw_queues: int
    concurrency_level: int
    ttft_ms: float
    tpot_ms: float
    tpot_p10_ms: float
    tpot_p90_ms: float
    tokens_per_s: float
    delta_vs_off: float | None  # tpot / tpot(off, same hw_queues and concurrency) - 1
    stream_busy: BusySummary
    control: bool = False  # measured as a control, never recommended

    def to_json(self) -> dict[str, Any]:
        """The documented row of ``tune --json``."""
        row = {f: getattr(self, f) for f in self.__slots__ if f != "stream_busy"}
        return {**row, "stream_busy": self.stream_busy.to_json()}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a measurement was made with; written beside every result."""

    dsv4lab: str
    python: str
    torch: str
    platform: str
    cpu: str
    cpus: int
    device: str
    preset: str
    seed: int
    settings: dict[str, Any] = field(default_factory=dict)
    created: str = ""  # ISO 8601, UTC

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)
