"""The kernels on a device of whose workgroups nothing is known, or of threads: how fast each runs beside the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsv4lab.queues.fluid import Sharing, corun_rates
from dsv4lab.queues.workload import Cost

NEVER = float("inf")
ALONE = (1.0,)
HELD = (0.0,)
ALL_BEGUN = 1
"""What a kernel's workgroups have done, if it has not ended."""


@dataclass(slots=True)
class _Kernel:
    op: int
    kind: int
    left: float
    ticket: int
    core: int
    held: bool
    code: int = 0

    def encode(self) -> None:
        """All that its rate and those of others depend on, as one number."""
        self.code = self.kind * 2 + self.held


class Running:
    """Kernels that have started and not ended, in the order in which they get room. Times are nanoseconds.

    ``rates``: how fast each goes now. One that was launched early is held until it is released, and does nothing.
    """

    def __init__(self, costs: Sequence[Cost], sharing: Sharing, *, cores: bool = False) -> None:
        self.now = 0.0
        self.rates: tuple[float, ...] = ()
        self._on: list[_Kernel] = []
        self._costs = costs
        self._sharing = sharing
        self._cores = cores
        self._memo: dict[tuple[int, ...], tuple[float, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._on)

    def add(
        self, op: int, kind: int, work: float, ticket: int, core: int = 0, *, held: bool = False, high: bool = False
    ) -> None:
        """Op ``op``, whose cost is number ``kind``, starts and would take ``work`` alone. Low tickets get a core first.

        ``core``: where it has to run, if that counts at all. ``held``: it is launched early. ``high`` says nothing, as
        nobody waits for room.
        """
        kernel = _Kernel(op, kind, work, ticket, core, held)
        kernel.encode()
        at = len(self._on)
        while at and self._on[at - 1].ticket > ticket:
            at -= 1
        self._on.insert(at, kernel)
        self._rerate()

    def release(self, op: int) -> bool:
        """Op ``op`` may go on; False if it was not launched early."""
        kernel = self._find(op)
        if kernel is None:
            return False
        kernel.held = False
        kernel.encode()
        self._rerate()
        return True

    def handed_out(self, op: int) -> bool:
        """Whether op ``op`` runs."""
        kernel = self._find(op)
        return kernel is not None and not kernel.held

    def placed(self, op: int) -> bool:
        """Whether op ``op`` runs, or is held."""
        return self._find(op) is not None

    def _find(self, op: int) -> _Kernel | None:
        return next((kernel for kernel in self._on if kernel.op == op), None)

    def advance(self, now: float) -> float:
        """Go on to ``now``; how long that was."""
        passed = now - self.now
        if passed > 0 and self.rates == ALONE:
            self._on[0].left = max(0.0, self._on[0].left - passed)
        elif passed > 0:
            for kernel, rate in zip(self._on, self.rates, strict=True):
                kernel.left = max(0.0, kernel.left - passed * rate)
        self.now = now
        return passed

    def next_change(self) -> tuple[int, float]:
        """The kernel (by its place) that ends first, and when."""
        if self.rates == ALONE:
            return 0, self.now + self._on[0].left
        at, soonest = -1, NEVER
        for i, (kernel, rate) in enumerate(zip(self._on, self.rates, strict=True)):
            if rate > 0 and kernel.left / rate < soonest:
                at, soonest = i, kernel.left / rate
        return at, self.now + soonest

    def change(self, at: int) -> tuple[int, int]:
        """The kernel at place ``at`` ends and is gone: its op, and 0."""
        kernel = self._on.pop(at)
        self._rerate()
        return kernel.op, 0

    def _rerate(self) -> None:
        if len(self._on) < 2:
            self.rates = (HELD if self._on[0].held else ALONE) if self._on else ()
            return
        key = tuple([kernel.code for kernel in self._on])
        if self._cores:
            key = (*key, -1, *(kernel.core for kernel in self._on))
        rates = self._memo.get(key)
        if rates is None:
            rates = self._memo[key] = corun_rates(
                [self._costs[kernel.kind] for kernel in self._on],
                self._sharing,
                [kernel.core for kernel in self._on] if self._cores else (),
                [kernel.held for kernel in self._on],
            )
        self.rates = rates
