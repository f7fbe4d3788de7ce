"""Hyper-connections of few tokens: Sinkhorn in two calls a normalisation."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

from dsv4_kernels.mhc_pre_post.reference import mhc_post_reference, mhc_pre_reference
from dsv4_kernels.small import SMALL, inverse_rms


@cache
def _sum_matrices(n: int, eps: float) -> tuple[Any, Any]:
    """Matrices ``[n * n + 1, n * n + 1]`` that turn flattened ``[C, 1]`` into divisors: at each entry the sum of
    its row (of its column) plus ``eps``, and 1 in the last place.
    """
    size = n * n
    index = np.arange(size)
    pair = []
    for group in (index // n, index % n):
        m = np.zeros((size + 1, size + 1), np.float32)
        m[:size, :size] = group[:, None] == group
        m[size, :size] = eps
        m[size, size] = 1.0
        pair.append(m)
    return pair[0], pair[1]


def _sinkhorn(logits: Any, n: int, iters: int, eps: float) -> Any:
    """As ``sinkhorn_reference``, on flattened ``[T, n * n]``."""
    rows, columns = _sum_matrices(n, eps)
    tokens, size = logits.shape
    c = np.ones((tokens, size + 1), np.float32)
    square = logits.reshape(tokens, n, n)
    e = np.exp(square - square.max(-1, keepdims=True))
    e /= e.sum(-1, keepdims=True)
    e += np.float32(eps)
    c[:, :size] = e.reshape(tokens, size)
    sums = np.empty_like(c)
    np.matmul(c, columns, out=sums)
    c /= sums
    for _ in range(iters - 1):
        np.matmul(c, rows, out=sums)
        c /= sums
        np.matmul(c, columns, out=sums)
        c /= sums
    return c[:, :size]


def _sigmoid(x: Any) -> Any:
    with np.errstate(over="ignore"):
        return np.reciprocal(1.0 + np.exp(-x))


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
) -> None:
    """See :func:`mhc_pre_reference`."""
    if x.dtype is not torch.float32 or comb.numel() > SMALL:
        mhc_pre_reference(
            x, fn, base, scale, rms_eps=rms_eps, hc_eps=hc_eps, iters=iters, out=out, post=post, comb=comb
        )
        return
    n = x.shape[1]
    flat = x.flatten(1)
    m = torch.mm(flat, fn.t()).numpy()
    m *= inverse_rms(flat.numpy(), rms_eps)
    s0, s1, s2 = scale.tolist()
    b = base.numpy()
    pre = _sigmoid(m[:, :n] * s0 + b[:n])
    pre += np.float32(hc_eps)
    np.multiply(_sigmoid(m[:, n : 2 * n] * s1 + b[n : 2 * n]), np.float32(2.0), out=post.numpy())
    mixed = _sinkhorn(m[:, 2 * n :] * s2 + b[2 * n :], n, iters, hc_eps)
    comb.numpy()[...] = mixed.reshape(comb.shape)
    torch.bmm(torch.from_numpy(pre).unsqueeze(1), x, out=out.unsqueeze(1))


def mhc_post_cpu(y: torch.Tensor, post: torch.Tensor, comb: torch.Tensor, x: torch.Tensor) -> None:
    """See :func:`mhc_post_reference`."""
    if x.dtype is not torch.float32:
        mhc_post_reference(y, post, comb, x)
        return
    spread = torch.mul(post.unsqueeze(-1), y.unsqueeze(1))
    x.copy_(torch.baddbmm(spread, comb.transpose(1, 2), x))
