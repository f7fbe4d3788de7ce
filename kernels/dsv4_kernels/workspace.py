"""Scratch memory that belongs to one stream: split partials, counters. Kept for as long as a graph may replay."""

from __future__ import annotations

import math
from threading import Lock

import torch

_buffers: dict[tuple[str, torch.device, int, torch.dtype], list[torch.Tensor]] = {}
_lock = Lock()


def workspace(name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """An uninitialised ``shape`` of ``dtype``, the same memory for every call of ``name`` on the current stream.

    Ops on one stream run one after the other, so they may share it; ops on two streams get two. A buffer that has
    become too small is kept beside the larger one, since a captured graph may still write to it.
    """
    size = math.prod(shape)
    if device.type != "cuda":
        return torch.empty(shape, dtype=dtype, device=device)
    key = (name, device, torch.cuda.current_stream(device).cuda_stream, dtype)
    with _lock:
        held = _buffers.setdefault(key, [])
        if not held or held[-1].numel() < size:
            held.append(torch.empty(max(size, 1), dtype=dtype, device=device))
        return held[-1][:size].view(shape)


def zeroed_workspace(name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """As :func:`workspace`, but zero when it is first handed out; its users leave it zero behind them.

    What a capture asks for and there is no room for yet is the captured graph's own, zeroed in each replay: memory that
    a graph zeroes is not zero until it is replayed, so nothing else may have it.
    """
    size = math.prod(shape)
    if device.type != "cuda":
        return torch.zeros(shape, dtype=dtype, device=device)
    key = (f"{name}.zeroed", device, torch.cuda.current_stream(device).cuda_stream, dtype)
    with _lock:
        held = _buffers.setdefault(key, [])
        if not held or held[-1].numel() < size:
            fresh = torch.zeros(max(size, 1), dtype=dtype, device=device)
            if torch.cuda.is_current_stream_capturing():
                return fresh[:size].view(shape)
            held.append(fresh)
        return held[-1][:size].view(shape)
