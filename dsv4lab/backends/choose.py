"""Which backend serves a device: the one asked for, or the best that the machine has."""

from __future__ import annotations

import importlib.util
import logging
from functools import cache
from typing import Any

import torch

from dsv4lab.errors import UnavailableError, UsageError

BACKENDS = ("torch", "triton", "aiter")

_log = logging.getLogger(__name__)


def backend_ops(device: str, name: str | None = None, *, batch_invariant: bool = False) -> Any:
    """The ops of backend ``name`` for ``device`` (``cpu`` or ``cuda``, as torch calls AMD GPUs too).

    ``None``: torch on the CPU; on a GPU aiter where it is importable on ROCm, else Triton. The choice is logged once.
    In a process with ``TRITON_INTERPRET=1`` the Triton kernels serve the CPU too, slowly: to check them.
    An explicit name is never replaced by another: :class:`UnavailableError` says what is missing,
    :class:`UsageError` lists the names. ``batch_invariant`` asks for ops whose results for a row do not depend on the
    batch; a backend that cannot promise that is refused.
    """
    return _ops(device, name, batch_invariant)


@cache
def _ops(device: str, name: str | None, batch_invariant: bool) -> Any:
    chosen = name or default_backend(device)
    if chosen not in BACKENDS:
        raise UsageError(f"backend {chosen!r} is not one of {', '.join(BACKENDS)}")
    interpreted = chosen == "triton" and device == "cpu" and _interpreted()
    if (chosen == "torch") != (device == "cpu") and not interpreted:
        takes = "torch" if device == "cpu" else "triton or aiter"
        raise UnavailableError(f"backend {chosen} does not serve device {device}: it takes {takes}")
    if batch_invariant and chosen != "triton":
        raise UnavailableError(
            f"backend {chosen} cannot promise batch_invariant: the kernels that it calls are chosen by the shape of a "
            "batch. It takes backend triton, which runs on a GPU (and, interpreted, on the CPU)"
        )
    _log.info("backend %s for device %s (%s)", chosen, device, "asked for" if name else "chosen by capability")
    if chosen == "torch":
        from dsv4lab.backends.torch_ops import TORCH_OPS

        return TORCH_OPS
    if not interpreted and not torch.cuda.is_available():
        raise UnavailableError(f"backend {chosen} takes a GPU, and torch sees none")
    if chosen == "triton":
        from dsv4lab.backends.invariant_ops import invariant_ops
        from dsv4lab.backends.triton_ops import triton_ops

        return invariant_ops() if batch_invariant else triton_ops()
    from dsv4lab.backends.aiter.ops import aiter_ops

    return aiter_ops()


def _interpreted() -> bool:
    if importlib.util.find_spec("triton") is None:
        return False
    from dsv4_kernels.testing.interpreter import active

    return active()


def default_backend(device: str) -> str:
    """The backend that :func:`backend_ops` takes where none is named."""
    if device == "cpu":
        return "torch"
    on_rocm = torch.version.hip is not None
    return "aiter" if on_rocm and importlib.util.find_spec("aiter") is not None else "triton"
