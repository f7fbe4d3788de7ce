"""Wrapper of the fp8 product; arguments as in ``reference.py``."""

from __future__ import annotations

import torch
import triton

from dsv4_kernels.block_fp8_gemm._few import _few_dot_kernel, _few_vector_kernel
from dsv4_kernels.block_fp8_gemm._kernel import _block_fp8_gemm_kernel
from dsv4_kernels.block_fp8_gemm._launch import BLOCK_FP8_GEMM, FEW, FEW_SWIGLU, FEW_TOKENS
from dsv4_kernels.checks import require, require_dtype, require_shape, require_unit_stride
from dsv4_kernels.formats import FP8_GROUP
from dsv4_kernels.invariant import counted
from dsv4_kernels.launch import Config, LaunchTable, launch, overlaps
from dsv4_kernels.norm_quant.triton_op import quant
from dsv4_kernels.swiglu.triton_op import swiglu_quant
from dsv4_kernels.target import target_of
from dsv4_kernels.workspace import workspace, zeroed_workspace

DOT_TOKENS, LANE_TOKENS = 16, 8
DOT, APART, LANES = 1, 2, 4
"""Kinds of ``FEW``."""


def block_fp8_gemm(
    codes: torch.Tensor, scales: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor, out: torch.Tensor
) -> None:
    """See :func:`dsv4_kernels.block_fp8_gemm.block_fp8_gemm_reference`; N and K are multiples of 128."""
    tokens, k = codes.shape
    _check(weight, weight_scales, out, tokens, k)
    require_shape("scales", scales, tokens, k // FP8_GROUP)
    require_dtype("codes", codes, torch.float8_e4m3fn)
    require_dtype("scales", scales, torch.uint8)
    for name, tensor in (("codes", codes), ("scales", scales)):
        require_unit_stride(name, tensor)
    chosen = _few_config(FEW, codes, weight, quant=False)
    if chosen is None:
        _many(codes, scales, weight, weight_scales, out)
    else:
        _few(codes, scales, weight, weight_scales, out, chosen)


def block_fp8_gemm_quant(x: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor, out: torch.Tensor) -> None:
    """See :func:`dsv4_kernels.block_fp8_gemm.block_fp8_gemm_quant_reference`; equal to ``quant`` and the product.

    Few tokens are one launch where ``FEW`` says so.
    """
    tokens, k = x.shape
    _check(weight, weight_scales, out, tokens, k)
    require_unit_stride("x", x)
    chosen = _few_config(FEW, x, weight, quant=True)
    if chosen is not None:
        _few(x, None, weight, weight_scales, out, chosen)
        return
    codes, scales = _quantised(tokens, k, x.device)
    quant(x, codes, scales)
    block_fp8_gemm(codes, scales, weight, weight_scales, out)


def block_fp8_gemm_swiglu(
    h: torch.Tensor, limit: float, weight: torch.Tensor, weight_scales: torch.Tensor, out: torch.Tensor
) -> None:
    """See :func:`dsv4_kernels.block_fp8_gemm.block_fp8_gemm_swiglu_reference`; as ``swiglu_quant`` and the product.

    Few tokens are one launch where ``FEW_SWIGLU`` says so.
    """
    tokens, k = h.shape[0], h.shape[1] // 2
    require(h.shape[1] == 2 * k, f"h is {list(h.shape)}, expected [T, 2 K]")
    _check(weight, weight_scales, out, tokens, k)
    require_unit_stride("h", h)
    chosen = _few_config(FEW_SWIGLU, h[:, :k], weight, quant=True)
    if chosen is not None:
        _few(h[:, :k], None, weight, weight_scales, out, chosen, limit)
        return
    codes, scales = _quantised(tokens, k, h.device)
    swiglu_quant(h, limit, codes, scales)
    block_fp8_gemm(codes, scales, weight, weight_scales, out)


def _quantised(tokens: int, k: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for codes and scales."""
    codes = workspace("block_fp8_gemm.codes", (tokens, k), torch.float8_e4m3fn, device)
    return codes, workspace("block_fp8_gemm.scales", (tokens, k // FP8_GROUP), torch.uint8, device)


def _check(weight: torch.Tensor, weight_scales: torch.Tensor, out: torch.Tensor, tokens: int, k: int) -> None:
    n = weight.shape[0]
    require(k % FP8_GROUP == 0 and n % FP8_GROUP == 0, f"weight is {[n, k]}, expected multiples of {FP8_GROUP}")
    require_shape("weight", weight, n, k)
    require_shape("weight_scales", weight_scales, n // FP8_GROUP, k // FP8_GROUP)
    require_shape("out", out, tokens, n)
    require_dtype("weight", weight, torch.float8_e4m3fn)
    require_dtype("weight_scales", weight_scales, torch.uint8)
    for name, tensor in (("weight", weight), ("weight_scales", weight_scales), ("out", out)):
        require_unit_stride(name, tensor)


def _few_config(table: LaunchTable, x: torch.Tensor, weight: torch.Tensor, *, quant: bool) -> Config | None:
    """How a program takes whole rows; None where quantisation and product are better apart."""
    (tokens, k), n = x.shape, weight.shape[0]
    if counted("tokens", tokens) > FEW_TOKENS:
        return None
    chosen = table.choose(target_of(x.device), tokens=tokens, n=n, k=k, quant=int(quant))
    lanes = overlaps(x) and all(map(_in_words, (x, weight)))  # not under Triton's interpreter
    fits = {DOT: chosen["BLOCK_K"] >= k, APART: False, LANES: lanes}
    return chosen if fits.get(chosen["KIND"], True) else None


def _in_words(tensor: torch.Tensor) -> bool:
    """Whether rows of bf16 or codes begin at whole int32 words."""
    size = tensor.element_size()
    known = tensor.dtype in (torch.bfloat16, torch.float8_e4m3fn)
    return known and tensor.stride(0) * size % 4 == 0 and tensor.storage_offset() * size % 4 == 0


def _few(
    x: torch.Tensor,
    scales: torch.Tensor | None,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    out: torch.Tensor,
    chosen: Config,
    limit: float | None = None,
) -> None:
    """Codes with ``scales``, or values that the kernel quantises; ``limit``: gates, whose ups are ``k`` columns on."""
    if chosen["KIND"] == LANES:
        require(limit is None, "block_fp8_few_swiglu: KIND 4 does not make its activations itself")
        _lanes(x, scales, weight, weight_scales, out, chosen)
        return
    (tokens, k), n = x.shape, weight.shape[0]
    target = target_of(x.device)
    dot = chosen["KIND"] == DOT
    launch(
        _few_dot_kernel if dot else _few_vector_kernel,
        (triton.cdiv(n, chosen["BLOCK_N"]), triton.cdiv(tokens, DOT_TOKENS) if dot else tokens),
        {
            "x_ptr": x if scales is None else x.view(torch.uint8), "x_scales_ptr": scales,
            "weight_ptr": weight.view(torch.uint8), "weight_scales_ptr": weight_scales, "out_ptr": out,
            **({"n_tokens": tokens} if dot else {}),
            "n": n, "k": k, "x_stride": x.stride(0),
            "x_scales_stride": 0 if scales is None else scales.stride(0), "weight_stride": weight.stride(0),
            "weight_scales_stride": weight_scales.stride(0), "out_stride": out.stride(0), "limit": float(limit or 0.0),
        },
        {
            "QUANT": scales is None, "SWIGLU": limit is not None, "FNUZ": target.fp8 == "fnuz", "PDL": overlaps(x),
            **({} if dot else {"ONE": chosen["BLOCK_K"] >= k}),
        },
        chosen,
    )  # fmt: skip


def _lanes(
    x: torch.Tensor,
    scales: torch.Tensor | None,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    out: torch.Tensor,
    chosen: Config,
) -> None:
    """As :func:`_few`, by NVIDIA's own kernel."""
    from dsv4_kernels.block_fp8_gemm._nvidia import _few_lanes_kernel

    (tokens, k), n = x.shape, weight.shape[0]
    steps = triton.cdiv(k, chosen["BLOCK_K"])
    launch(
        _few_lanes_kernel,
        (n // chosen["BLOCK_N"] if tokens else 0,),
        {
            "x_ptr": x.view(torch.int32), "x_scales_ptr": scales, "weight_ptr": weight.view(torch.int32),
            "weight_scales_ptr": weight_scales, "out_ptr": out, "n_tokens": tokens,
            "x_stride": x.stride(0) * x.element_size() // 4,
            "x_scales_stride": 0 if scales is None else scales.stride(0), "weight_stride": weight.stride(0) // 4,
            "weight_scales_stride": weight_scales.stride(0), "out_stride": out.stride(0),
        },
        {
            "QUANT": scales is None, "PDL": overlaps(x), "BLOCKS": k // FP8_GROUP,
            "GROUPS": triton.cdiv(tokens, LANE_TOKENS), "AHEAD": min(chosen.num_stages, steps),
        },
        chosen,
    )  # fmt: skip


def _room(tokens: int, n: int, splits: int, tiles: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of all splits, and how many have arrived at each tile."""
    partial = workspace("block_fp8_gemm", (splits, tokens, n), torch.float32, device)
    return partial, zeroed_workspace("block_fp8_gemm", (max(tiles, 1),), torch.int32, device)


def _many(
    codes: torch.Tensor, scales: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor, out: torch.Tensor
) -> None:
    (tokens, k), n = codes.shape, weight.shape[0]
    target = target_of(codes.device)
    chosen = BLOCK_FP8_GEMM.choose(target, tokens=tokens, n=n, k=k)
    splits = min(chosen["SPLITS"], k // FP8_GROUP)
    tiles = triton.cdiv(tokens, chosen["BLOCK_T"]) * triton.cdiv(n, chosen["BLOCK_N"])
    split = splits > 1
    partial, counters = _room(tokens, n, splits, tiles, codes.device) if split else (None, None)
    launch(
        _block_fp8_gemm_kernel,
        (tiles, splits),
        {
            "codes_ptr": codes.view(torch.uint8), "scales_ptr": scales, "weight_ptr": weight.view(torch.uint8),
            "weight_scales_ptr": weight_scales, "out_ptr": out, "partial_ptr": partial, "counter_ptr": counters,
            "n_tokens": tokens, "n": n, "k": k, "codes_stride": codes.stride(0), "scales_stride": scales.stride(0),
            "weight_stride": weight.stride(0), "weight_scales_stride": weight_scales.stride(0),
            "out_stride": out.stride(0), "splits": splits,
        },
        {"FNUZ": target.fp8 == "fnuz", "SPLIT": split, "PDL": overlaps(codes)},
        chosen,
    )  # fmt: skip
