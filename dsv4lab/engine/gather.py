"""Waiting for several requests at once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from dsv4lab.engine.handle import RequestHandle
from dsv4lab.engine.results import GenerateResult
from dsv4lab.errors import LabError


def gather(handles: Sequence[RequestHandle], timeout_s: float | None) -> GenerateResult:
    """Wait for all of them. Whatever interrupts that aborts those that are left."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        tokens = [h.result(None if deadline is None else max(0.0, deadline - time.monotonic())) for h in handles]
    except BaseException:
        for handle in handles:
            with contextlib.suppress(LabError):  # the first error is the one to tell
                handle.abort()
        raise
    begin = min((h.submitted_ns for h in handles), default=0)
    end = max((h.ended_ns for h in handles), default=0)
    return GenerateResult.of(tokens, [h.stats for h in handles], end - begin)
