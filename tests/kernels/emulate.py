"""A recorded launch, compiled for an NVIDIA target and run program by program in the emulator of ``ptx.py``."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dsv4_kernels.compile import _source, arguments_of
from dsv4_kernels.launch import CARVEOUT, Launch
from dsv4_kernels.registry import Arguments

sys.path.insert(0, str(Path(__file__).parent))

from ptx import Program, parse

ROOM = 256


def compiled(launch: Launch, arch: str = "sm_90") -> Any:
    """What Triton's compiler makes of ``launch``."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import compile as compile_

    source = _source(launch.kernel)(launch.kernel, *arguments_of(launch))
    options = {name: value for name, value in launch.config.options if name != CARVEOUT}
    target = GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    return compile_(source, target=target, options={"num_warps": launch.config.num_warps, **options})


def emulated(launch: Launch, given: Arguments, grid: tuple[int, int], program: type[Program] = Program) -> torch.Tensor:
    """What the programs of a launch write to ``out_ptr``; ``given``: its tensors by the names that the kernel has for
    them. Shared memory holds noise before each of them.
    """
    parts, at = [np.zeros(ROOM, np.uint8)], {}
    for name, tensor in given.items():
        raw = tensor.contiguous().view(torch.uint8).flatten().numpy()
        at[name] = sum(map(len, parts))
        parts.append(np.pad(raw, (0, ROOM - len(raw) % ROOM)))
    memory, built = np.concatenate(parts), compiled(launch)
    code = parse(built.asm["ptx"])
    fixed = {n for n, v in launch.arguments.items() if v is None or (isinstance(v, int) and v == 1)}
    names = [n for n in inspect.signature(launch.kernel.fn).parameters if n not in launch.constants and n not in fixed]
    values = dict.fromkeys(code.parameters, 0)
    for parameter, name in zip(code.parameters, names, strict=False):
        value = launch.arguments[name]
        values[parameter] = int(np.float32(value).view(np.uint32)) if isinstance(value, float) else at.get(name, value)
    for x, y in np.ndindex(*grid):
        shared = np.random.default_rng(1).integers(0, 256, max(built.metadata.shared, 16), dtype=np.uint8)
        program(code, 32 * launch.config.num_warps, memory, shared).run(int(x), int(y), values)
    out = given["out_ptr"]
    raw = memory[at["out_ptr"] :][: out.numel() * out.element_size()].copy()
    return torch.from_numpy(raw).view(out.dtype).view(out.shape)
