"""Launch of the hyper-connections whose streams are read once; arguments as in ``triton_op.py``. Hopper."""

from __future__ import annotations

import torch
import triton

from dsv4_kernels.invariant import counted
from dsv4_kernels.launch import launch, overlaps
from dsv4_kernels.mhc_pre_post._launch import ONCE, ONCE_SPREAD, ONCE_TOKENS, ONCE_WIDTHS
from dsv4_kernels.target import target_of
from dsv4_kernels.workspace import zeroed_workspace

TILE, SLICE = 16, 256
"""Tokens of a tile; columns of a program's slice."""

HEAD, RECORD = 32, 576
"""Words before the first record of sums, and of a record, which is of a tile and slice."""


def is_once(x: torch.Tensor, *others: torch.Tensor) -> bool:
    """Whether streams ``x [T, 4, D]`` are read once; ``others``: what is spread over them, and how."""
    tokens, _, d = x.shape
    target = target_of(x.device)
    fits = x.dtype is torch.bfloat16 and d in ONCE_WIDTHS and ONCE.serves(target) and target.units >= d // SLICE
    return fits and counted("tokens", tokens) >= ONCE_TOKENS and all(t.data_ptr() % 16 == 0 for t in (x, *others))


def once(
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
    """Spread ``y``, if given, over ``x``, then collapse ``x``; ``new_post`` and ``new_comb`` may be the old ones.

    A group of programs is ``D / SLICE`` of them; as many groups are launched as run at once.
    """
    from dsv4_kernels.mhc_pre_post._once import mhc_once_kernel  # Gluon: not for the interpreter

    tokens, _, d = x.shape
    target = target_of(x.device)
    slices, tiles = d // SLICE, triton.cdiv(tokens, TILE)
    groups = min(target.units // slices, tiles)
    descriptors = {
        "x_desc": _descriptor(x, [4, tokens, d], [d, 4 * d, 1], [1, TILE, SLICE], 128),
        "y_desc": None if y is None else _descriptor(y, [tokens, d], [d, 1], [TILE, SLICE], 128),
        "post_desc": None if y is None or post is None else _descriptor(post, [tokens, 4], [4, 1], [TILE, 4], 0),
        "comb_desc": None if y is None or comb is None else _descriptor(comb, [tokens, 16], [16, 1], [TILE, 16], 64),
    }
    launch(
        mhc_once_kernel,
        (slices * groups,),
        {
            **descriptors, "fn_ptr": fn, "base_ptr": base, "scale_ptr": scale, "out_ptr": out,
            "new_post_ptr": new_post, "new_comb_ptr": new_comb,
            "record_ptr": zeroed_workspace("mhc_once", (HEAD + tiles * slices * RECORD,), torch.int32, x.device),
            "n_tokens": tokens, "n_slices": slices, "out_stride": out.stride(0), "rms_eps": rms_eps, "hc_eps": hc_eps,
        },
        {"SPREAD": y is not None, "PDL": overlaps(x), "ITERS": iters, "SLICES": slices},
        (ONCE if y is None else ONCE_SPREAD).choose(target),
    )  # fmt: skip


def _descriptor(tensor: torch.Tensor, shape: list[int], strides: list[int], block: list[int], swizzle: int) -> object:
    """Of ``tensor`` seen as ``shape`` with ``strides``, copied block by block by the tensor memory accelerator."""
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    layout = NVMMASharedLayout(swizzle, 8 * tensor.element_size(), len(block))
    return TensorDescriptor(tensor, shape, strides, block, layout)
