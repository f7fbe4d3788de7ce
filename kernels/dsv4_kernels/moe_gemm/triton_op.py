"""Wrappers of the expert kernels; arguments as in ``reference.py``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton

from dsv4_kernels.checks import require, require_dtype, require_shape, require_unit_stride
from dsv4_kernels.invariant import counted
from dsv4_kernels.launch import launch, overlaps
from dsv4_kernels.moe_gemm._kernel import (
    _combine_kernel,
    _down_kernel,
    _down_tiles_kernel,
    _gate_up_kernel,
    _gate_up_tiles_kernel,
)
from dsv4_kernels.moe_gemm._launch import (
    COMBINE,
    DOWN,
    DOWN_LANES,
    GATE_UP,
    GATE_UP_LANES,
    LANES_TOKENS,
    TILES,
    TILES_FP8,
    VECTOR_TOKENS,
)
from dsv4_kernels.moe_gemm.plan import plan_blocks
from dsv4_kernels.target import target_of
from dsv4_kernels.workspace import workspace

_FORMATS = {torch.bfloat16: (0, 2), torch.float8_e4m3fn: (1, 4), torch.uint8: (2, 8)}
"""Weight dtype to the kernels' format number, and codes in a 32-bit word."""


@dataclass(frozen=True)
class _Experts:
    """Weights and scales of all experts: ``w13 [E, 2 I, D]`` and ``w2 [E, D, I]`` in codes."""

    w13: torch.Tensor
    w13_scales: torch.Tensor | None
    w2: torch.Tensor
    w2_scales: torch.Tensor | None
    format: int
    codes: int
    inter: int

    @property
    def count(self) -> int:
        return int(self.w13.shape[0])


def moe_gemm(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    limit: float,
    out: torch.Tensor,
) -> None:
    """See :func:`dsv4_kernels.moe_gemm.moe_gemm_reference`; bf16."""
    require_dtype("w13", w13, torch.bfloat16)
    _moe(x, experts, weights, _experts(x, w13, None, w2, None), limit, out)


def moe_gemm_quant(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    w13: torch.Tensor,
    w13_scales: torch.Tensor,
    w2: torch.Tensor,
    w2_scales: torch.Tensor,
    limit: float,
    out: torch.Tensor,
) -> None:
    """See :func:`dsv4_kernels.moe_gemm.moe_gemm_quant_reference`; ``x`` is bf16."""
    require_dtype("w13", w13, torch.uint8, torch.float8_e4m3fn)
    _moe(x, experts, weights, _experts(x, w13, w13_scales, w2, w2_scales), limit, out)


