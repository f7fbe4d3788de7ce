"""Manifold-constrained hyper-connections in plain torch (dsv4-spec 2.2)."""

from __future__ import annotations

import torch

from dsv4_kernels.norm_quant.reference import quant_reference, rms_norm_reference


def sinkhorn_reference(logits: torch.Tensor, iters: int, eps: float) -> torch.Tensor:
    """Nearly doubly stochastic ``float32 [T, n, n]`` from ``logits [T, n, n]``.

    Softmax over the last dim, then ``iters`` column and ``iters - 1`` row normalisations, columns first and last, with
    ``eps`` added to the softmax and to every divisor.
    """
    c = torch.softmax(logits, dim=-1) + eps
    c = c / (c.sum(-2, keepdim=True) + eps)
    for _ in range(iters - 1):
        c = c / (c.sum(-1, keepdim=True) + eps)
        c = c / (c.sum(-2, keepdim=True) + eps)
    return c


def _mix(x: torch.Tensor, fn: torch.Tensor, rms_eps: float) -> torch.Tensor:
    """``fn @ rms_normalised(flattened streams)``: ``float32 [T, rows of fn]``."""
    flat = x.flatten(1).float()
    r = torch.rsqrt(flat.square().mean(-1, keepdim=True) + rms_eps)
    return (flat @ fn.t()) * r


def mhc_pre_reference(
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
    """Collapse the streams ``x [T, n, D]`` to one sublayer input ``out [T, D]``; keep the mixes for ``mhc_post``.

    ``fn``: float32 ``[n * (2 + n), n * D]``, ``base``: ``[n * (2 + n)]``, ``scale``: ``[3]``; ``post [T, n]`` and
    ``comb [T, n, n]`` are float32 outputs. With ``norm [D]``, ``normed [T, D]`` is the RMSNorm of ``out``,
    and with ``codes [T, D]`` and ``scales [T, D / 128]`` also that in fp8 (:func:`quant_reference`).
    """
    n = x.shape[1]
    m = _mix(x, fn, rms_eps)
    pre = torch.sigmoid(m[:, :n] * scale[0] + base[:n]) + hc_eps
    post.copy_(2.0 * torch.sigmoid(m[:, n : 2 * n] * scale[1] + base[n : 2 * n]))
    logits = (m[:, 2 * n :] * scale[2] + base[2 * n :]).view(-1, n, n)
    comb.copy_(sinkhorn_reference(logits, iters, hc_eps))
    out.copy_((pre.unsqueeze(-1) * x.float()).sum(1))
    if normed is not None:
        rms_norm_reference(out, norm, rms_eps, normed)
        if codes is not None and scales is not None:
            quant_reference(normed, codes, scales)


def mhc_post_reference(y: torch.Tensor, post: torch.Tensor, comb: torch.Tensor, x: torch.Tensor) -> None:
    """Spread the sublayer output ``y [T, D]`` over the streams ``x [T, n, D]``, in place.

    ``x'[l] = post[l] * y + sum_j comb[j, l] * x[j]``: the first index of ``comb`` is the source stream.
    """
    mixed = torch.einsum("tjl,tjd->tld", comb, x.float())
    x.copy_(post.unsqueeze(-1) * y.float().unsqueeze(1) + mixed)


def mhc_head_reference(
    x: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    *,
    rms_eps: float,
    hc_eps: float,
    out: torch.Tensor,
) -> None:
    """Collapse the streams ``x [T, n, D]`` after the last layer into ``out [T, D]``; ``fn``: float32 ``[n, n * D]``."""
    pre = torch.sigmoid(_mix(x, fn, rms_eps) * scale + base) + hc_eps
    out.copy_((pre.unsqueeze(-1) * x.float()).sum(1))


def mhc_post_pre_reference(
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
    """:func:`mhc_post_reference` of one sublayer, then :func:`mhc_pre_reference` of the next.

    ``post`` and ``comb`` are those of the sublayer that gave ``y``; ``new_post`` and ``new_comb`` are the next one's.
    """
    mhc_post_reference(y, post, comb, x)
    mhc_pre_reference(
        x, fn, base, scale, rms_eps=rms_eps, hc_eps=hc_eps, iters=iters, out=out, post=new_post, comb=new_comb,
        norm=norm, normed=normed, codes=codes, scales=scales,
    )  # fmt: skip
