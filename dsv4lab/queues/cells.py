"""CUs and the workgroups on them. CUs with the same workgroups are one cell, workgroups of a kernel that began together
on such CUs one batch.

The hardware gives each workgroup the emptiest CU that takes it. Workgroups that begin together end one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dsv4lab.queues.slots import EPSILON
from dsv4lab.queues.workload import Cost

PARTS = 4
SPREAD = 0.5
"""Workgroups that begin together end in so many parts, over so much of the time of the slowest."""
LANES = tuple(1.0 - SPREAD + SPREAD * (n + 1) / PARTS for n in range(PARTS))
MEAN = sum(LANES) / PARTS
GRAIN = 13
"""Batches that are within one in so many parts of a workgroup's time of each other are one."""
SMALL = 32
"""Up to so many workgroups end together."""
FEW_CELLS = 6
"""So many cells are not worth a look which of them are alike, unless they are empty."""


@dataclass(slots=True, eq=False)
class Kernel:
    """A kernel on the device or waiting for room. Times are nanoseconds.

    ``block``: what its slowest workgroup takes by itself; ``pending`` and ``going``: workgroups to start, and that have
    begun; ``alone``: how many run at once by themselves, up to ``dense`` of them on a CU, where they ask for ``demand``
    of the CU's part of the memory rate; ``streamed``: of its time by itself, how much reads memory; ``size``: the
    larger share that a workgroup takes of a CU. ``carve``, ``low``, ``top``: settings of a CU's memory, its own and
    those to which it comes. ``until``: it does not end before. ``told``: whether it was said that all have begun.
    ``rate``, ``drive`` and ``draw`` are those of the moment.
    """

    op: int
    cost: Cost
    block: float
    pending: int
    ticket: int
    high: bool
    held: bool
    alone: int
    dense: int
    demand: float
    streamed: float
    size: float
    carve: float
    low: float
    top: float
    until: float = 0.0
    going: int = 0
    told: bool = False
    rate: float = 1.0
    drive: float = 0.0
    draw: float = 0.0

    @property
    def waved(self) -> bool:
        """Whether it has more workgroups than run at once."""
        return self.cost.blocks > self.alone


@dataclass(slots=True, eq=False)
class Batch:
    """``each``: workgroups on every CU of the cell; ``left``: what is left of them by themselves; ``base``: their rate
    for what else is on the CU, 0 for those that wait; ``rate``: their rate. ``fresh``: they begin at this moment.
    ``stays``: no workgroups, but what a kernel that nothing makes faster than by itself has to stay.
    """

    kernel: Kernel
    each: int
    left: float
    base: float = 0.0
    rate: float = 0.0
    fresh: bool = False
    stays: bool = False


@dataclass(slots=True, eq=False)
class Cell:
    """``count`` CUs, each with ``rest`` and ``shared`` left, set to ``carve``. ``stale``: its batches have changed.

    Without ``takes`` it is no CU: what needs no room runs there.
    """

    count: int
    rest: float = 1.0
    shared: float = 1.0
    carve: float = 1.0
    batches: list[Batch] = field(default_factory=list)
    stale: bool = True
    takes: bool = True

    def split(self, count: int) -> Cell:
        """Take all but ``count`` CUs off."""
        other = Cell(
            self.count - count, self.rest, self.shared, self.carve,
            [Batch(b.kernel, b.each, b.left, b.base, b.rate, b.fresh) for b in self.batches], self.stale,
        )  # fmt: skip
        self.count = count
        return other

    def end(self, gone: Iterable[Batch]) -> None:
        """Give back what ``gone`` took."""
        for batch in gone:
            batch.kernel.going -= batch.each * self.count
            self.rest += batch.each * batch.kernel.cost.footprint
            self.shared += batch.each * batch.kernel.cost.shared
            self.batches.remove(batch)
        self.stale = True
        if not self.batches:
            self.rest = self.shared = self.carve = 1.0


