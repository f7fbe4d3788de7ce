"""Routed experts of few tokens in float32 on the CPU."""

from __future__ import annotations

import numpy as np
import torch

from dsv4_kernels.moe_gemm import _native
from dsv4_kernels.moe_gemm.reference import moe_gemm_reference
from dsv4_kernels.native import is_native
from dsv4_kernels.swiglu.cpu import swiglu_cpu

FEW_TOKENS = 16
SMALL_EXPERT = 1 << 13  # values of w13; larger ones go through BLAS
_FIRST = torch.zeros(1, 1, dtype=torch.int64)


def moe_gemm_cpu(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    limit: float,
    out: torch.Tensor,
) -> None:
    """See :func:`moe_gemm_reference`."""
    if x.shape[0] > FEW_TOKENS or not is_native(x, w13, out):
        moe_gemm_reference(x, experts, weights, w13, w2, limit, out)
    elif w13.shape[1] * w13.shape[2] <= SMALL_EXPERT:
        _native.routed(
            x.numpy(), experts.numpy(), weights.numpy(), w13.numpy(), w2.numpy(), np.float32(limit), out.numpy()
        )
    elif experts.numel() >= w13.shape[0]:
        _all_at_once(x, experts, weights, w13, w2, limit, out)
    else:
        _one_by_one(x, experts, weights, w13, w2, limit, out)


def mlp_cpu(x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, limit: float, out: torch.Tensor) -> None:
    """``w2 swiglu(w13 x)`` of all tokens: ``x [T, D]``, ``w13 [2 I, D]``, ``w2 [D, I]``, ``out [T, D]``."""
    if x.shape[0] <= FEW_TOKENS and w13.numel() <= SMALL_EXPERT and is_native(x, w13, out):
        _native.mlp(x.numpy(), w13.numpy(), w2.numpy(), np.float32(limit), out.numpy())
        return
    inter = w2.shape[1]
    h = torch.mm(x, w13.t())
    torch.mm(swiglu_cpu(h[:, :inter], h[:, inter:], limit).to(x.dtype), w2.t(), out=out)


def _one_by_one(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    limit: float,
    out: torch.Tensor,
) -> None:
    inter = w2.shape[2]
    out.zero_()
    scale = weights.tolist()
    for t, chosen in enumerate(experts.tolist()):
        row = x[t : t + 1]
        target = out[t : t + 1]
        for place in sorted(range(len(chosen)), key=chosen.__getitem__):
            h = torch.mm(row, w13[chosen[place]].t())
            a = swiglu_cpu(h[:, :inter], h[:, inter:], limit)
            target.addmm_(a, w2[chosen[place]].t(), alpha=scale[t][place])


def _all_at_once(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    limit: float,
    out: torch.Tensor,
) -> None:
    tokens, inter = x.shape[0], w2.shape[2]
    share = torch.zeros(w13.shape[0], tokens, 1)
    share.index_put_((experts, torch.arange(tokens).unsqueeze(1), _FIRST), weights, accumulate=True)
    h = torch.matmul(x, w13.transpose(1, 2)).flatten(0, 1)
    a = swiglu_cpu(h[:, :inter], h[:, inter:], limit).view(-1, tokens, inter)
    a.mul_(share)
    torch.sum(torch.bmm(a, w2.transpose(1, 2)), 0, out=out)
