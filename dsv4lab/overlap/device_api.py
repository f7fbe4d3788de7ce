"""What device streams need of a GPU's runtime. :mod:`dsv4lab.overlap.device_torch` is the one for CUDA and HIP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

Stream = Any
"""An in-order stream of the device; compared with ``==``."""

Event = Any
"""A point of a stream. Waits refer to what was recorded last when they were issued, so an event can be used again."""

Graph = Any
"""A captured graph, ready to be replayed."""

Pool = Any
"""Memory that graphs of one device share; they are replayed one after the other."""


class DeviceApi(Protocol):
    """Streams, events and graphs. Nothing here waits on the host, but for ``synchronize`` and ``elapsed_us``."""

    @property
    def kind(self) -> str:
        """``cuda`` or ``hip``."""
        ...

    def stream(self, *, high: bool = False) -> Stream:
        """A side stream of the process, of ``high`` or normal priority; it may be one that was given out before."""
        ...

    def current(self) -> Stream:
        """The caller's stream."""
        ...

    def run(self, stream: Stream, work: Callable[[], None]) -> None:
        """Issue what ``work`` launches on ``stream``."""
        ...

    def spin(self, us: float) -> None:
        """Issue a kernel of one thread that runs for about ``us`` microseconds on the current stream."""
        ...

    def event(self, *, timed: bool = False) -> Event:
        """A new event."""
        ...

    def record(self, event: Event, stream: Stream) -> None:
        """Let ``event`` stand for all that ``stream`` has been given so far."""
        ...

    def wait(self, stream: Stream, event: Event) -> None:
        """Let what ``stream`` is given from now on run after ``event``."""
        ...

    def passed(self, event: Event) -> bool:
        """Whether the device has reached ``event``."""
        ...

    def elapsed_us(self, begin: Event, end: Event) -> float:
        """Time from ``begin`` to ``end``, both timed; waits for ``end``."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done everything."""
        ...

    def pool(self) -> Pool:
        """An empty pool of memory for graphs."""
        ...

    def capture(self, stream: Stream, pool: Pool, work: Callable[[], None]) -> tuple[Graph, int]:
        """Capture what ``work`` launches, from ``stream`` on, and tell by how many bytes memory grew.

        Raises what ``work`` raised, else what the runtime says; no stream is left capturing.
        """
        ...

    def replay(self, graph: Graph, stream: Stream) -> None:
        """Issue a replay of ``graph`` on ``stream``."""
        ...
