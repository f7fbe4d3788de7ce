"""Cases and cost of the experts."""

from __future__ import annotations

import torch

from dsv4_kernels.formats import E8M0_BIAS, quantise_e4m3_blocks
from dsv4_kernels.moe_gemm._launch import COMBINE, DOWN, DOWN_LANES, GATE_UP, GATE_UP_LANES, TILES, TILES_FP8
from dsv4_kernels.moe_gemm.reference import moe_gemm_quant_reference, moe_gemm_reference
from dsv4_kernels.registry import Arguments, Case, Cost, KernelSpec, Tolerance
from dsv4_kernels.testing.inputs import Inputs

FLASH, PRO, SMALL = (256, 4096, 2048), (384, 7168, 3072), (3, 128, 128)
FLASH_TP8, PRO_TP8 = (256, 4096, 256), (384, 7168, 384)


def _common(inputs: Inputs, tokens: int, d: int, count: int, slots: int) -> Arguments:
    if inputs.meta or not tokens:
        chosen = inputs.integers(0, count, tokens, slots)
    else:
        chosen = inputs.uniform(tokens, count).topk(slots, dim=1).indices
    return {
        "x": inputs.normal(tokens, d), "experts": chosen,
        "weights": inputs.uniform(tokens, slots, high=0.5), "limit": 10.0,
        "out": inputs.empty(tokens, d, dtype=torch.float32),
    }  # fmt: skip


def _plain(inputs: Inputs, tokens: int, shape: tuple[int, int, int], slots: int = 3) -> Arguments:
    count, d, inter = shape
    return {
        **_common(inputs, tokens, d, count, slots),
        "w13": inputs.normal(count, 2 * inter, d, scale=d**-0.5),
        "w2": inputs.normal(count, d, inter, scale=inter**-0.5),
    }  # fmt: skip


