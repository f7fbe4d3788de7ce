"""Scratch memory that belongs to one stream: split partials, counters. Kept for as long as a graph may replay."""

from __future__ import annotations

import ctypes
import math
import sys
from functools import cache
from threading import Lock
from typing import Any

import torch

_Key = tuple[str, torch.device, int, torch.dtype]
_buffers: dict[_Key, list[torch.Tensor]] = {}
_of_captures: dict[_Key, tuple[int, torch.Tensor]] = {}
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

    What a capture is first to ask for is zeroed by replays of that graph alone, so it is that capture's own: a graph
    that is captured later, or a call before the first replay, or after a capture that failed, would not find zeros. A
    call before the capture, on its stream, spares the zeroing.
    """
    size = math.prod(shape)
    if device.type != "cuda":
        return torch.zeros(shape, dtype=dtype, device=device)
    key = (f"{name}.zeroed", device, torch.cuda.current_stream(device).cuda_stream, dtype)
    with _lock:
        held = _buffers.setdefault(key, [])
        if not held or held[-1].numel() < size:
            if torch.cuda.is_current_stream_capturing():
                return _of_capture(key, _capture_id(key[2]), max(size, 1))[:size].view(shape)
            held.append(torch.zeros(max(size, 1), dtype=dtype, device=device))
        return held[-1][:size].view(shape)


def _of_capture(key: _Key, capture: int, size: int) -> torch.Tensor:
    """At least ``size`` of ``key`` for the capture of this number, zeroed in it."""
    held = _of_captures.get(key)
    if held is None or held[0] != capture or held[1].numel() < size:
        held = _of_captures[key] = capture, torch.zeros(size, dtype=key[3], device=key[1])
    return held[1]


def _capture_id(stream: int) -> int:
    """The number of the capture that ``stream`` is part of; no other of this process has it. torch does not tell it."""
    status, number = ctypes.c_int(), ctypes.c_ulonglong()
    arguments = ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number)
    if torch.version.hip:
        code = _library("amdhip64.dll", "libamdhip64.so").hipStreamGetCaptureInfo(*arguments)
    else:
        code = _library("nvcuda.dll", "libcuda.so.1").cuStreamGetCaptureInfo_v2(*arguments, None, None, None)
    if code:
        raise RuntimeError(f"the driver does not say which capture a stream is part of: error {code}")
    return number.value


@cache
def _library(windows: str, linux: str) -> Any:
    return ctypes.CDLL(windows if sys.platform == "win32" else linux)
