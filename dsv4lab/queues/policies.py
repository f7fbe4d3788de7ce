"""Mapping of streams to hardware queues (hw-queues 1.2)."""

from __future__ import annotations

from dataclasses import dataclass

from dsv4lab.errors import UsageError

POLICIES = ("round_robin", "refcount")
"""What the CPU device offers."""

DYNAMIC_POLICIES = ("dynamic1", "dynamic2")
"""HIP since 7.14: a queue is picked at the first submission, by load."""

ALL_POLICIES = (*POLICIES, "stream_id", *DYNAMIC_POLICIES)

HIGH, NORMAL, LOW = -1, 0, 1
"""Stream priorities as HIP numbers them; each has a pool of its own."""


class QueuePool:
    """A pool of at most ``limit`` hardware queues; a stream is bound to one when it is created and keeps it.

    ``round_robin``: the n-th stream ever created gets queue ``n mod limit``. ``refcount`` (HIP up to ROCm 7.2): below
    the limit an unused queue is taken, else a new one is made; at the limit the queue with the fewest streams wins,
    the lowest id on a tie. ``stream_id``: the number at the end of the stream's name, modulo ``limit`` (``main`` is 0).

    Raises:
        UsageError: an unknown policy or a limit below 1.

    """

    def __init__(self, limit: int, policy: str = "round_robin") -> None:
        if policy not in (*POLICIES, "stream_id"):
            raise UsageError(f"queue policy {policy!r} is not one of {', '.join((*POLICIES, 'stream_id'))}")
        if limit < 1:
            raise UsageError(f"hardware queues must be 1 or more, got {limit}")
        self.limit = limit
        self.policy = policy
        self._created = 0
        self._queue_of: dict[str, int] = {}

    def acquire(self, stream: str) -> int:
        """The queue of ``stream``, bound at its first call."""
        if stream not in self._queue_of:
            self._queue_of[stream] = self._pick(stream)
            self._created += 1
        return self._queue_of[stream]

    def release(self, stream: str) -> None:
        """Destroy ``stream``; its queue has one user less."""
        self._queue_of.pop(stream, None)

    @property
    def mapping(self) -> dict[str, int]:
        """Queue by stream, in order of creation."""
        return dict(self._queue_of)

    def _pick(self, stream: str) -> int:
        if self.policy == "round_robin":
            return self._created % self.limit
        if self.policy == "stream_id":
            return stream_number(stream) % self.limit
        return self._least_used()

    def _least_used(self) -> int:
        users = [0] * self.limit
        for queue in self._queue_of.values():
            users[queue] += 1
        return users.index(min(users))


def stream_number(stream: str) -> int:
    """The number that ``stream`` ends with, counted from 1 for side streams; 0 for ``main`` and names without one."""
    digits = stream[len(stream.rstrip("0123456789")) :]
    if not digits:
        return 0
    return int(digits) + 1 if stream.startswith("side") else int(digits)


@dataclass(slots=True)
class RingState:
    """What the dynamic metric looks at: packets written and read, users, and whether the null stream owns the ring."""

    written: int = 0
    read: int = 0
    users: int = 0
    dedicated: bool = False


class DynamicPool:
    """HIP's dynamic queues (clr rocdevice.cpp): the lowest metric wins when a stream submits for the first time.

    The metric is ``2048`` if the ring is the null stream's own, plus ``16 * (written - read)``, plus its users; on a
    tie the lower ``queue mod pipes`` wins, then the lower queue. An unused regular queue is taken before the metric is
    looked at (rocm-systems#9249). ``mode`` 2 gives the null stream a ring of its own. A stream hands its queue back
    when idle, but only while the pool has more users than ``limit``.

    Raises:
        UsageError: a limit below 1, or a mode other than 1 and 2.

    """

    DEDICATED, DEPTH = 2048, 16

    def __init__(self, limit: int, mode: int = 1, pipes: int = 4) -> None:
        if limit < 1:
            raise UsageError(f"hardware queues must be 1 or more, got {limit}")
        if mode not in (1, 2):
            raise UsageError(f"dynamic queues have modes 1 and 2, got {mode}")
        self.limit = limit
        self.pipes = max(1, pipes)
        self.rings = [RingState() for _ in range(limit)]
        self._queue_of: dict[str, int] = {}
        self._previous: dict[str, int] = {}
        if mode == 2:
            self.rings[0].dedicated = True
            self.rings[0].users = 1
            self._queue_of["null"] = 0

    def acquire(self, stream: str, exclude: frozenset[int] = frozenset()) -> int:
        """The queue of ``stream``: the one it holds, its previous one if not excluded, else the best by the metric."""
        if stream in self._queue_of:
            return self._queue_of[stream]
        queue = self._previous.get(stream)
        if queue is None or queue in exclude:
            queue = self._best(exclude)
        self.rings[queue].users += 1
        self._queue_of[stream] = self._previous[stream] = queue
        return queue

    def idle(self, stream: str) -> bool:
        """``stream`` has drained: hand its queue back if the pool is oversubscribed. Whether it did."""
        if stream not in self._queue_of or len(self._queue_of) <= self.limit:
            return False
        self.rings[self._queue_of.pop(stream)].users -= 1
        self._previous.pop(stream, None)
        return True

    def submit(self, stream: str, packets: int = 1) -> int:
        """Write ``packets`` of ``stream``; its queue."""
        queue = self.acquire(stream)
        self.rings[queue].written += packets
        return queue

    @property
    def mapping(self) -> dict[str, int]:
        """Queue by stream."""
        return dict(self._queue_of)

    def metric(self, queue: int) -> int:
        """The lower, the better."""
        ring = self.rings[queue]
        return self.DEDICATED * ring.dedicated + self.DEPTH * (ring.written - ring.read) + ring.users

    def _best(self, exclude: frozenset[int]) -> int:
        allowed = [q for q in range(self.limit) if q not in exclude] or list(range(self.limit))
        unused = [q for q in allowed if self.rings[q].users == 0 and not self.rings[q].dedicated]
        if unused:
            return unused[0]
        return min(allowed, key=lambda q: (self.metric(q), q % self.pipes, q))


def torch_pool_size(hw_queues: int, priority: int = NORMAL, fixed: int = 0) -> int:
    """Side streams per priority that PyTorch makes on ROCm: ``max(1, Q-1)``, all ``Q`` at high priority, at most 32.

    ``fixed`` is the size in versions that do not look at the queue count (32).
    """
    if fixed:
        return fixed
    return min(32, hw_queues if priority == HIGH else max(1, hw_queues - 1))


def torch_stream(number: int, pool_size: int) -> int:
    """Which stream of its pool the ``number``-th ``torch.cuda.Stream()`` is (from 0): they are handed out in turn."""
    return number % pool_size
