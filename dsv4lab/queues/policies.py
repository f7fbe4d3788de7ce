"""Mapping of streams to hardware queues (hw-queues 1.2)."""

from __future__ import annotations

from dsv4lab.errors import UsageError

POLICIES = ("round_robin", "refcount")


class QueuePool:
    """A pool of at most ``limit`` hardware queues; a stream is bound to one when it is created and keeps it.

    ``round_robin``: the n-th stream ever created gets queue ``n mod limit``. ``refcount`` (HIP up to ROCm 7.2): below
    the limit an unused queue is taken, else a new one is made; at the limit the queue with the fewest streams wins,
    the lowest id on a tie.

    Raises:
        UsageError: an unknown policy or a limit below 1.

    """

    def __init__(self, limit: int, policy: str = "round_robin") -> None:
        if policy not in POLICIES:
            raise UsageError(f"queue policy {policy!r} is not one of {', '.join(POLICIES)}")
        if limit < 1:
            raise UsageError(f"hardware queues must be 1 or more, got {limit}")
        self.limit = limit
        self.policy = policy
        self._created = 0
        self._queue_of: dict[str, int] = {}

    def acquire(self, stream: str) -> int:
        """The queue of ``stream``, bound at its first call."""
        if stream not in self._queue_of:
            pick = self._created % self.limit if self.policy == "round_robin" else self._least_used()
            self._queue_of[stream] = pick
            self._created += 1
        return self._queue_of[stream]

    def release(self, stream: str) -> None:
        """Destroy ``stream``; its queue has one user less."""
        self._queue_of.pop(stream, None)

    @property
    def mapping(self) -> dict[str, int]:
        """Queue by stream, in order of creation."""
        return dict(self._queue_of)

    def _least_used(self) -> int:
        users = [0] * self.limit
        for queue in self._queue_of.values():
            users[queue] += 1
        return users.index(min(users))
