"""A launch that prefers a share of an SM's memory as shared memory: asked of the driver once a function."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dsv4_kernels import launch as launches
from dsv4_kernels.bf16_gemm._launch import BF16_GEMM
from dsv4_kernels.block_fp8_gemm._launch import BLOCK_FP8_GEMM, FEW, FEW_SWIGLU
from dsv4_kernels.launch import BESIDE, CARVEOUT, WHOLE, config, launch
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
            return SimpleNamespace(function=self.function, metadata=SimpleNamespace(shared=512))

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
    assert launches.carveouts() == {"_kernel_77": {"512": 25}}


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


@pytest.mark.parametrize("table", [FEW, FEW_SWIGLU, BLOCK_FP8_GEMM, BF16_GEMM], ids=lambda table: table.name)
def test_products_through_shared_memory_ask_for_the_same_share(table: launches.LaunchTable) -> None:
    with forced_target("sm_90") as target:
        through = [c for c in table.configs(target) if dict(c.constants).get("KIND", 1) not in (0, 2, 4)]
    assert {dict(c.options).get(CARVEOUT) for c in through} <= {WHOLE}


def test_no_cuda_function_has_two_shares() -> None:
    """A share belongs to a compiled function: rows with the same constants, whatever their limits, have to agree."""
    shares: dict[object, set[int | None]] = {}
    for table, made in ((FEW, False), (FEW_SWIGLU, True)):
        for row in table.rows["nvidia"]:
            c = row.config
            if c["KIND"] != 2:
                whole = c["BLOCK_K"] >= dict(row.limits).get("k", c["BLOCK_K"] + 1)
                key = (c.constants, c.num_warps, c.num_stages, whole, made)
                shares.setdefault(key, set()).add(dict(c.options).get(CARVEOUT))
    assert len(shares) > 10
    assert [key for key, asked in shares.items() if len(asked) > 1] == []
