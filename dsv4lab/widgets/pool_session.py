"""The kernel's side of the pool explorer: recorded snapshots, and the answers to what the page asks of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from dsv4lab.errors import RequestError, UsageError
from dsv4lab.timeline.records import PoolSnapshot, QueryReads
from dsv4lab.viz.pool_facts import pool_facts
from dsv4lab.viz.pool_map import Ints, MapCells, PoolMap, ages, pool_reads
from dsv4lab.widgets.trace_side import Json, whole

if TYPE_CHECKING:
    from dsv4lab.engine.client import EngineClient

KINDS = {0: "SWA", 4: "CSA", 128: "HCA"}
MOST_SNAPSHOTS = 500
_KEPT_MAPS = 12
_TRIES = 5


class PoolSession:
    """Answers the questions of one explorer. ``client`` is asked for new snapshots where there is one.

    Raises :class:`UsageError` for snapshots of pools of different shape, or for none at all.
    """

    def __init__(self, snapshots: Sequence[PoolSnapshot], client: EngineClient | None = None) -> None:
        self.client = client
        self.snapshots: list[PoolSnapshot] = []
        self.recorded: dict[tuple[int, int], QueryReads] = {}  # by request and layer: what was really read last
        self._maps: OrderedDict[int, PoolMap] = OrderedDict()
        for snapshot in snapshots:
            self.add(snapshot)
        if not self.snapshots:
            raise UsageError("pool_explorer takes a client, a PoolSnapshot, or a list of them: the list is empty")
        self._answers: dict[str, Callable[[Json], Json]] = {
            "pool": self._pool,
            "request": self._request,
            "reads": self._reads,
            "poll": self._poll,
        }

    def add(self, snapshot: PoolSnapshot) -> None:
        """Record one more; the oldest goes after 500. Raises :class:`UsageError` if its pool has another shape."""
        if not isinstance(snapshot, PoolSnapshot):
            raise UsageError(f"pool_explorer takes a client or PoolSnapshots, got {type(snapshot).__name__}")
        if self.snapshots and shape_of(snapshot) != shape_of(self.snapshots[0]):
            raise UsageError("pool_explorer takes snapshots of one pool; these differ in slots, pages or layers")
        self.snapshots.append(snapshot)
        if len(self.snapshots) > MOST_SNAPSHOTS:
            del self.snapshots[0]
            self._maps.clear()

    def answer(self, message: Json) -> Json:
        """The answer to one question; arrays are left as they are. Raises :class:`UsageError` for an unknown kind."""
        kind = message.get("kind")
        if kind not in self._answers:
            raise UsageError(f"the explorer knows no question {kind!r}")
        return {"kind": kind, "number": message.get("number"), **self._answers[kind](message)}

    def setup(self) -> Json:
        """What the page needs before its first picture."""
        first = self.snapshots[-1]
        layers = [[layer, KINDS[ratio], ratio] for layer, ratio in enumerate(first.compress_ratios)]
        return {
            "kind": "setup",
            "live": self.client is not None,
            "shape": {
                "slots": first.slots,
                "ring_rows": first.ring_rows,
                "window": first.window,
                "pages": first.pages,
                "page_size": first.page_size,
                "row_bytes": first.row_bytes or first.head_dim * first.dtype_bytes,
            },
            "layers": layers,
            "ratios": [r for r in KINDS if r in first.compress_ratios],
            **self._steps(),
        }

    def _steps(self) -> Json:
        return {
            "steps": [s.step for s in self.snapshots],
            "requests": [r.request_id for r in self.snapshots[-1].requests],
        }

    def map(self, at: int) -> PoolMap:
        """The map of snapshot ``at``; the latest few are kept."""
        if at not in self._maps:
            self._maps[at] = PoolMap(self.snapshots[at])
            if len(self._maps) > _KEPT_MAPS:
                self._maps.popitem(last=False)
        self._maps.move_to_end(at)
        return self._maps[at]

    def _at(self, message: Json) -> int:
        return whole(message, "at", 0, len(self.snapshots) - 1)

    def _pool(self, message: Json) -> Json:
        at = self._at(message)
        pool = self.map(at)
        ratio = self._ratio(message)
        page_age, slot_age = ages([self.map(i) for i in range(max(0, at - _KEPT_MAPS + 2), at + 1)])
        window = rows = None
        if self._holds(pool, message):
            window, rows = self._rows(pool, message, ratio)
        return {
            "at": at,
            "step": pool.snapshot.step,
            "ratio": ratio,
            "rings": cells_json(pool.rings(slot_age, window)),
            "pages": cells_json(pool.pages(ratio, page_age, rows)) if ratio else None,
            "facts": facts_json(pool),
            "requests": [[r.request_id, r.tokens, r.slot, len(r.pages)] for r in pool.snapshot.requests],
        }

    def _ratio(self, message: Json) -> int:
        ratio = message.get("ratio")
        if ratio not in self.snapshots[0].compress_ratios:
            taken = ", ".join(map(str, sorted(set(self.snapshots[0].compress_ratios))))
            raise UsageError(f"ratio {ratio!r}: the layers of this pool have {taken}")
        return int(ratio)

    def _holds(self, pool: PoolMap, message: Json) -> bool:
        """Whether the question's request is in this snapshot: while an engine runs it may have ended since."""
        return any(r.request_id == message.get("request") for r in pool.snapshot.requests)

    def _request(self, message: Json) -> Json:
        pool = self.map(self._at(message))
        if not self._holds(pool, message):
            return {"request": None, "others": [r.request_id for r in pool.snapshot.requests]}
        request = pool.request(whole(message, "request", 0, 2**62))
        pages = np.array(request.pages, np.int64)
        return {
            "request": request.request_id,
            "slot": request.slot,
            "tokens": request.tokens,
            "pages": pages.astype(np.int32),
            "shared": np.minimum(pool.holders[pages], 255).astype(np.uint8) if len(pages) else pages.astype(np.uint8),
        }

    def _rows(self, pool: PoolMap, message: Json, ratio: int) -> tuple[Ints, Ints]:
        reads = self._recorded(pool, message, ratio)
        if reads is not None:
            return np.array(reads.window_rows, np.int64), np.array(reads.compressed_rows, np.int64)
        request = pool.request(whole(message, "request", 0, 2**62))
        position = whole(message, "position", 0, max(len(request.pages) * pool.snapshot.page_size - 1, 0))
        return pool_reads(pool, request.request_id, position, ratio)

    def _recorded(self, pool: PoolMap, message: Json, ratio: int) -> QueryReads | None:
        """What the engine recorded for this very position in a layer of the kind, if it was asked."""
        if message.get("layer") is None:
            return None
        reads = self.recorded.get((whole(message, "request", 0, 2**62), whole(message, "layer", 0, 2**31)))
        known = reads is not None and reads.position == message.get("position") and reads.ratio == ratio
        return reads if known and pool is self.map(len(self.snapshots) - 1) else None

    def _reads(self, message: Json) -> Json:
        """Rows of one query token in one layer kind; with ``exact`` those of the request's next forward, as it ran."""
        ratio = self._ratio(message)
        if message.get("exact"):
            reads = self._next_reads(message.get("request"), whole(message, "layer", 0, 2**31))
            ratio = reads.ratio
            message = {**message, "request": reads.request_id, "position": reads.position}
            message["at"] = len(self.snapshots) - 1
        pool = self.map(self._at(message))
        window = rows = np.zeros(0, np.int64)
        if self._holds(pool, message):
            window, rows = self._rows(pool, message, ratio)
        return {
            "request": message.get("request"),
            "position": message.get("position"),
            "ratio": ratio,
            "exact": self._recorded(pool, message, ratio) is not None,
            "window": window.astype(np.int32),
            "rows": rows.astype(np.int32),
            **self._steps(),
        }

    def _next_reads(self, wanted: object, layer: int) -> QueryReads:
        """What the next forward of a request reads, recorded with a snapshot that holds it.

        Another request stands in for one that has ended, since an engine that decodes does not wait for the page.
        """
        if self.client is None:
            raise UsageError("recorded snapshots tell no choices of the indexer: exact reads take a live client")
        for _ in range(_TRIES):
            before = self.client.pool_snapshot()
            running = [r.request_id for r in before.requests]
            if not running:
                break
            request = wanted if isinstance(wanted, int) and wanted in running else running[-1]
            try:
                reads = self.client.query_reads(request, None, layer)
            except RequestError:
                continue  # it ended in between
            after = self.client.pool_snapshot()
            self.add(after if any(r.request_id == request for r in after.requests) else before)
            self.recorded[request, layer] = reads
            return reads
        raise UsageError("no request is running: start a load, then ask what its next forward reads")

    def _poll(self, _message: Json) -> Json:
        if self.client is None:
            raise UsageError("these are recorded snapshots: only a live client gives new ones")
        snapshot = self.client.pool_snapshot()
        if snapshot != self.snapshots[-1]:
            self.add(snapshot)
        return self._steps()


def shape_of(snapshot: PoolSnapshot) -> tuple[Any, ...]:
    """What must agree between the snapshots of one pool."""
    s = snapshot
    return s.slots, s.ring_rows, s.window, s.pages, s.page_size, s.compress_ratios


def cells_json(cells: MapCells) -> Json:
    """A map as plain data with arrays."""
    return {name: getattr(cells, name) for name in MapCells.__slots__}


def facts_json(pool: PoolMap) -> Json:
    """The facts of a snapshot as plain data."""
    facts = pool_facts(pool)
    return {**asdict(facts), "bytes": facts.bytes}