def _fp4(inputs: Inputs, tokens: int, shape: tuple[int, int, int], slots: int = 6) -> Arguments:
    """Every code of e2m1, and scales that keep the products near one."""
    count, d, inter = shape

    def scales(rows: int, k: int) -> torch.Tensor:
        middle = E8M0_BIAS - (k.bit_length() // 2) - 2
        return inputs.integers(middle - 1, middle + 2, count, rows, k // 32, dtype=torch.uint8)

    return {
        **_common(inputs, tokens, d, count, slots),
        "w13": inputs.integers(0, 256, count, 2 * inter, d // 2, dtype=torch.uint8),
        "w13_scales": scales(2 * inter, d),
        "w2": inputs.integers(0, 256, count, d, inter // 2, dtype=torch.uint8), "w2_scales": scales(d, inter),
    }  # fmt: skip


def _fp8(inputs: Inputs, tokens: int, shape: tuple[int, int, int], slots: int = 3) -> Arguments:
    count, d, inter = shape

    def weights(rows: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        if inputs.meta:
            scales = inputs.empty(count, rows // 128, k // 128, dtype=torch.uint8)
            return inputs.empty(count, rows, k, dtype=torch.float8_e4m3fn), scales
        return quantise_e4m3_blocks(inputs.normal(count, rows, k, dtype=torch.float32, scale=k**-0.5))

    (w13, w13_scales), (w2, w2_scales) = weights(2 * inter, d), weights(d, inter)
    return {
        **_common(inputs, tokens, d, count, slots),
        "w13": w13, "w13_scales": w13_scales, "w2": w2, "w2_scales": w2_scales,
    }  # fmt: skip


def _cost(arguments: Arguments) -> Cost:
    """Bytes of the experts that are active (as many as are expected of random choices), activations once."""
    x, experts, w13, w2 = (arguments[name] for name in ("x", "experts", "w13", "w2"))
    count, (tokens, slots) = w13.shape[0], experts.shape
    active = count * (1.0 - (1.0 - slots / count) ** tokens)
    if experts.device.type != "meta":
        active = experts.unique().numel()
    names = ("w13", "w2", "w13_scales", "w2_scales")
    of_one = sum(arguments[n][0].numel() * arguments[n].element_size() for n in names if n in arguments)
    inter = w13.shape[1] // 2
    moved = int(active * of_one) + x.numel() * 2 + arguments["out"].numel() * 4
    return Cost(moved, 2 * tokens * slots * 3 * x.shape[1] * inter if w2.numel() else 0)


_TABLES = (GATE_UP, DOWN, GATE_UP_LANES, DOWN_LANES, TILES, TILES_FP8, COMBINE)
# Sums of thousands of products in bf16: the reference rounds each product once more than the kernel does.
_TOLERANCE = Tolerance(floor=2.0**-10)

SPECS = (
    KernelSpec(
        "moe_gemm",
        moe_gemm_reference,
        "dsv4_kernels.moe_gemm.triton_op:moe_gemm",
        (
            Case("small-1", lambda i: _plain(i, 1, (4, 64, 64), 2), compiled=True),
            Case("small-3", lambda i: _plain(i, 3, (4, 64, 32), 2)),
            Case("wide-5", lambda i: _plain(i, 5, (16, 1024, 512), 6), small=False),
            Case("small-40", lambda i: _plain(i, 30, SMALL), compiled=True),
            Case("empty", lambda i: _plain(i, 0, SMALL)),
            Case("wide-300", lambda i: _plain(i, 300, (32, 1024, 512), 6), small=False),
        ),
        _cost,
        _TABLES,
        outputs=("out",),
        tolerance=_TOLERANCE,
    ),
    KernelSpec(
        "moe_gemm_quant",
        moe_gemm_quant_reference,
        "dsv4_kernels.moe_gemm.triton_op:moe_gemm_quant",
        (
            Case("fp4-small-2", lambda i: _fp4(i, 2, (3, 64, 32), 2)),
            Case("fp4-wide-5", lambda i: _fp4(i, 5, (16, 1024, 512)), small=False),
            Case("fp4-small-20", lambda i: _fp4(i, 20, SMALL, 3), compiled=True),
            Case("fp8-small-1", lambda i: _fp8(i, 1, SMALL, 1), compiled=True),
            Case("fp8-small-20", lambda i: _fp8(i, 20, SMALL), compiled=True),
            Case("fp8-wide-5", lambda i: _fp8(i, 5, (16, 1024, 512), 6), small=False),
            Case("fp4-empty", lambda i: _fp4(i, 0, SMALL, 3)),
            Case("fp4-odd-groups", lambda i: _fp4(i, 1, (2, 96, 32), 1)),
            Case("fp4-odd-groups-7", lambda i: _fp4(i, 7, (5, 160, 96), 5), small=False),
            Case("fp4-wide-65", lambda i: _fp4(i, 65, (32, 1024, 512)), small=False),
            Case("fp4-wide-300", lambda i: _fp4(i, 300, (32, 1024, 512)), small=False),
            Case("fp8-wide-300", lambda i: _fp8(i, 300, (32, 1024, 512), 6), small=False),
            Case("fp4-flash-1", lambda i: _fp4(i, 1, FLASH), small=False, compiled=True, bench=True),
            Case("fp4-flash-8", lambda i: _fp4(i, 8, FLASH), small=False, bench=True),
            Case("fp4-pro-1", lambda i: _fp4(i, 1, PRO), small=False, bench=True),
            Case("fp4-pro-8", lambda i: _fp4(i, 8, PRO), small=False, bench=True),
            Case("fp4-flash-tp8-1", lambda i: _fp4(i, 1, FLASH_TP8), small=False, compiled=True, bench=True),
            Case("fp4-flash-tp8-8", lambda i: _fp4(i, 8, FLASH_TP8), small=False, bench=True),
            Case("fp4-pro-tp8-1", lambda i: _fp4(i, 1, PRO_TP8), small=False, compiled=True, bench=True),
            Case("fp4-pro-tp8-8", lambda i: _fp4(i, 8, PRO_TP8), small=False, bench=True),
            Case("fp8-flash-4", lambda i: _fp8(i, 4, (64, 4096, 2048), 6), small=False, bench=True),
            Case("fp4-flash-4096", lambda i: _fp4(i, 4096, FLASH), small=False, bench=True),
        ),
        _cost,
        _TABLES,
        outputs=("out",),
        tolerance=_TOLERANCE,
    ),
)
