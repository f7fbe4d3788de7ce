"""Wrappers of the hyper-connection kernels; arguments as in ``reference.py``."""

from __future__ import annotations

from dataclasses import replace

import torch
import triton

from dsv4_kernels.checks import require, require_dtype, require_shape
from dsv4_kernels.invariant import counted
from dsv4_kernels.launch import launch, overlaps, pdl_of
from dsv4_kernels.mhc_pre_post._few import _collapse_few_kernel, _mix_few_kernel
from dsv4_kernels.mhc_pre_post._kernel import _collapse_kernel, _mix_kernel
from dsv4_kernels.mhc_pre_post._launch import COLLAPSE, COLLAPSE_FEW, FEW_TOKENS, MIX, MIX_FEW, QUANT_WIDTH, SPREAD
from dsv4_kernels.mhc_pre_post.after import NOTHING, After, check_out, norm_after, quant_after, stride
from dsv4_kernels.mhc_pre_post.many import is_many, many
from dsv4_kernels.mhc_pre_post.once import is_once, once
from dsv4_kernels.target import target_of
from dsv4_kernels.workspace import workspace

STREAMS = 4
PRE_MIXES = STREAMS * (2 + STREAMS)


def mhc_pre(
    x: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    *,
    rms_eps: float,
    hc_eps: float,
    iters: int,
    out: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    norm: torch.Tensor | None = None,
    normed: torch.Tensor | None = None,
    codes: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
) -> None:
    """See :func:`dsv4_kernels.mhc_pre_post.mhc_pre_reference`; four streams."""
    _check_mixes(x, fn, PRE_MIXES)
    after = After(norm, normed, codes, scales)
    check_out(x, out, after)
    if is_once(x) or is_many(x, spread=False):
        one_launch = once if is_once(x) else many
        one_launch(x, None, None, None, fn, base, scale, out, post, comb, rms_eps, hc_eps, iters)
        norm_after(out, rms_eps, after)
        return
    mixed = _mix(x, fn, PRE_MIXES, None, None, None)
    _collapse(x, base, scale, out, post, comb, mixed, rms_eps, hc_eps, iters, after)


def mhc_post(y: torch.Tensor, post: torch.Tensor, comb: torch.Tensor, x: torch.Tensor) -> None:
    """See :func:`dsv4_kernels.mhc_pre_post.mhc_post_reference`; four streams."""
    _check_post(y, post, comb, x)
    _mix(x, None, 0, y, post, comb)


def mhc_head(
    x: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    *,
    rms_eps: float,
    hc_eps: float,
    out: torch.Tensor,
) -> None:
    """See :func:`dsv4_kernels.mhc_pre_post.mhc_head_reference`; four streams."""
    _check_mixes(x, fn, STREAMS)
    check_out(x, out, NOTHING)
    mixed = _mix(x, fn, STREAMS, None, None, None)
    _collapse(x, base, scale, out, None, None, mixed, rms_eps, hc_eps, 0)


def mhc_post_pre(
    y: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    x: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    *,
    rms_eps: float,
    hc_eps: float,
    iters: int,
    out: torch.Tensor,
    new_post: torch.Tensor,
    new_comb: torch.Tensor,
    norm: torch.Tensor | None = None,
    normed: torch.Tensor | None = None,
    codes: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
) -> None:
    """See :func:`dsv4_kernels.mhc_pre_post.mhc_post_pre_reference`; the new mixes may be the old tensors."""
    _check_post(y, post, comb, x)
    _check_mixes(x, fn, PRE_MIXES)
    after = After(norm, normed, codes, scales)
    check_out(x, out, after)
    reads_once = is_once(x, y, post, comb)
    if reads_once or is_many(x, spread=True):
        one_launch = once if reads_once else many
        one_launch(x, y, post, comb, fn, base, scale, out, new_post, new_comb, rms_eps, hc_eps, iters)
        norm_after(out, rms_eps, after)
        return
    mixed = _mix(x, fn, PRE_MIXES, y, post, comb)
    _collapse(x, base, scale, out, new_post, new_comb, mixed, rms_eps, hc_eps, iters, after, early=False)


def _check_mixes(x: torch.Tensor, fn: torch.Tensor, mixes: int) -> None:
    require(x.dim() == 3 and x.shape[1] == STREAMS, f"x is {list(x.shape)}, expected [T, {STREAMS}, D]")
    require(x.is_contiguous(), "x is not contiguous")
    require_shape("fn", fn, mixes, STREAMS * x.shape[2])
    require_dtype("fn", fn, torch.float32)
    require(fn.is_contiguous(), "fn is not contiguous")


def _check_post(y: torch.Tensor, post: torch.Tensor, comb: torch.Tensor, x: torch.Tensor) -> None:
    tokens, streams, d = x.shape
    require_shape("y", y, tokens, d)
    require_shape("post", post, tokens, streams)
    require_shape("comb", comb, tokens, streams, streams)
    for name, tensor in (("x", x), ("y", y), ("post", post), ("comb", comb)):
        require(tensor.is_contiguous(), f"{name} is not contiguous")
    require(streams == STREAMS, f"x has {streams} streams, expected {STREAMS}")


