"""Waiting for several requests at once."""

from __future__ import annotations

import time
from collections.abc import Sequence

from dsv4lab.engine.handle import RequestHandle
from dsv4lab.engine.results import GenerateResult


def gather(handles: Sequence[RequestHandle], timeout_s: float | None) -> GenerateResult:
    """Wait for all of them. Raises what the first that fails raises."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    tokens = [h.result(None if deadline is None else max(0.0, deadline - time.monotonic())) for h in handles]
    begin = min((h.submitted_ns for h in handles), default=0)
    end = max((h.ended_ns for h in handles), default=0)
    texts = [h.text for h in handles]
    known = None if all(text is None for text in texts) else [text or "" for text in texts]
    return GenerateResult.of(tokens, [h.stats for h in handles], end - begin, texts=known)
