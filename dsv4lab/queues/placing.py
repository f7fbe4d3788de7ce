"""The kernels on a device whose workgroups are known: who finds room where, how fast each goes, and what comes next.

Workgroups of one kernel are handed out, in order of start, before the next kernel is looked at: one that still has some
to hand out keeps later ones waiting, however small they are; kernels of higher priority come first.

A workgroup takes ``1 + slow * share`` times as long where others have ``share`` of what is taken of its CU, and longer
by ``crowd`` times what the CU's part of the memory rate it asks for, where there are twice as many of its own as by
itself. With fewer workgroups at once than by itself, memory is less busy: a kernel that streams at a share ``b`` of the
memory rate then goes ``1 / (f * b + 1 - b)`` times as fast in each, ``f`` of them being at work. Memory answers later
the more of its rate others draw: ``latency`` times that share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from dsv4lab.queues.cells import Batch, Cell, Kernel, merged, place, spread
from dsv4lab.queues.fluid import Sharing, fair_parts
from dsv4lab.queues.running import ALL_BEGUN, NEVER
from dsv4lab.queues.slots import EPSILON, accepted, at_once, carveout
from dsv4lab.queues.workload import Cost

ENDED = 1e-3
NOTHING = -1
LEAST_STREAMED = 0.2
"""Of a kernel's time at least this share reads memory, whatever its floor."""


