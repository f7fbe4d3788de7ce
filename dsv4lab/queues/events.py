"""The event loop: rings in order, signals, the command processor's costs, and kernels that share the device.

All times are float nanoseconds from the host's first submission.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from dsv4lab.queues.costs import Machine
from dsv4lab.queues.fluid import Sharing
from dsv4lab.queues.packets import Packets
from dsv4lab.queues.placing import Placing
from dsv4lab.queues.policies import HIGH, NORMAL
from dsv4lab.queues.running import ALL_BEGUN, NEVER, Running
from dsv4lab.queues.workload import Cost, Workload

START, WAKE, WRITTEN, EARLY = 0, 1, 2, 3


@dataclass(slots=True)
class Times:
    """By op: when it came to the head of its ring, started and ended. ``taxed``: dispatches that paid the poll tax;
    ``blocked_ns``: time with at least one queue blocked on a signal.
    """

    head: list[float]
    start: list[float]
    end: list[float]
    taxed: int = 0
    blocked_ns: float = 0.0


def _kinds(costs: Sequence[Cost]) -> tuple[list[int], list[Cost]]:
    """Equal costs by number. Most ops share their cost object, and looking that up is far quicker than hashing it."""
    by_object: dict[int, int] = {}
    by_value: dict[Cost, int] = {}
    found = []
    for cost in costs:
        kind = by_object.get(id(cost))
        if kind is None:
            kind = by_object[id(cost)] = by_value.setdefault(cost, len(by_value))
        found.append(kind)
    return found, list(by_value)


class Simulation:
    """One run of packets on a machine. ``floors``: collectives (ops) that end no sooner than this many nanoseconds
    after the collective before them, because another rank is late.
    """

    def __init__(
        self, workload: Workload, packets: Packets, machine: Machine, mapped: int, floors: Mapping[int, float]
    ) -> None:
        n = len(workload)
        self.packets = packets
        self.rings, self.queue, self.extra = packets.rings, packets.queue, list(packets.extra_ns)
        self.early, self.late, self.ahead = packets.early, workload.late_us, workload.ahead_us
        self.early_ns, self.some_early = machine["early_us"] * 1e3, any(packets.early)
        self.high = [workload.priorities.get(stream, NORMAL) == HIGH for stream in workload.streams]
        self.collective = [kind == "collective" for kind in workload.kinds]
        self.floors = floors
        self.times = Times([0.0] * n, [0.0] * n, [NEVER] * n)
        self.kind, self.costs = _kinds(workload.costs)
        self.work = [c.us * 1e3 for c in workload.costs]
        over = max(0.0, mapped - machine["queue_slots"]) / max(1.0, machine["queue_slots"])
        self.gap = (machine["gap_us"] + over * machine["oversubscription_us"]) * 1e3
        self.barrier, self.signal = machine["barrier_us"] * 1e3, machine.signal_us * 1e3
        self.tax = machine.poll_tax_us * 1e3
        self.pipes = max(1, int(machine["pipes"])) if machine["poll_scope_pipe"] else 1
        self.blocked, self.waiting = [0] * self.pipes, 0
        sharing = Sharing(
            machine["corun_loss"], machine["latency_load"], max(1, int(machine["cus"])), machine["corun_slow"],
            machine["crowd_slow"], machine["kernel_floor_us"],
        )  # fmt: skip
        cores = machine.runtime.run_to_block
        known = not cores and all(cost.blocks for cost in self.costs)
        self.running = Placing(self.costs, sharing) if known else Running(self.costs, sharing, cores=cores)
        self.spacing, self.last_start = machine["dispatch_us"] * 1e3, -NEVER
        queues = len(packets.rings)
        self.position, self.pending = [0] * queues, [0] * queues
        self.visible = [0.0] * queues
        self.outstanding, self.stalled = [0] * queues, [False] * queues
        self.keeps, self.ticket, self.tickets = machine.runtime.run_to_block, list(range(queues)), queues
        others = max(1, sharing.cus - 1)
        self.core = [0 if q == 0 else (1 + (q - 1) % others) % sharing.cus for q in range(queues)]
        self.waiters: dict[int, list[int]] = {}
        self.heap: list[tuple[float, int, int, int]] = []
        self.sequence = 0
        self.last_collective = 0.0
        self.settled = False  # whether no other ring is about to dispatch at this very moment

    def run(self) -> Times:
        """Run until every ring is empty."""
        for q, ring in enumerate(self.rings):
            if ring:
                self._head(q, 0.0)
        self.settled = True
        heap, running = self.heap, self.running
        while heap or running:
            at, end = running.next_change()
            if heap and heap[0][0] < end:
                now, _, what, q = heappop(heap)
                if what == START:
                    self._start(q, now)
                elif what == WRITTEN:
                    self._head(q, now)
                elif what == EARLY:
                    self._place(q, now)
                else:
                    self._resume(q, now)
            else:
                self._end(at, end)
        return self.times

    def _resume(self, q: int, now: float) -> None:
        """Queue ``q`` has seen its signals; those that see theirs at the same moment do not poll any more either."""
        heap, woken = self.heap, [q]
        while heap and heap[0][0] == now and heap[0][2] == WAKE:
            woken.append(heappop(heap)[3])
        for one in woken:
            self.blocked[one % self.pipes] -= 1
            i = self.rings[one][self.position[one]]
            if now > self.times.head[i]:
                self._take_ticket(one)
                if self.early[i] and self.late and not self.running.placed(i):  # too late to be launched early
                    self.extra[i] += self.late[i] * 1e3
                    self.work[i] += self.ahead[i] * 1e3
        self.waiting -= len(woken)
        self.settled = len(woken) == 1
        for one in woken:
            self._dispatch(one, now)
        self.settled = True

    def _take_ticket(self, q: int) -> None:
        """Queue ``q`` stands behind all others that want room for workgroups."""
        self.ticket[q] = self.tickets
        self.tickets += 1

    def _push(self, when: float, what: int, q: int) -> None:
        self.sequence += 1
        heappush(self.heap, (when, self.sequence, what, q))

    def _head(self, q: int, now: float) -> None:
        """The next packet of ring ``q`` comes to its head."""
        i = self.rings[q][self.position[q]]
        times, packets = self.times, self.packets
        ready = packets.ready_ns[i]
        waits = packets.waits[i]
        if waits and ready > now:  # which of its producers the host still has to wait for shows when it writes
            self._push(ready, WRITTEN, q)
            return
        now = max(now, ready)
        times.head[i] = now
        if not waits:
            self._dispatch(q, now)
            return
        end = times.end
        if ready and all(end[w] <= ready for w in waits):  # done when the host wrote the packet: no barrier was written
            self._dispatch(q, now)
            return
        visible, pending = now + packets.barriers[i] * self.barrier, 0
        for w in waits:
            if end[w] == NEVER:
                self.waiters.setdefault(w, []).append(q)
                pending += 1
            elif end[w] + self.signal > visible:
                visible = end[w] + self.signal
        self.blocked[q % self.pipes] += 1
        self.waiting += 1
        self.visible[q], self.pending[q] = visible, pending
        if not pending:
            self._push(visible, WAKE, q)

    def _dispatch(self, q: int, now: float) -> None:
        """Send the packet at the head of ring ``q``, and those behind it for as long as they have the device alone."""
        ring, position, running, heap = self.rings[q], self.position[q], self.running, self.heap
        packets, times = self.packets, self.times
        bits, ready_ns, waits, size = packets.barrier_bit, packets.ready_ns, packets.waits, len(ring)
        extra, work, collective, early = self.extra, self.work, self.collective, self.early
        taxed = bool(self.tax and self.blocked[q % self.pipes])  # nothing that is seen here changes that
        gap = self.gap + self.tax if taxed else self.gap
        while True:
            i = ring[position]
            when = now + gap + extra[i]
            times.taxed += taxed
            end = when + (self._work(i, when) if collective[i] else work[i])
            last = position + 1 == size
            busy = running or not self.settled or (heap and heap[0][0] <= end)
            if busy or not (last or (bits[ring[position + 1]] and not early[ring[position + 1]])):
                self.position[q] = position
                self._push(when, START, q)
                return
            if self.waiting and end > running.now:
                times.blocked_ns += end - running.now
            running.now = end
            times.start[i], times.end[i] = when, end
            self.last_start = when
            if collective[i]:
                self.last_collective = end
            position += 1
            if i in self.waiters:
                self._wake(i, end)
            if last:
                self.position[q] = position
                return
            i = ring[position]
            if waits[i]:
                self.position[q] = position
                self._head(q, end)
                return
            now = times.head[i] = max(end, ready_ns[i])

    def _work(self, i: int, start: float) -> float:
        """What op ``i`` takes alone; a collective waits for the slowest rank."""
        if self.collective[i] and i in self.floors:
            return max(self.work[i], self.last_collective + self.floors[i] - start)
        return self.work[i]

    def _wake(self, i: int, now: float) -> None:
        """Op ``i`` has ended: queues that wait for it see that once its signal has reached them."""
        for waiter in self.waiters.pop(i):
            self.pending[waiter] -= 1
            self.visible[waiter] = max(self.visible[waiter], now + self.signal)
            if not self.pending[waiter]:
                self._push(self.visible[waiter], WAKE, waiter)

    def _start(self, q: int, now: float) -> None:
        if now < self.last_start + self.spacing:
            self._push(self.last_start + self.spacing, START, q)
            return
        self.last_start = now
        ring = self.rings[q]
        i = ring[self.position[q]]
        self._advance(now)
        self.times.start[i] = now
        if not self.early[i] or not self.running.release(i):
            if not self.keeps:
                self._take_ticket(q)
            kind, high = self.kind[i], self.high[i]
            self.running.add(i, kind, self._work(i, now), self.ticket[q], self.core[q], high=high)
        self.outstanding[q] += 1
        self.position[q] += 1
        if self.some_early:
            self._launch_early(q, i, now)
        if self.position[q] < len(ring):
            if self.packets.barrier_bit[ring[self.position[q]]]:
                self.stalled[q] = True
            else:
                self._head(q, now)

    def _launch_early(self, q: int, i: int, now: float) -> None:
        """Once op ``i`` of ring ``q`` works and all its workgroups are placed, the next op may be launched early."""
        ring, position = self.rings[q], self.position[q]
        if position < len(ring) and self.early[ring[position]] and self.running.handed_out(i):
            self._push(max(now + self.early_ns, self.packets.ready_ns[ring[position]]), EARLY, ring[position])

    def _place(self, i: int, now: float) -> None:
        """Op ``i`` takes its places while the one before it in its ring runs, if that still does and nothing else
        keeps it.
        """
        q = self.queue[i]
        ring, position = self.rings[q], self.position[q]
        if position == len(ring) or ring[position] != i or not self.outstanding[q]:
            return
        if any(self.times.end[w] + self.signal > now for w in self.packets.waits[i]):
            return
        self._advance(now)
        self._take_ticket(q)
        kind, high = self.kind[i], self.high[i]
        self.running.add(i, kind, self.work[i], self.ticket[q], self.core[q], held=True, high=high)

    def _end(self, at: int, now: float) -> None:
        """The kernel at place ``at`` ends, or workgroups do."""
        self._advance(now)
        i, what = self.running.change(at)
        q = self.queue[i]
        if what:
            if what == ALL_BEGUN:
                self._launch_early(q, i, now)
            return
        self.times.end[i] = now
        if self.collective[i]:
            self.last_collective = now
        self.outstanding[q] -= 1
        if i in self.waiters:
            self._wake(i, now)
        if self.stalled[q] and not self.outstanding[q]:
            self.stalled[q] = False
            self._head(q, now)

    def _advance(self, now: float) -> None:
        passed = self.running.advance(now)
        if passed > 0 and self.waiting:
            self.times.blocked_ns += passed