def _mix(
    x: torch.Tensor,
    fn: torch.Tensor | None,
    mixes: int,
    y: torch.Tensor | None,
    post: torch.Tensor | None,
    comb: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Partial mixes ``[splits, T, 32]`` and sums of squares ``[splits, T]``."""
    tokens, _, d = x.shape
    if fn is not None and counted("tokens", tokens) <= FEW_TOKENS:
        return _mix_few(x, fn, mixes, y, post, comb)
    chosen = (MIX if mixes else SPREAD).choose(target_of(x.device), tokens=tokens)
    step = chosen["BLOCK_D"]
    width = triton.cdiv(triton.cdiv(d, chosen["SPLITS"]), step) * step
    splits = triton.cdiv(d, width)
    partial = workspace("mhc_mix", (splits, tokens, 32), torch.float32, x.device)
    squares = workspace("mhc_squares", (splits, tokens), torch.float32, x.device)
    launch(
        _mix_kernel,
        (triton.cdiv(tokens, chosen["BLOCK_T"]), splits),
        {
            "x_ptr": x, "y_ptr": y, "post_ptr": post, "comb_ptr": comb, "fn_ptr": fn,
            "partial_ptr": partial, "squares_ptr": squares, "n_tokens": tokens, "d": d,
        },
        {
            "SPREAD": y is not None, "MIX": fn is not None, "MIXES": mixes,
            "SPLIT_D": width, "SPLIT_BF16": x.dtype is torch.bfloat16,
        },
        chosen,
    )  # fmt: skip
    return partial, squares


def _mix_few(
    x: torch.Tensor,
    fn: torch.Tensor,
    mixes: int,
    y: torch.Tensor | None,
    post: torch.Tensor | None,
    comb: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`_mix`."""
    tokens, _, d = x.shape
    chosen = MIX_FEW.choose(target_of(x.device), tokens=tokens)
    splits = triton.cdiv(d, chosen["BLOCK_D"])
    partial = workspace("mhc_mix", (splits, tokens, 32), torch.float32, x.device)
    squares = workspace("mhc_squares", (splits, tokens), torch.float32, x.device)
    launch(
        _mix_few_kernel,
        (splits, triton.cdiv(tokens, chosen["BLOCK_T"])),
        {
            "x_ptr": x, "y_ptr": y, "post_ptr": post, "comb_ptr": comb, "fn_ptr": fn,
            "partial_ptr": partial, "squares_ptr": squares, "n_tokens": tokens, "d": d,
        },
        {"SPREAD": y is not None, "MIXES": mixes, "PDL": overlaps(x)},
        chosen,
    )  # fmt: skip
    return partial, squares


def _collapse(
    x: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    out: torch.Tensor,
    post: torch.Tensor | None,
    comb: torch.Tensor | None,
    mixed: tuple[torch.Tensor, torch.Tensor],
    rms_eps: float,
    hc_eps: float,
    iters: int,
    after: After = NOTHING,
    *,
    early: bool = True,
) -> None:
    """``early``: the launch before this one only read the streams."""
    tokens, _, d = x.shape
    if counted("tokens", tokens) <= FEW_TOKENS:
        _collapse_few(x, base, scale, out, post, comb, mixed, rms_eps, hc_eps, iters, after, early)
        return
    chosen = COLLAPSE.choose(target_of(x.device), tokens=tokens)
    partial, squares = mixed
    tiles = triton.cdiv(d, chosen["BLOCK_D"]) + (comb is not None)
    launch(
        _collapse_kernel,
        (tiles, triton.cdiv(tokens, chosen["BLOCK_T"])),
        {
            "x_ptr": x, "partial_ptr": partial, "squares_ptr": squares, "base_ptr": base, "scale_ptr": scale,
            "out_ptr": out, "post_ptr": post, "comb_ptr": comb, "n_tokens": tokens, "d": d,
            "splits": partial.shape[0], "out_stride": out.stride(0), "rms_eps": rms_eps, "hc_eps": hc_eps,
        },
        {"COMB": comb is not None, "ITERS": iters, "SPLITS_PAD": triton.next_power_of_2(partial.shape[0])},
        chosen,
    )  # fmt: skip
    norm_after(out, rms_eps, after)


def _collapse_few(
    x: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    out: torch.Tensor,
    post: torch.Tensor | None,
    comb: torch.Tensor | None,
    mixed: tuple[torch.Tensor, torch.Tensor],
    rms_eps: float,
    hc_eps: float,
    iters: int,
    after: After,
    early: bool,
) -> None:
    tokens, _, d = x.shape
    partial, squares = mixed
    if d > QUANT_WIDTH:
        after, later = replace(after, codes=None, scales=None), after
    else:
        later = NOTHING
    launch(
        _collapse_few_kernel,
        (1 + (comb is not None), tokens),
        {
            "x_ptr": x, "partial_ptr": partial, "squares_ptr": squares, "base_ptr": base, "scale_ptr": scale,
            "out_ptr": out, "post_ptr": post, "comb_ptr": comb, "norm_ptr": after.norm, "normed_ptr": after.normed,
            "codes_ptr": after.codes, "scales_ptr": after.scales,
            "n_tokens": tokens, "d": d, "splits": partial.shape[0], "out_stride": out.stride(0),
            "normed_stride": stride(after.normed), "codes_stride": stride(after.codes),
            "scales_stride": stride(after.scales), "rms_eps": rms_eps, "hc_eps": hc_eps,
        },
        {
            "COMB": comb is not None, "ITERS": iters, "NORM": after.norm is not None, "QUANT": after.codes is not None,
            "EARLY": early, "PDL": pdl_of(x, x.shape[0]),
            "SPLITS_PAD": triton.next_power_of_2(partial.shape[0]), "BLOCK_D": triton.next_power_of_2(d),
        },
        COLLAPSE_FEW.choose(target_of(x.device), tokens=tokens),
    )  # fmt: skip
    quant_after(later)
