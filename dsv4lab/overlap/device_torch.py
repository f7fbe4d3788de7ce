"""Streams, events and graphs of CUDA and HIP, through torch (which calls both ``cuda``)."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from dsv4lab.errors import UnavailableError

_SPIN_CYCLES = 2_000_000
_SPIN_ROUNDS = 25  # the first ones raise the clock


class TorchDevice:
    """See :class:`dsv4lab.overlap.device_api.DeviceApi`. Raises :class:`UnavailableError` where torch has no GPU."""

    def __init__(self, device: torch.device) -> None:
        if device.type != "cuda" or not torch.cuda.is_available():
            raise UnavailableError(f"device {device}: torch sees no GPU")
        self._device = device
        self._cuda: Any = torch.cuda  # torch does not annotate what follows
        self._cycles_per_us: float | None = None

    @property
    def kind(self) -> str:
        """See :attr:`DeviceApi.kind`."""
        return "hip" if torch.version.hip else "cuda"

    def stream(self, *, high: bool = False) -> Any:
        """See :meth:`DeviceApi.stream`."""
        return self._cuda.Stream(self._device, priority=-1 if high else 0)

    def current(self) -> Any:
        """See :meth:`DeviceApi.current`."""
        return self._cuda.current_stream(self._device)

    def run(self, stream: Any, work: Callable[[], None]) -> None:
        """See :meth:`DeviceApi.run`."""
        with self._cuda.stream(stream):
            work()

    def spin(self, us: float) -> None:
        """See :meth:`DeviceApi.spin`. The first call measures how many clock cycles a microsecond has."""
        self._cuda._sleep(max(1, round(us * self._rate())))

    def event(self, *, timed: bool = False) -> Any:
        """See :meth:`DeviceApi.event`."""
        return self._cuda.Event(enable_timing=timed)

    def record(self, event: Any, stream: Any) -> None:
        """See :meth:`DeviceApi.record`."""
        event.record(stream)

    def wait(self, stream: Any, event: Any) -> None:
        """See :meth:`DeviceApi.wait`."""
        stream.wait_event(event)

    def passed(self, event: Any) -> bool:
        """See :meth:`DeviceApi.passed`."""
        return bool(event.query())

    def elapsed_us(self, begin: Any, end: Any) -> float:
        """See :meth:`DeviceApi.elapsed_us`."""
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3

    def synchronize(self) -> None:
        """See :meth:`DeviceApi.synchronize`."""
        self._cuda.synchronize(self._device)

    def pool(self) -> Any:
        """See :meth:`DeviceApi.pool`."""
        return self._cuda.graph_pool_handle()

    def capture(self, stream: Any, pool: Any, work: Callable[[], None]) -> tuple[Any, int]:
        """See :meth:`DeviceApi.capture`."""
        graph, failure = self._cuda.CUDAGraph(), None
        self._cuda.synchronize(self._device)
        self._cuda.empty_cache()  # as capture does by itself: the growth below is the graph's alone
        before = self._cuda.memory_reserved(self._device)
        try:
            with self._cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                try:
                    work()
                except Exception as error:  # noqa: BLE001 - raised below; ending the capture may fail in turn
                    failure = error
        except Exception as error:  # noqa: BLE001 - the first of the two is raised
            raise (failure or error) from None
        if failure is not None:
            raise failure
        return graph, int(self._cuda.memory_reserved(self._device)) - int(before)

    def replay(self, graph: Any, stream: Any) -> None:
        """See :meth:`DeviceApi.replay`."""
        with self._cuda.stream(stream):
            graph.replay()

    def _rate(self) -> float:
        if self._cycles_per_us is None:
            stream, begin, end = self.current(), self.event(timed=True), self.event(timed=True)
            rates = []
            for _ in range(_SPIN_ROUNDS):
                self.record(begin, stream)
                self._cuda._sleep(_SPIN_CYCLES)
                self.record(end, stream)
                rates.append(_SPIN_CYCLES / self.elapsed_us(begin, end))
            self._cycles_per_us = statistics.median(rates[_SPIN_ROUNDS // 2 :])
        return self._cycles_per_us
