"""NVIDIA's fp8 product of few tokens, compiled for an H200, in the emulator of ``ptx.py``, against the reference."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("triton", reason="triton is not installed")

from dsv4_kernels.block_fp8_gemm import cases
from dsv4_kernels.launch import PDL, Config, config, pinned, recorded
from dsv4_kernels.registry import spec
from dsv4_kernels.target import forced_target
from dsv4_kernels.testing.compare import distance
from dsv4_kernels.testing.inputs import Inputs

sys.path.insert(0, str(Path(__file__).parent))

from emulate import emulated
from ptx import Lanes, Program, U

ROWS = 256


def floats(words: Lanes) -> NDArray[np.float32]:
    return words.astype(np.uint32).view(np.float32)


def to_e4m3(values: NDArray[np.float32]) -> Lanes:
    codes = torch.from_numpy(values.copy()).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return codes.view(torch.uint8).numpy().astype(U)


def from_e4m3(pairs: Lanes) -> Lanes:
    """Two f16 of two codes."""
    codes = torch.from_numpy(np.stack([pairs & U(255), pairs >> U(8) & U(255)], axis=1).astype(np.uint8))
    halves = codes.view(torch.float8_e4m3fn).float().numpy().astype(np.float16).view(np.uint16).astype(U)
    return halves[:, 0] | halves[:, 1] << U(16)


def f16(words: Lanes) -> NDArray[np.float64]:
    return np.stack([words & U(0xFFFF), words >> U(16) & U(0xFFFF)], 1).astype(np.uint16).view(np.float16).astype(float)


@dataclass
class Fp8Program(Program):
    """The emulator, with what the fp8 product takes beside."""

    def do(self, operation: str, operands: list[str], on: NDArray[np.bool_]) -> None:
        """One instruction."""
        self.held.setdefault("%laneid", np.arange(self.lanes, dtype=U) % U(32))
        names = [[name.strip() for name in group.strip("{}").split(",")] for group in operands]
        if operation.startswith("createpolicy"):
            self.put(operands[0], 0)
        elif operation.startswith("mma") and ".f16.f16." in operation:
            self._products(names)
        elif operation == "mov.b32" and len(names[0]) == 2:
            self.put(names[0][0], self.get(operands[1]) & U(0xFFFF))
            self.put(names[0][1], self.get(operands[1]) >> U(16) & U(0xFFFF))
        elif operation == "mov.b32" and len(names[1]) == 2:
            low, high = (self.get(name) & U(0xFFFF) for name in names[1])
            self.put(operands[0], low | high << U(16))
        elif operation == "cvt.rn.f16x2.e4m3x2":
            self.put(operands[0], from_e4m3(self.get(operands[1])))
        elif operation == "cvt.rn.satfinite.e4m3x2.f32":
            high, low = (to_e4m3(floats(self.get(name))) for name in operands[1:3])
            self.put(operands[0], low | high << U(8))
        elif operation.startswith("shfl.sync.idx"):
            source, lane = self.get(operands[1].split("|")[0]), self.get(operands[2]).astype(int)
            self.put(operands[0], source[np.arange(self.lanes) // 32 * 32 + lane % 32])
        elif operation == "max.xorsign.abs.bf16x2":
            a, b = (self.get(name) & U(0x7FFF7FFF) for name in operands[1:3])
            low = np.maximum(a & U(0xFFFF), b & U(0xFFFF))
            self.put(operands[0], low | np.maximum(a >> U(16), b >> U(16)) << U(16))
        elif operation == "abs.f32":
            self.put(operands[0], self.get(operands[1]) & U(0x7FFFFFFF))
        else:
            super().do(operation, operands, on)

    def _products(self, names: list[list[str]]) -> None:
        """``mma.m16n8k16`` of f16 with float32 sums."""
        lane = np.arange(32)
        row, column = lane // 4, lane % 4 * 2
        a, b = ([f16(self.get(name)) for name in group] for group in names[1:3])
        before = [floats(self.get(name)) for name in names[3]]
        after = np.zeros((4, self.lanes), np.float32)
        for first in range(0, self.lanes, 32):
            warp = slice(first, first + 32)
            left, right, total = np.zeros((16, 16)), np.zeros((16, 8)), np.zeros((16, 8))
            for at in (0, 1):
                for (down, across), pair in zip(((0, 0), (8, 0), (0, 8), (8, 8)), a, strict=True):
                    left[row + down, column + across + at] = pair[warp, at]
                for down, pair in zip((0, 8), b, strict=True):
                    right[column + down + at, row] = pair[warp, at]
            for i in range(4):
                total[row + i // 2 * 8, column + i % 2] = before[i][warp]
            total += left @ right
            for i in range(4):
                after[i, warp] = total[row + i // 2 * 8, column + i % 2]
        for name, value in zip(names[0], after, strict=True):
            self.put(name, value.view(np.uint32))


def lanes(warps: int, ahead: int, rows: int, across: int) -> Config:
    return config(warps, ahead, PDL, BLOCK_N=rows, BLOCK_K=128 * across, KIND=4)


CODES, VALUES = cases._product, cases._quantising
NAMES = {CODES: ("block_fp8_gemm", "codes"), VALUES: ("block_fp8_gemm_quant", "x")}


@pytest.mark.parametrize(
    ("build", "tokens", "k", "chosen"),
    [
        (CODES, 5, 1024, lanes(4, 2, 16, 4)),
        (CODES, 13, 640, lanes(4, 2, 32, 2)),  # rows of two warps; a step that is not whole
        (CODES, 8, 1152, lanes(2, 2, 64, 2)),  # more steps than are on their way, two tiles a warp
        (VALUES, 3, 768, lanes(4, 4, 16, 4)),
        (VALUES, 16, 384, lanes(2, 3, 32, 1)),
        (VALUES, 9, 640, lanes(2, 2, 32, 2)),
    ],
    ids=["codes", "ragged", "tiles", "values", "rows", "values-ragged"],
)
def test_the_compiled_product_is_the_reference(build: Any, tokens: int, k: int, chosen: Config) -> None:
    kernel, name = NAMES[build]
    inputs = Inputs("cpu", 5)
    given = build(inputs, tokens, ROWS, k)
    for scales in ("scales", "weight_scales"):  # no two blocks alike
        if scales in given:
            given[scales] += inputs.integers(0, 5, *given[scales].shape).to(torch.uint8)
    with forced_target("sm_90"), recorded() as launches, pinned({"block_fp8_few": chosen}):
        spec(kernel).wrapper()(**build(Inputs("meta", 0), tokens, ROWS, k))
    (launch,) = launches
    assert launch.kernel.__name__ == "_few_lanes_kernel"
    got = emulated(
        launch,
        {
            "x_ptr": given[name], "weight_ptr": given["weight"], "weight_scales_ptr": given["weight_scales"],
            "out_ptr": given["out"].fill_(float("nan")),
            **({"x_scales_ptr": given["scales"]} if build is CODES else {}),
        },
        (ROWS // chosen["BLOCK_N"], 1),
        Fp8Program,
    )  # fmt: skip
    spec(kernel).reference(**given)
    assert distance(got, given["out"]) < 2.0**-8  # both are rounded to bf16
