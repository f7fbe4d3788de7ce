"""What is asked of torch.cuda, without a GPU: that torch takes these calls, and how captures end."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dsv4lab.errors import UnavailableError
from dsv4lab.overlap.device_torch import TorchDevice

DEVICE = torch.device("cuda", 0)


class Cuda:
    """As much of ``torch.cuda`` as a device asks for; ``end_fails``: ending a capture is an error."""

    def __init__(self) -> None:
        self.end_fails = False
        self.reserved = [1000, 1600]
        self.asked: list[Any] = []

    def CUDAGraph(self) -> SimpleNamespace:
        return SimpleNamespace(replay=lambda: self.asked.append("replay"))

    @contextmanager
    def graph(self, graph: object, *, pool: object, stream: object, capture_error_mode: str) -> Iterator[None]:
        self.asked.append((pool, stream, capture_error_mode))
        yield
        if self.end_fails:
            raise RuntimeError("operation failed due to a previous error during capture")

    @contextmanager
    def stream(self, stream: object) -> Iterator[None]:
        self.asked.append(f"on {stream}")
        yield

    def synchronize(self, device: torch.device) -> None:
        self.asked.append("synchronize")

    def empty_cache(self) -> None:
        pass

    def memory_reserved(self, device: torch.device) -> int:
        return self.reserved.pop(0)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> TorchDevice:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    made = TorchDevice(DEVICE)
    made._cuda = Cuda()
    return made


def test_torch_takes_what_is_asked_of_it() -> None:
    def takes(call: Callable[..., Any], *values: Any, **named: Any) -> None:
        inspect.signature(call).bind(*values, **named)

    takes(torch.cuda.graph.__init__, None, None, pool=None, stream=None, capture_error_mode="thread_local")
    takes(torch.cuda.Stream.__new__, None, DEVICE, priority=-1)
    takes(torch.cuda.Event.__new__, None, enable_timing=True)
    takes(torch.cuda.Event.record, None, None)
    takes(torch.cuda.Event.elapsed_time, None, None)
    takes(torch.cuda.Stream.wait_event, None, None)
    takes(torch.cuda.memory_reserved, DEVICE)
    takes(torch.cuda.graph_pool_handle)
    takes(torch.cuda.mem_get_info, DEVICE)
    takes(torch.cuda._sleep, 1)  # type: ignore[attr-defined]


def test_a_capture_tells_how_memory_grew(device: TorchDevice) -> None:
    graph, grown = device.capture("main", "pool", lambda: None)
    assert grown == 600
    assert ("pool", "main", "thread_local") in device._cuda.asked
    device.replay(graph, "main")
    assert device._cuda.asked[-2:] == ["on main", "replay"]


@pytest.mark.parametrize("end_fails", [False, True])
def test_the_error_of_the_work_wins_over_that_of_ending_the_capture(device: TorchDevice, end_fails: bool) -> None:
    def work() -> None:
        raise ValueError("planted")

    device._cuda.end_fails = end_fails
    with pytest.raises(ValueError, match="planted"):
        device.capture("main", "pool", work)


def test_an_error_of_the_capture_alone_is_told(device: TorchDevice) -> None:
    device._cuda.end_fails = True
    with pytest.raises(RuntimeError, match="previous error during capture"):
        device.capture("main", "pool", lambda: None)


def test_there_is_no_device_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for asked in (DEVICE, torch.device("cpu")):
        with pytest.raises(UnavailableError, match="torch sees no GPU"):
            TorchDevice(asked)