def _experts(
    x: torch.Tensor,
    w13: torch.Tensor,
    w13_scales: torch.Tensor | None,
    w2: torch.Tensor,
    w2_scales: torch.Tensor | None,
) -> _Experts:
    require(x.dtype is torch.bfloat16, f"x is {x.dtype}, expected torch.bfloat16")
    require(w2.dtype is w13.dtype, f"w2 is {w2.dtype}, expected the dtype of w13, {w13.dtype}")
    form, codes = _FORMATS[w13.dtype]
    packing = 2 if form == 2 else 1
    count, double, d = w13.shape[0], w13.shape[1], x.shape[1]
    inter = double // 2
    multiple = 128 if form == 1 else 32
    require(inter % multiple == 0 and d % multiple == 0, f"D {d} and I {inter} must be multiples of {multiple}")
    require_shape("w13", w13, count, double, d // packing)
    require_shape("w2", w2, count, d, inter // packing)
    for name, tensor in (("w13", w13), ("w2", w2), ("w13_scales", w13_scales), ("w2_scales", w2_scales)):
        require(tensor is None or tensor.is_contiguous(), f"{name} is not contiguous")
    if w13_scales is not None and w2_scales is not None:
        tall, wide = (128, 128) if form == 1 else (1, 32)
        require_shape("w13_scales", w13_scales, count, double // tall, d // wide)
        require_shape("w2_scales", w2_scales, count, d // tall, inter // wide)
    return _Experts(w13, w13_scales, w2, w2_scales, form, codes, inter)


def _moe(
    x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, e: _Experts, limit: float, out: torch.Tensor
) -> None:
    tokens, d = x.shape
    require_shape("out", out, tokens, d)
    require_dtype("out", out, torch.float32)
    require_shape("weights", weights, tokens, experts.shape[1])
    for name, tensor in (("x", x), ("out", out), ("weights", weights), ("experts", experts)):
        require_unit_stride(name, tensor)
    if tokens == 0:
        return
    pairs = x.stride(0) % 2 == 0
    few = counted("tokens", tokens)
    if pairs and few <= LANES_TOKENS and e.format == 2 and overlaps(x):
        _lanes(x, experts, weights, e, limit, out)
    elif pairs and few <= VECTOR_TOKENS:
        _vectors(x, experts, weights, e, limit, out)
    else:
        _tiles(x, experts, weights, e, limit, out)


def _lanes(
    x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, e: _Experts, limit: float, out: torch.Tensor
) -> None:
    from dsv4_kernels.moe_gemm._nvidia import _down_lanes_kernel, _gate_up_lanes_kernel
    from dsv4_kernels.moe_gemm._ring import _gate_up_ring_kernel
    from dsv4_kernels.moe_gemm._ring_down import _down_ring_kernel

    (tokens, d), slots = x.shape, experts.shape[1]
    target = target_of(x.device)
    h = workspace("moe_h", (tokens * slots, e.inter), torch.bfloat16, x.device)
    wide, groups = d // 32, e.inter // 32
    up = GATE_UP_LANES.choose(target, tokens=tokens, groups=wide, inter=e.inter, rest=wide % 4)
    down = DOWN_LANES.choose(target, tokens=tokens, groups=groups, rest=groups % 4)
    for table, chosen, size in (("gate_up", up, wide), ("down", down, groups)):
        require(
            not chosen["STAGES"] or size % 4 == 0,
            f"moe_{table}_lanes: STAGES {chosen['STAGES']} takes rows of a multiple of 128 codes, not of {32 * size}",
        )
    constants: dict[str, Any] = {"PDL": True, "LIFTED": bool(down["STAGES"])}
    if up["STAGES"]:
        constants["ROOM"] = max(2, triton.next_power_of_2(triton.cdiv(wide, up["BLOCK_G"])))
    launch(
        _gate_up_ring_kernel if up["STAGES"] else _gate_up_lanes_kernel,
        (triton.cdiv(e.inter, 16 * up["WARP_ROWS"]), tokens * slots),
        {
            "x_ptr": x.view(torch.int32), "experts_ptr": experts, "w13_ptr": e.w13.view(torch.int32),
            "scales_ptr": e.w13_scales, "h_ptr": h, "inter": e.inter, "groups": wide, "slots": slots,
            "x_stride": x.stride(0) // 2, "experts_stride": experts.stride(0), "limit": float(limit),
        },
        constants,
        up,
    )  # fmt: skip
    launch(
        _down_ring_kernel if down["STAGES"] else _down_lanes_kernel,
        (triton.cdiv(d, 16 * down["WARP_ROWS"]), tokens),
        {
            "h_ptr": h.view(torch.int32), "experts_ptr": experts, "weights_ptr": weights,
            "w2_ptr": e.w2.view(torch.int32), "scales_ptr": e.w2_scales, "out_ptr": out, "d": d,
            "experts_stride": experts.stride(0), "weights_stride": weights.stride(0), "out_stride": out.stride(0),
        },
        {"PDL": True, "GROUPS": groups, "SLOTS": slots},
        down,
    )  # fmt: skip


def _vectors(
    x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, e: _Experts, limit: float, out: torch.Tensor
) -> None:
    (tokens, d), slots = x.shape, experts.shape[1]
    target = target_of(x.device)
    h = workspace("moe_h", (tokens * slots, e.inter), torch.bfloat16, x.device)
    wide, groups = d // e.codes // 4, e.inter // e.codes // 4
    up = GATE_UP.choose(target, tokens=tokens, groups=wide, inter=e.inter)
    down = DOWN.choose(target, tokens=tokens, groups=groups)
    constants = {"FORMAT": e.format, "PDL": overlaps(x)}
    launch(
        _gate_up_kernel,
        (triton.cdiv(e.inter, up["BLOCK_N"]), tokens * slots),
        {
            "x_ptr": x.view(torch.int32), "experts_ptr": experts, "w13_ptr": e.w13.view(torch.int32),
            "scales_ptr": e.w13_scales, "h_ptr": h, "inter": e.inter, "groups": wide, "slots": slots,
            "x_stride": x.stride(0) // 2, "experts_stride": experts.stride(0), "limit": float(limit),
        },
        constants,
        up,
    )  # fmt: skip
    launch(
        _down_kernel,
        (triton.cdiv(d, down["BLOCK_N"]), tokens),
        {
            "h_ptr": h.view(torch.int32), "experts_ptr": experts, "weights_ptr": weights,
            "w2_ptr": e.w2.view(torch.int32), "scales_ptr": e.w2_scales, "out_ptr": out, "d": d,
            "groups": groups, "slots": slots,
            "experts_stride": experts.stride(0), "weights_stride": weights.stride(0), "out_stride": out.stride(0),
        },
        {**constants, "ONE": down["BLOCK_G"] >= groups and down["BLOCK_S"] >= slots},
        down,
    )  # fmt: skip


def _tiles(
    x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, e: _Experts, limit: float, out: torch.Tensor
) -> None:
    (tokens, d), slots = x.shape, experts.shape[1]
    target = target_of(x.device)
    chosen = (TILES_FP8 if e.format == 1 else TILES).choose(target, tokens=tokens)
    combine = COMBINE.choose(target, tokens=tokens)
    step = chosen["BLOCK_K"]
    require(
        d % step == 0 and e.inter % step == 0, f"D {d} and I {e.inter} must be multiples of {step} for {tokens} tokens"
    )
    blocks = plan_blocks(experts, e.count, chosen["BLOCK_M"])
    h = workspace("moe_h", (tokens * slots, e.inter), torch.bfloat16, x.device)
    y = workspace("moe_y", (tokens * slots, d), torch.bfloat16, x.device)
    of_block = {
        "order_ptr": blocks.order, "block_expert_ptr": blocks.expert, "block_first_ptr": blocks.first,
        "block_rows_ptr": blocks.rows, "d": d, "inter": e.inter, "h_ptr": h,
    }  # fmt: skip
    constants = {"FORMAT": e.format, "SCALED_DOT": x.device.type != "cpu"}  # the interpreter has no scaled dot
    count = blocks.expert.numel()
    launch(
        _gate_up_tiles_kernel,
        (triton.cdiv(e.inter, chosen["BLOCK_N"]), count),
        {
            **of_block, "x_ptr": x, "w13_ptr": _bytes(e.w13), "scales_ptr": e.w13_scales, "slots": slots,
            "x_stride": x.stride(0), "limit": float(limit),
        },
        constants,
        chosen,
    )  # fmt: skip
    launch(
        _down_tiles_kernel,
        (triton.cdiv(d, chosen["BLOCK_N"]), count),
        {**of_block, "w2_ptr": _bytes(e.w2), "scales_ptr": e.w2_scales, "y_ptr": y},
        constants,
        chosen,
    )
    launch(
        _combine_kernel,
        (tokens, triton.cdiv(d, combine["BLOCK"])),
        {
            "y_ptr": y, "weights_ptr": weights, "out_ptr": out, "d": d, "slots": slots,
            "weights_stride": weights.stride(0), "out_stride": out.stride(0),
        },
        {},
        combine,
    )  # fmt: skip


def _bytes(weight: torch.Tensor) -> torch.Tensor:
    return weight.view(torch.uint8) if weight.dtype is torch.float8_e4m3fn else weight