def kernel_of(cost: Cost, work: float, cus: int, floor_us: float) -> Kernel:
    """A kernel that would take ``work`` by itself."""
    alone, (low, top) = at_once(cost, cus), accepted(cost)
    streaming = max(cost.us - floor_us, LEAST_STREAMED * cost.us)
    return Kernel(
        op=0, cost=cost, block=work / makespan(replace(cost, us=1.0, occupancy=0.0, bandwidth=0.0, compute=0.0), cus),
        pending=cost.blocks, ticket=0, high=False, held=False, alone=alone, dense=-(-alone // cus),
        demand=min(1.0, cost.bandwidth * cus / min(cus, alone)),
        streamed=min(1.0, cost.bandwidth * cost.us / streaming) if streaming > 0 else 0.0,
        size=max(cost.footprint, cost.shared), carve=carveout(cost), low=low, top=top,
    )  # fmt: skip


@lru_cache(4096)
def makespan(cost: Cost, cus: int) -> float:
    """What a kernel of such workgroups takes by itself, in times of the slowest of them."""
    alone, (low, top) = at_once(cost, cus), accepted(cost)
    if cost.blocks <= alone:
        return 1.0
    unit = 1e6
    kernel = Kernel(0, cost, unit, cost.blocks, 0, False, False, alone, 1, 0.0, 0.0, 1.0, carveout(cost), low, top)
    cells, now = [Cell(cus)], 0.0
    while kernel.pending or kernel.going:
        place(cells, kernel)
        spread(cells)
        passed = min(batch.left for cell in cells for batch in cell.batches)
        now += passed
        for cell in cells:
            for batch in cell.batches:
                batch.left -= passed
            cell.end([batch for batch in cell.batches if batch.left <= ENDED])
        cells = merged(cells)
    return now / unit


class Placing:
    """Kernels that have started and not ended, in the order in which they get room. Times are nanoseconds.

    One that was launched early is held until it is released: it has its room, and does nothing.
    """

    def __init__(self, costs: Sequence[Cost], sharing: Sharing) -> None:
        self.now = 0.0
        self._costs = costs
        self._sharing = sharing
        self._queue: list[Kernel] = []
        self._by_op: dict[int, Kernel] = {}
        self._cells = [Cell(sharing.cus)]
        self._news: list[tuple[int, int]] = []
        self._next = NEVER

    def __bool__(self) -> bool:
        return bool(self._queue or self._news)

    def add(
        self, op: int, kind: int, work: float, ticket: int, core: int = 0, *, held: bool = False, high: bool = False
    ) -> None:
        """Op ``op``, whose cost is number ``kind``, starts and would take ``work`` alone. Low tickets get room first,
        ``high`` ones before all others; ``held``: it is launched early.
        """
        sharing = self._sharing
        kernel = kernel_of(self._costs[kind], work, sharing.cus, sharing.floor_us)
        kernel.op, kernel.ticket, kernel.high, kernel.held = op, ticket, high, held
        kernel.until = work if held else self.now + work
        self._by_op[op] = kernel
        at = len(self._queue)
        while at and (not high, ticket) < (not self._queue[at - 1].high, self._queue[at - 1].ticket):
            at -= 1
        self._queue.insert(at, kernel)
        self._hand_out()
        kernel.told = not kernel.pending
        self._rerate()

    def release(self, op: int) -> bool:
        """Op ``op`` may go on; False if it was not launched early."""
        kernel = self._by_op.get(op)
        if kernel is None:
            return False
        kernel.held = False
        kernel.until += self.now
        kernel.told = not kernel.pending
        for cell in self._cells:
            cell.stale = cell.stale or any(batch.kernel is kernel for batch in cell.batches)
        self._rerate()
        return True

    def handed_out(self, op: int) -> bool:
        """Whether op ``op`` runs, and no workgroup of it is left to start."""
        kernel = self._by_op.get(op)
        return kernel is not None and not kernel.held and not kernel.pending

    def placed(self, op: int) -> bool:
        """Whether op ``op`` has been given its turn, at work or held."""
        return op in self._by_op

    def advance(self, now: float) -> float:
        """Go on to ``now``; how long that was."""
        passed = now - self.now
        if passed > 0:
            for cell in self._cells:
                for batch in cell.batches:
                    batch.left -= passed * batch.rate
        self.now = now
        return passed

    def next_change(self) -> tuple[int, float]:
        """When workgroups end next (the number says nothing)."""
        return 0, self.now if self._news else self._next

    def change(self, at: int) -> tuple[int, int]:
        """What has happened: an op, and 0 if it ended and is gone, :data:`ALL_BEGUN` if its last workgroups began."""
        if not self._news:
            self._end_workgroups()
        return self._news.pop(0) if self._news else (0, NOTHING)

    def _end_workgroups(self) -> None:
        ended: dict[Kernel, None] = {}
        for cell in self._cells:
            gone = [batch for batch in cell.batches if batch.rate and batch.left <= ENDED]
            if gone:
                cell.end(gone)
                ended.update(dict.fromkeys(batch.kernel for batch in gone))
        for kernel in ended:
            if kernel.going or kernel.pending:
                continue
            if self.now < kernel.until - ENDED:
                kernel.going = 1
                stay = Batch(kernel, 1, kernel.until - self.now, stays=True)
                self._cells.append(Cell(1, batches=[stay], takes=False))
            else:
                self._queue.remove(kernel)
                del self._by_op[kernel.op]
                self._news.append((kernel.op, 0))
        self._cells = merged([cell for cell in self._cells if cell.takes or cell.batches])
        self._hand_out()
        self._rerate()
        for kernel in self._queue:
            if not (kernel.told or kernel.held or kernel.pending):
                kernel.told = True
                self._news.append((kernel.op, ALL_BEGUN))

    def _hand_out(self) -> None:
        for kernel in self._queue:
            if kernel.pending:
                place(self._cells, kernel)
                if kernel.pending:
                    break
        spread(self._cells)

    def _rerate(self) -> None:
        awake = [kernel for kernel in self._queue if not kernel.held]
        for kernel in awake:
            kernel.drive = 0.0
        for cell in self._cells:
            if cell.stale:
                self._on_each(cell)
            for batch in cell.batches:
                if batch.base and not batch.stays:
                    batch.kernel.drive += batch.base * batch.each * cell.count
        self._shared_by_all(awake)
        soonest = NEVER
        for cell in self._cells:
            for batch in cell.batches:
                batch.rate = rate = 1.0 if batch.stays else batch.base * batch.kernel.rate
                if rate and batch.left < soonest * rate:
                    soonest = batch.left / rate
        self._next = self.now + max(0.0, soonest)

    def _on_each(self, cell: Cell) -> None:
        """What workgroups lose to others on their CU."""
        counts: dict[Kernel, int] = {}
        for batch in cell.batches:
            if not batch.kernel.held:
                counts[batch.kernel] = counts.get(batch.kernel, 0) + batch.each
        taken = sum(kernel.size * count for kernel, count in counts.items())
        base: dict[Kernel, float] = {}
        for kernel, count in counts.items():
            others = taken - kernel.size * count
            slow = 1.0 + (self._sharing.slow * others / taken if others > EPSILON else 0.0)
            crowded = max(0.0, count / kernel.dense - 1.0) if cell.takes else 0.0
            base[kernel] = 1.0 / (slow * (1.0 + self._sharing.crowd * kernel.demand * crowded))
        for batch in cell.batches:
            batch.base = base.get(batch.kernel, 0.0)
        cell.stale = False

    def _shared_by_all(self, awake: Sequence[Kernel]) -> None:
        """What kernels gain and lose by how busy memory and arithmetic are."""
        for kernel in awake:
            part = kernel.going / max(1, min(kernel.alone, kernel.going + kernel.pending))
            streamed = kernel.streamed
            kernel.rate = 1.0 / (part * streamed + 1.0 - streamed) if 0.0 < part < 1.0 else 1.0
            kernel.draw = kernel.cost.bandwidth * kernel.rate * kernel.drive / kernel.alone
        if self._sharing.latency and len(awake) > 1:
            whole = sum(kernel.draw for kernel in awake)
            for kernel in awake:
                late = 1.0 + self._sharing.latency * min(1.0, whole - kernel.draw)
                kernel.rate /= late
                kernel.draw /= late
        _share(awake, [kernel.draw for kernel in awake])
        _share(awake, [kernel.cost.compute * kernel.rate * kernel.drive / kernel.alone for kernel in awake])


def _share(kernels: Sequence[Kernel], demands: Sequence[float]) -> None:
    """Slow down who asks for more than its fair part of what there is."""
    if sum(demands) > 1.0:
        for kernel, demand, part in zip(kernels, demands, fair_parts(demands), strict=True):
            if part < demand:
                kernel.rate *= part / demand
