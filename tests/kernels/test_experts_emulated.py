"""NVIDIA's fp4 experts, compiled for an H200 and run by the emulator of ``ptx.py``, against the reference."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from dsv4_kernels.launch import Config, Launch, pinned, recorded
from dsv4_kernels.moe_gemm import cases
from dsv4_kernels.moe_gemm._launch import _lanes, _ring
from dsv4_kernels.moe_gemm.reference import moe_gemm_quant_reference
from dsv4_kernels.registry import Arguments, spec
from dsv4_kernels.target import forced_target
from dsv4_kernels.testing.inputs import Inputs

sys.path.insert(0, str(Path(__file__).parent))

from emulate import compiled
from ptx import Program, parse

FEW = (3, 384, 128)  # rows of 12 and of 4 groups: no whole steps
WHOLE = (3, 512, 512)


class Memory:
    """A GPU's memory, of bytes, and where tensors lie in it."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.at: dict[str, int] = {}
        parts, end = [np.zeros(256, np.uint8)], 256
        for name, tensor in tensors.items():
            raw = tensor.contiguous().view(torch.uint8).flatten().numpy()
            self.at[name] = end
            parts.append(np.pad(raw, (0, -len(raw) % 256)))
            end += len(parts[-1])
        self.bytes = np.concatenate(parts)

    def read(self, name: str, like: torch.Tensor) -> torch.Tensor:
        raw = self.bytes[self.at[name] :][: like.numel() * like.element_size()].copy()
        return torch.from_numpy(raw).view(like.dtype).view(like.shape)


def emulated(shape: tuple[int, int, int], slots: int, up: Config, down: Config) -> tuple[torch.Tensor, Arguments]:
    """The experts' output for one token, by these configs, and the arguments."""
    arguments = cases._fp4(Inputs("cpu", 3), 1, shape, slots)
    pins = {"moe_gate_up_lanes": up, "moe_down_lanes": down}
    with forced_target("sm_90"), recorded() as launches, pinned(pins):
        spec("moe_gemm_quant").wrapper()(**cases._fp4(Inputs("meta", 0), 1, shape, slots))
    tensors = {f"{name}_ptr": value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    memory = Memory({**tensors, "h_ptr": torch.zeros(slots, shape[2], dtype=torch.bfloat16)})
    for launch, weight, programs in zip(
        launches, ("w13", "w2"), ((shape[2] // 16, slots), (shape[1] // (16 * down["WARP_ROWS"]), 1)), strict=True
    ):
        run(launch, memory, {"scales_ptr": memory.at[f"{weight}_scales_ptr"]}, programs)
    return memory.read("out_ptr", arguments["out"]), arguments


def run(launch: Launch, memory: Memory, at: dict[str, int], programs: tuple[int, int]) -> None:
    """Every program of a launch, one after the other."""
    built = compiled(launch)
    code = parse(built.asm["ptx"])
    ones = {n for n, v in launch.arguments.items() if isinstance(v, int) and v == 1}
    names = [n for n in inspect.signature(launch.kernel.fn).parameters if n not in launch.constants and n not in ones]
    values: dict[str, int] = dict.fromkeys(code.parameters, 0)
    for parameter, name in zip(code.parameters, names, strict=False):
        value = launch.arguments[name]
        if isinstance(value, torch.Tensor):
            value = at.get(name, memory.at.get(name))
        values[parameter] = int(np.float32(value).view(np.uint32)) if isinstance(value, float) else value
    shared = np.random.default_rng(1).integers(0, 256, max(built.metadata.shared, 16), dtype=np.uint8)
    for y in range(programs[1]):
        for x in range(programs[0]):
            Program(code, 32 * launch.config.num_warps, memory.bytes, shared).run(x, y, values)


@pytest.mark.parametrize(
    ("shape", "slots", "up", "down"),
    [
        (FEW, 3, _ring(4, 1, 4, 112), _ring(2, 2, 6, 112)),
        (FEW, 3, _lanes(4, 1, 16, 128), _ring(4, 2, 4, 112)),
        (FEW, 2, _ring(4, 1, 4, 112), _lanes(4, 1, 16, 128)),
        (WHOLE, 1, _ring(2, 1, 8, 112), _ring(4, 2, 4, 112)),
    ],
    ids=["ring", "down", "up", "whole"],
)
def test_the_compiled_experts_compute_the_reference(
    shape: tuple[int, int, int], slots: int, up: Config, down: Config
) -> None:
    got, arguments = emulated(shape, slots, up, down)
    moe_gemm_quant_reference(**arguments)
    wanted = arguments["out"]
    assert bool(got.isfinite().all())
    assert float((got - wanted).norm() / wanted.norm()) < 1e-2  # the reference rounds products to bf16


def test_the_ring_adds_in_the_order_of_the_registers_kernels() -> None:
    ring, _ = emulated(FEW, 2, _ring(4, 1, 4, 112), _ring(4, 2, 4, 112))
    lanes, _ = emulated(FEW, 2, _lanes(4, 1, 16, 128), _lanes(4, 1, 16, 128))
    assert torch.equal(ring, lanes)
