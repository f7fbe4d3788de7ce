"""The kernels on the device: how fast each runs beside the others, and what comes next for which of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsv4lab.queues.fluid import Sharing, corun_rates
from dsv4lab.queues.slots import waves
from dsv4lab.queues.workload import Cost

NEVER = float("inf")
ALONE = (1.0,)
HELD = (0.0,)
PIECES = 4
"""A last wave ends in so many pieces, one after the other from its begin to its end."""


@dataclass(slots=True)
class _Kernel:
    """``left``: what is left of it, alone; ``phase``: ``PIECES + 1`` until its last wave begins, then how many pieces
    of that still run; ``mark``: what is left of it when the next phase begins; ``wave``: what a wave takes alone.
    """

    op: int
    kind: int
    left: float
    wave: float
    phase: int
    ticket: int
    core: int
    held: bool
    mark: float
    high: bool
    code: int = 0

    def encode(self) -> None:
        """All that its rate and those of others depend on, as one number."""
        self.code = (self.kind * (PIECES + 2) + self.phase) * 2 + self.held


def _mark(wave: float, phase: int) -> float:
    return wave * min(1.0, (phase - 1) / PIECES) if phase > 1 else 0.0


class Running:
    """Kernels that have started and not ended, in the order in which they get room. Times are nanoseconds.

    ``rates``: how fast each goes now. One that was launched early is held until it is released: it has its room, and
    does nothing.
    """

    def __init__(self, costs: Sequence[Cost], sharing: Sharing, *, cores: bool = False) -> None:
        self.now = 0.0
        self.rates: tuple[float, ...] = ()
        self._on: list[_Kernel] = []
        self._costs = costs
        self._sharing = sharing
        self._cores = cores
        self._waves = [waves(cost, sharing.cus) for cost in costs]
        self._memo: dict[tuple[int, ...], tuple[float, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._on)

    def add(
        self, op: int, kind: int, work: float, ticket: int, core: int = 0, *, held: bool = False, high: bool = False
    ) -> None:
        """Op ``op``, whose cost is number ``kind``, starts and would take ``work`` alone. Low tickets get room first.

        ``core``: where it has to run, if that counts at all. ``held``: it is launched early. ``high``: it gets room
        before others that have workgroups left to start, or have none that runs; nobody is put out.
        """
        count, blocks = self._waves[kind], self._costs[kind].blocks
        phase = PIECES + 1 if count > 1 else PIECES if blocks >= PIECES and not self._cores else 1
        wave = work / count
        kernel = _Kernel(op, kind, work, wave, phase, ticket, core, held, _mark(wave, phase), high)
        kernel.encode()
        at = len(self._on)
        while at and self._goes_before(kernel, at - 1):
            at -= 1
        self._on.insert(at, kernel)
        self._rerate()

    def _goes_before(self, kernel: _Kernel, at: int) -> bool:
        other = self._on[at]
        if other.high or not kernel.high:
            return other.ticket > kernel.ticket and other.high <= kernel.high
        return other.phase > PIECES or (self.rates[at] == 0 and not other.held)

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
        """Whether op ``op`` runs, and no workgroup of it is left to start."""
        kernel = self._find(op)
        return kernel is not None and not kernel.held and kernel.phase <= PIECES

    def placed(self, op: int) -> bool:
        """Whether op ``op`` has its places, at work or held."""
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
        """The kernel (by its place) for which another phase begins first, or that ends, and when."""
        if self.rates == ALONE:
            return 0, self.now + self._on[0].left - self._on[0].mark
        at, soonest = -1, NEVER
        for i, (kernel, rate) in enumerate(zip(self._on, self.rates, strict=True)):
            if rate > 0 and (kernel.left - kernel.mark) / rate < soonest:
                at, soonest = i, (kernel.left - kernel.mark) / rate
        return at, self.now + soonest

    def change(self, at: int) -> tuple[int, int]:
        """The kernel at place ``at`` comes to its next phase: its op, and that phase; 0 if it ended and is gone."""
        kernel = self._on[at]
        kernel.phase -= 1
        if kernel.phase:
            kernel.mark = _mark(kernel.wave, kernel.phase)
            kernel.encode()
        else:
            del self._on[at]
        self._rerate()
        return kernel.op, kernel.phase

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
                [kernel.phase > PIECES for kernel in self._on],
                [kernel.core for kernel in self._on] if self._cores else (),
                [min(1.0, kernel.phase / PIECES) for kernel in self._on],
                [kernel.held for kernel in self._on],
            )
        self.rates = rates
