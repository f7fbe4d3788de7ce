"""The kernels on the device: how fast each runs beside the others, and which is through next."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence

from dsv4lab.queues.fluid import Sharing, corun_rates
from dsv4lab.queues.slots import waves
from dsv4lab.queues.workload import Cost

NEVER = float("inf")
ALONE = (1.0,)


class Running:
    """Kernels that have started and not ended, in the order in which they get room. Times are nanoseconds.

    ``left``: what is left of each, alone; ``rates``: how fast it goes now. A kernel of several waves has a ``mark``:
    what is left of it when its last wave begins, 0 from then on.
    """

    def __init__(self, costs: Sequence[Cost], sharing: Sharing, *, cores: bool = False) -> None:
        self.now = 0.0
        self.ids: list[int] = []
        self.left: list[float] = []
        self.rates: tuple[float, ...] = ()
        self._costs = costs
        self._sharing = sharing
        self._kinds: list[int] = []
        self._marks: list[float] = []
        self._tickets: list[int] = []
        self._cores: list[int] | None = [] if cores else None
        self._last = [1.0 - 1.0 / waves(cost, sharing.cus) for cost in costs]
        self._memo: dict[tuple[int, ...], tuple[float, ...]] = {}

    def add(self, op: int, kind: int, work: float, ticket: int, core: int = 0) -> None:
        """Op ``op``, whose cost is number ``kind``, starts and would take ``work`` alone. Low tickets get room first.

        ``core``: where it has to run, if that counts at all.
        """
        at = bisect(self._tickets, ticket)
        self._tickets.insert(at, ticket)
        self.ids.insert(at, op)
        self.left.insert(at, work)
        self._kinds.insert(at, kind)
        if self._cores is not None:
            self._cores.insert(at, core)
        self._marks.insert(at, work * (1.0 - self._last[kind]) if self._last[kind] else 0.0)
        self._rerate()

    def remove(self, at: int) -> int:
        """The kernel at place ``at`` ends; its op."""
        self.left.pop(at)
        self._kinds.pop(at)
        self._marks.pop(at)
        self._tickets.pop(at)
        if self._cores is not None:
            self._cores.pop(at)
        op = self.ids.pop(at)
        self._rerate()
        return op

    def advance(self, now: float) -> float:
        """Go on to ``now``; how long that was."""
        passed = now - self.now
        if passed > 0:
            if len(self.left) == 1:
                self.left[0] = max(0.0, self.left[0] - passed * self.rates[0])
            elif self.left:
                self.left = [max(0.0, left - passed * rate) for left, rate in zip(self.left, self.rates, strict=True)]
        self.now = now
        return passed

    def next_change(self) -> tuple[int, float]:
        """The kernel (by its place) that ends or begins its last wave first, and when."""
        if not self.ids:
            return -1, NEVER
        if len(self.ids) == 1 and not self._marks[0]:
            return 0, self.now + self.left[0]
        at, soonest = -1, NEVER
        for i, (left, mark, rate) in enumerate(zip(self.left, self._marks, self.rates, strict=True)):
            if rate > 0 and (left - mark) / rate < soonest:
                at, soonest = i, (left - mark) / rate
        return at, self.now + soonest

    def turns_last(self, at: int) -> bool:
        """Whether what comes next for the kernel at place ``at`` is its last wave; that begins now."""
        if not self._marks[at]:
            return False
        self._marks[at] = 0.0
        self._rerate()
        return True

    def _rerate(self) -> None:
        if len(self.ids) < 2:
            self.rates = ALONE
            return
        kinds = tuple(2 * kind + (mark > 0) for kind, mark in zip(self._kinds, self._marks, strict=True))
        key = kinds if self._cores is None else (*kinds, -1, *self._cores)
        rates = self._memo.get(key)
        if rates is None:
            costs, more = [self._costs[k // 2] for k in kinds], [bool(k % 2) for k in kinds]
            rates = self._memo[key] = corun_rates(costs, self._sharing, more, self._cores or ())
        self.rates = rates
