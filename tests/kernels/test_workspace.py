"""Scratch memory that is zero when it is handed out: what a capture asked for is its own."""

from __future__ import annotations

import torch
from dsv4_kernels import workspace


def test_a_capture_gets_one_zeroed_buffer_and_the_next_capture_another() -> None:
    key = ("test_workspace", torch.device("cpu"), 0, torch.int32)
    first = workspace._of_capture(key, 1, 4)
    first.fill_(7)
    assert workspace._of_capture(key, 1, 3) is first
    assert workspace._of_capture(key, 1, 8).tolist() == [0] * 8
    assert workspace._of_capture(key, 2, 4).tolist() == [0] * 4


def test_memory_of_the_host_is_zero_at_every_call() -> None:
    for _ in range(2):
        found = workspace.zeroed_workspace("test_workspace", (2, 3), torch.int32, torch.device("cpu"))
        assert found.tolist() == [[0] * 3] * 2
        found.fill_(1)
