"""Compiled loops for the CPU: one pass over a few rows, where a chain of tensor calls would cost more than its work.

An op's ``_native.py`` holds such loops and its ``cpu.py`` decides when they run. They release the interpreter lock,
so hardware queues of the CPU device overlap inside them; sums may be reassociated, always in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import torch

FAST = {"contract", "reassoc", "nsz", "arcp"}
"""What the compiler may assume: everything but the absence of infinities and NaN."""

LOOPS: list[Any] = []
"""Every loop of the modules imported so far, as Numba's dispatchers."""

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": FAST}


def native(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile ``function`` at its first call; the machine code is cached on disk, beside the source if possible.

    There are no bounds checks: ``function`` checks every index it is handed and raises ``IndexError``, so that a wrong
    program is an error and never a crash. The cache follows the file of ``function`` only, so what it calls has to live
    in the same file, and is a :func:`native_part`. Without a folder that can be written, each process compiles anew.
    """
    try:
        compiled: Callable[..., Any] = numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError as error:
        if "no locator" not in str(error):
            raise
        compiled = numba.njit(**_OPTIONS)(function)
    LOOPS.append(compiled)
    return compiled


def native_part(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that loops of its file call: its code becomes part of theirs, and has no symbol that they call.

    A loop that called another by its symbol ran, in the process that had compiled it, the other's own code, and after a
    start from the cache the copy that lies in its own object: optimised otherwise, rounded otherwise.
    """
    compiled: Callable[..., Any] = numba.njit(forceinline=True, **_OPTIONS)(function)
    return compiled


def is_native(*tensors: torch.Tensor) -> bool:
    """Whether all ``tensors`` are float32 memory of the CPU."""
    return all(t.dtype is torch.float32 and t.is_cpu for t in tensors)
