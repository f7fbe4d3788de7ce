"""Recording through torch's profiler, in the worker; and how long steps take that nobody profiles."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from dsv4lab.engine.messages import Captured
from dsv4lab.engine.protocol import ModelRunner
from dsv4lab.engine.results import ProfilingCost
from dsv4lab.errors import EngineError, UnavailableError

if TYPE_CHECKING:
    from dsv4lab.engine.telemetry import Ran
    from dsv4lab.trace.capture import TorchCapture

EXPORT_S = 600.0
"""Seconds that torch may take to write a capture."""

REMEMBERED = 16
MAX_SHAPES = 256

Shape = tuple[str, int, int, str]
"""Mode, tokens, requests, plan."""


class UsualTimes:
    """Device times of the last steps of every shape that ran without a profiler, in nanoseconds."""

    def __init__(self) -> None:
        self._times: dict[Shape, deque[int]] = {}

    def add(self, ran: Ran) -> None:
        """Remember a step that was not profiled."""
        shape = _shape(ran)
        times = self._times.pop(shape, None) or deque(maxlen=REMEMBERED)
        times.append(_span_ns(ran))
        self._times[shape] = times  # the last one used is the last to be forgotten
        if len(self._times) > MAX_SHAPES:
            self._times.pop(next(iter(self._times)))

    def cost(self, rans: list[Ran]) -> ProfilingCost | None:
        """Profiled steps against others of the same shape, for the shape that has most; None if none has any."""
        profiled: dict[Shape, list[int]] = {}
        for ran in rans:
            profiled.setdefault(_shape(ran), []).append(_span_ns(ran))
        both = [shape for shape in profiled if shape in self._times]
        if not both:
            return None
        shape = max(both, key=lambda s: len(profiled[s]))
        mode, tokens, requests, plan = shape
        usual = self._times[shape]
        return ProfilingCost(
            what=f"{mode} of {tokens} tokens of {requests} requests under plan {plan}",
            profiled_us=median(profiled[shape]) / 1e3,
            profiled_steps=len(profiled[shape]),
            unprofiled_us=median(usual) / 1e3,
            unprofiled_steps=len(usual),
        )


class TorchRecording:
    """One recording, from :meth:`start` to :meth:`end`; ``path`` is where torch writes what it saw.

    What other ranks of the attention group saw lies beside it: they run the same programs in the same order.
    """

    def __init__(self, runner: ModelRunner, path: Path) -> None:
        self._runner = runner
        self._path = path
        self._capture: TorchCapture | None = None

    @property
    def running(self) -> bool:
        """Whether the profiler is on."""
        return self._capture is not None

    def start(self) -> None:
        """Profile from the next forward on. Raises :class:`UnavailableError` if torch cannot here."""
        from dsv4lab.trace.capture import TorchCapture

        capture = TorchCapture(device=self._runner.device_status() is not None)
        try:
            capture.start()
        except RuntimeError as error:
            raise UnavailableError(f"torch's profiler does not start: {' '.join(str(error).split())}") from error
        self._capture = capture
        self._runner.profile_ranks(self._path)
        self._runner.trace_with(capture)

    def on_step(self, number: int) -> None:
        """A step is over; its runs are those since the last one."""
        if self._capture is not None:
            self._capture.belongs_to(number)

    def end(self, cost: ProfilingCost | None) -> Captured | None:
        """Stop, and write the files; None if it was never started. Raises :class:`EngineError` if they cannot be."""
        capture, self._capture = self._capture, None
        if capture is None:
            return None
        self._runner.trace_with(None)
        try:
            capture.stop()
            capture.export(self._path)
        except (RuntimeError, OSError) as error:
            raise EngineError(f"torch's profiler cannot write {self._path}: {' '.join(str(error).split())}") from error
        ranks = self._runner.profile_ranks(None)
        return Captured(str(self._path), capture.platform, capture.programs, capture.runs, cost, ranks)


def _shape(ran: Ran) -> Shape:
    return ran.step.mode, ran.step.tokens, len(ran.step.chunks), ran.plan


def _span_ns(ran: Ran) -> int:
    record = ran.record
    return int(record.end_ns.max() - record.queued_ns.min()) if len(record.end_ns) else 0