def place(cells: list[Cell], kernel: Kernel) -> None:
    """Give workgroups of ``kernel`` that have not begun the emptiest CUs that take one, as long as there are any."""
    footprint, shared = kernel.cost.footprint, kernel.cost.shared
    if footprint <= 0 and shared <= 0:
        cells.append(Cell(kernel.pending, batches=[Batch(kernel, 1, kernel.block)], takes=False))
        kernel.going, kernel.pending = kernel.pending, 0
        return
    while kernel.pending:
        best = None
        for cell in cells:
            if _takes(cell, kernel) and (best is None or (cell.rest, cell.shared) > (best.rest, best.shared)):
                best = cell
        if best is None:
            return
        if best.count > kernel.pending:
            cells.append(best.split(kernel.pending))
        if not best.batches:
            best.carve = best.shared = kernel.carve
        best.rest -= footprint
        best.shared -= shared
        best.stale = True
        kernel.pending -= best.count
        kernel.going += best.count
        last = best.batches[-1] if best.batches else None
        if last is not None and last.kernel is kernel and last.fresh:
            last.each += 1
        else:
            best.batches.append(Batch(kernel, 1, kernel.block, fresh=True))


def _takes(cell: Cell, kernel: Kernel) -> bool:
    if not cell.takes or cell.rest + EPSILON < kernel.cost.footprint:
        return False
    if not cell.batches:
        return True
    return cell.shared + EPSILON >= kernel.cost.shared and kernel.low - EPSILON <= cell.carve <= kernel.top + EPSILON


def spread(cells: list[Cell]) -> None:
    """Let fresh batches end one after the other: where a good part of a kernel begins at once, in ``LANES``, over CUs
    and on each; else after what a workgroup takes on average, or by itself if all of them run at once.
    """
    begun: dict[Kernel, int] = {}
    for cell in cells:
        for batch in cell.batches:
            if batch.fresh:
                begun[batch.kernel] = begun.get(batch.kernel, 0) + batch.each * cell.count
    wide = {kernel for kernel, count in begun.items() if count * PARTS > kernel.alone > SMALL}
    for cell in list(cells) if begun else ():
        if any(batch.fresh for batch in cell.batches):
            parts = min(PARTS, cell.count) if any(b.fresh and b.kernel in wide for b in cell.batches) else 1
            for n in range(parts - 1):
                other = cell.split(cell.count - -(-cell.count // (parts - n)))
                cells.append(_in_lane(other, wide, parts - 1 - n))
            _in_lane(cell, wide, 0)


def _in_lane(cell: Cell, wide: set[Kernel], lane: int) -> Cell:
    """``cell`` with its fresh batches in lanes from the ``lane``-th last on."""
    batches: list[Batch] = []
    for batch in cell.batches:
        kernel = batch.kernel
        if batch.fresh and kernel in wide:
            counts: dict[int, int] = {}
            for n in range(batch.each):
                at = (PARTS - 1 - lane - n) % PARTS
                counts[at] = counts.get(at, 0) + 1
            batches += [Batch(kernel, count, batch.left * LANES[at]) for at, count in counts.items()]
        elif batch.fresh:
            batches.append(Batch(kernel, batch.each, batch.left * (MEAN if kernel.waved else 1.0)))
        else:
            batches.append(batch)
    cell.batches, cell.stale = batches, True
    return cell


def merged(cells: list[Cell]) -> list[Cell]:
    """Cells without those that are like an earlier one, which has their CUs."""
    if len(cells) <= FEW_CELLS and sum(not cell.batches for cell in cells) < 2:
        return cells
    seen: dict[tuple[float, ...], Cell] = {}
    for cell in cells:
        alike: dict[tuple[int, int], Batch] = {}
        for batch in cell.batches:
            block = batch.kernel.block
            mark = (batch.kernel.op, int(batch.left * GRAIN / block) if block > 0 else 0)
            twin = alike.setdefault(mark, batch)
            if twin is not batch:
                twin.each += batch.each
        if len(alike) < len(cell.batches):
            cell.batches = list(alike.values())
        key = [cell.takes, cell.carve]
        for mark in sorted(alike):
            key += (*mark, alike[mark].each)
        same = seen.setdefault(tuple(key), cell)
        if same is not cell:
            same.count += cell.count
    return list(seen.values())
