"""What a front end decides: which lane every op is on, and which hardware queue every lane is on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """``lanes[i]``: lane of op ``i``; ``waits[i]``: ops whose signals it waits for; ``queue_of_lane``: hardware queues.

    ``segments``: pieces that the host submits one by one (graphs) or launches (eager). ``lane_names`` label the lanes.
    ``mapped``: hardware queues that the process holds, used or not. ``notes``: decisions worth telling.
    """

    lanes: tuple[int, ...]
    waits: tuple[tuple[int, ...], ...]
    queue_of_lane: tuple[int, ...]
    lane_names: tuple[str, ...]
    segments: tuple[int, ...]
    mapped: int
    notes: tuple[str, ...] = ()

    @property
    def queues(self) -> int:
        """Highest queue in use, plus one."""
        return 1 + max(self.queue_of_lane, default=-1)
