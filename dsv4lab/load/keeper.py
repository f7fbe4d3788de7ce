"""Ends a process group when whoever started this has gone: ``python keeper.py PGID STOP_S``, told by its input.

A byte means that the group is taken care of; the end of the input without one, that the session was killed. It is run
as a file, and needs nothing but the standard library.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

_POLL_S = 0.05


def main(group: int, stop_s: float) -> None:
    """Wait for the word, and end ``group`` without it: asked, then killed after ``stop_s`` seconds."""
    if os.read(sys.stdin.fileno(), 1):
        return
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
        deadline = time.monotonic() + stop_s
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(_POLL_S)
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
