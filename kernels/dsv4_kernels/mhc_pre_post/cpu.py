"""Hyper-connections in float32 on the CPU: one compiled pass per call, behind one matrix product."""

from __future__ import annotations

import numpy as np
import torch

from dsv4_kernels.mhc_pre_post import _native
from dsv4_kernels.mhc_pre_post.reference import mhc_head_reference, mhc_post_reference, mhc_pre_reference
from dsv4_kernels.native import is_native
from dsv4_kernels.norm_quant.cpu import rms_norm_cpu


def mhc_pre_cpu(
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
) -> None:
    """See :func:`mhc_pre_reference`."""
    if not is_native(x, fn, out):
        mhc_pre_reference(
            x, fn, base, scale, rms_eps=rms_eps, hc_eps=hc_eps, iters=iters, out=out, post=post, comb=comb,
            norm=norm, normed=normed,
        )  # fmt: skip
        return
    m = torch.mm(x.flatten(1), fn.t())
    _native.pre(
        x.numpy(),
        m.numpy(),
        base.numpy(),
        scale.numpy(),
        np.float32(rms_eps),
        np.float32(hc_eps),
        iters,
        out.numpy(),
        post.numpy(),
        comb.numpy(),
    )
    if normed is not None:
        rms_norm_cpu(out, norm, rms_eps, normed)


def mhc_head_cpu(
    x: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    *,
    rms_eps: float,
    hc_eps: float,
    out: torch.Tensor,
) -> None:
    """See :func:`mhc_head_reference`."""
    if not is_native(x, fn, out):
        mhc_head_reference(x, fn, base, scale, rms_eps=rms_eps, hc_eps=hc_eps, out=out)
        return
    m = torch.mm(x.flatten(1), fn.t())
    _native.head(
        x.numpy(),
        m.numpy(),
        base.numpy(),
        np.float32(scale.item()),
        np.float32(rms_eps),
        np.float32(hc_eps),
        out.numpy(),
    )


def mhc_post_cpu(y: torch.Tensor, post: torch.Tensor, comb: torch.Tensor, x: torch.Tensor) -> None:
    """See :func:`mhc_post_reference`."""
    if is_native(x, y):
        _native.spread(y.numpy(), post.numpy(), comb.numpy(), x.numpy())
    else:
        mhc_post_reference(y, post, comb, x)


def mhc_post_pre_cpu(
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
) -> None:
    """:func:`mhc_post_cpu`, then :func:`mhc_pre_cpu`."""
    mhc_post_cpu(y, post, comb, x)
    mhc_pre_cpu(
        x, fn, base, scale, rms_eps=rms_eps, hc_eps=hc_eps, iters=iters, out=out, post=new_post, comb=new_comb,
        norm=norm, normed=normed,
    )  # fmt: skip
