"""Whoever wants to know, while a profiler runs, which op the host issues. Without one, streams do nothing for it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from dsv4lab.timeline.program import ProgramOp, StreamProgram


class Tracer(Protocol):
    """Ranges around what the host issues. :class:`dsv4lab.trace.capture.TorchCapture` is the one with torch."""

    def op(self, op: ProgramOp) -> AbstractContextManager[object]:
        """Around the call of one op of an eager run."""
        ...

    def run(self, program: StreamProgram, *, graph: bool) -> AbstractContextManager[object]:
        """Around the issue of one run of ``program``; with ``graph``, one launch that shows no ops."""
        ...

    def setup(self) -> AbstractContextManager[object]:
        """Around captures, measurements and warm-up: nothing in it belongs to a step."""
        ...

    def learn(self, program: StreamProgram) -> AbstractContextManager[object]:
        """Around an eager run whose kernels tell which ones a replay of ``program`` has, op by op."""
        ...

    def knows(self, program: StreamProgram) -> bool:
        """Whether ``program`` was learnt already."""
        ...
