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


def native(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile ``function`` at its first call; the machine code is cached on disk, beside the source if possible.

    There are no bounds checks: ``function`` checks every index it is handed and raises ``IndexError``, so that a wrong
    program is an error and never a crash. The cache follows the file of ``function`` only, so what it calls has to live
    in the same file.
    """
    compiled: Callable[..., Any] = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)(function)
    return compiled


def is_native(*tensors: torch.Tensor) -> bool:
    """Whether all ``tensors`` are float32 memory of the CPU."""
    return all(t.dtype is torch.float32 and t.is_cpu for t in tensors)
