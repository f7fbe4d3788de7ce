"""A launch that prefers a share of an SM's memory as shared memory: asked of the driver once a function."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dsv4_kernels import launch as launches
from dsv4_kernels.block_fp8_gemm._launch import BLOCK_FP8_GEMM, FEW
from dsv4_kernels.launch import BESIDE, CARVEOUT, config, launch
from dsv4_kernels.moe_gemm._launch import DOWN_LANES, GATE_UP_LANES
from dsv4_kernels.target import forced_target


class FakeKernel:
    """Notes the options of its launches; every launch is of the same CUDA function."""

    arg_names = ("x",)

    def __init__(self, function: int) -> None:
        self.function = function
        self.__name__ = f"_kernel_{function}"
        self.options: list[dict[str, Any]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(**options: Any) -> Any:
            self.options.append(options)
            return SimpleNamespace(function=self.function)

        return run


class FakeDriver:
    def __init__(self, code: int) -> None:
        self.code = code
        self.asked: list[tuple[int | None, int, int]] = []

    def cuFuncSetAttribute(self, function: ctypes.c_void_p, attribute: int, value: int) -> int:
        self.asked.append((function.value, attribute, value))
        return self.code


def driver_of(monkeypatch: pytest.MonkeyPatch, code: int = 0) -> FakeDriver:
    driver = FakeDriver(code)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(launches, "_carved", {})
    launches._carve.cache_clear()
    return driver


def twice(kernel: FakeKernel, options: dict[str, int]) -> None:
    for _ in range(2):
        launch(kernel, (1,), {"x": torch.empty(1, device="meta")}, {}, config(4, 1, options))


def test_the_driver_is_asked_once_and_the_compiler_not(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, kernel = driver_of(monkeypatch), FakeKernel(77)
    twice(kernel, {CARVEOUT: 25, "maxnreg": 80})
    assert driver.asked == [(77, 9, 25)]
    assert [options["maxnreg"] for options in kernel.options] == [80, 80]
    assert all(CARVEOUT not in options for options in kernel.options)
    assert launches.carveouts() == {"_kernel_77": 25}


def test_a_launch_that_prefers_nothing_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = driver_of(monkeypatch)
    twice(FakeKernel(78), {})
    assert not driver.asked
    assert launches.carveouts() == {}


def test_a_refusal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    driver_of(monkeypatch, code=1)
    with pytest.raises(RuntimeError, match=r"carve-out, 25\) gave CUDA error 1"):
        twice(FakeKernel(79), {CARVEOUT: 25})


@pytest.mark.parametrize("table", [GATE_UP_LANES, DOWN_LANES], ids=lambda table: table.name)
def test_experts_leave_room_for_a_shared_one(table: launches.LaunchTable) -> None:
    with forced_target("sm_90") as target:
        lanes = [c for c in table.configs(target) if not c["STAGES"]]  # their loads land in the first cache
        assert {dict(c.options)[CARVEOUT] for c in lanes} == {BESIDE}


@pytest.mark.parametrize(("n", "k"), [(512, 4096), (4096, 256), (768, 7168), (7168, 384)])
def test_a_shared_expert_of_a_shard_takes_the_share_that_is_left(n: int, k: int) -> None:
    """And no other product does: a CUDA function has one share, so these have functions of their own."""
    with forced_target("sm_90") as target:
        few = FEW.choose(target, tokens=8, n=n, k=k)
        mine = BLOCK_FP8_GEMM.choose(target, tokens=8, n=n, k=k) if few["KIND"] == 2 else few
        others = [
            table.choose(target, tokens=tokens, n=rows, k=columns, quant=quant)
            for rows, columns in ((1536, 4096), (4096, 1024), (8192, 1024), (2048, 7168), (8192, 1536), (7168, 2048))
            for tokens in (1, 4, 16, 32, 128)
            for quant in (0, 1)
            for table in (FEW, BLOCK_FP8_GEMM)
        ]
    assert dict(mine.options)[CARVEOUT] == BESIDE
    kept = {
        (other.constants, other.num_warps, other.num_stages) for other in others if CARVEOUT not in dict(other.options)
    }
    assert (mine.constants, mine.num_warps, mine.num_stages) not in kept
