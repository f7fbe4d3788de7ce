"""Launch of the hyper-connections of many tokens; arguments as in ``triton_op.py``."""

from __future__ import annotations

import torch
import triton

from dsv4_kernels.invariant import counted
from dsv4_kernels.launch import launch
from dsv4_kernels.mhc_pre_post._launch import MANY, MANY_TOKENS, MANY_TOKENS_SPREAD
from dsv4_kernels.mhc_pre_post._many import _many_kernel
from dsv4_kernels.target import target_of
from dsv4_kernels.workspace import workspace, zeroed_workspace

COLUMN_MULTIPLE = 8


def is_many(x: torch.Tensor, *, spread: bool) -> bool:
    """Whether streams ``x [T, 4, D]`` are collapsed by one launch, after a ``spread`` or not."""
    tokens, _, d = x.shape
    fits = x.dtype is torch.bfloat16 and d % COLUMN_MULTIPLE == 0 and MANY.serves(target_of(x.device))
    return fits and counted("tokens", tokens) >= (MANY_TOKENS_SPREAD if spread else MANY_TOKENS)


def many(
    x: torch.Tensor,
    y: torch.Tensor | None,
    post: torch.Tensor | None,
    comb: torch.Tensor | None,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    out: torch.Tensor,
    new_post: torch.Tensor,
    new_comb: torch.Tensor,
    rms_eps: float,
    hc_eps: float,
    iters: int,
) -> None:
    """Spread ``y``, if given, over ``x``, then collapse ``x``; ``new_post`` and ``new_comb`` may be the old ones."""
    tokens, streams, d = x.shape
    chosen = MANY.choose(target_of(x.device), tokens=tokens, spread=int(y is not None))
    splits = triton.cdiv(streams * d, chosen["WIDTH"])
    tiles = triton.cdiv(tokens, chosen["BLOCK_T"])
    launch(
        _many_kernel,
        ((tiles + chosen["LAG"]) * (splits + 1 + chosen["BLOCK_T"] // chosen["OUT_T"]),),
        {
            "x_ptr": x, "y_ptr": y, "post_ptr": post, "comb_ptr": comb, "fn_ptr": fn, "base_ptr": base,
            "scale_ptr": scale, "out_ptr": out, "new_post_ptr": new_post, "new_comb_ptr": new_comb,
            "partial_ptr": workspace("mhc_mix", (splits, tokens, 32), torch.float32, x.device),
            "squares_ptr": workspace("mhc_squares", (splits, tokens), torch.float32, x.device),
            "row_ptr": workspace("mhc_rows", (tokens, 32), torch.float32, x.device),
            "counter_ptr": zeroed_workspace("mhc_tiles", (tiles, 2), torch.int32, x.device),
            "n_tokens": tokens, "d": d, "out_stride": out.stride(0), "rms_eps": rms_eps, "hc_eps": hc_eps,
        },
        {"SPREAD": y is not None, "MIXES": fn.shape[0], "ITERS": iters, "SPLITS": splits},
        chosen,
    )  # fmt: skip
