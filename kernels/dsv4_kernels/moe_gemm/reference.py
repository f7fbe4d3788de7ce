"""Routed experts in plain torch (dsv4-spec 2.12)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dsv4_kernels.formats import dequantise_e2m1, dequantise_e4m3_blocks
from dsv4_kernels.swiglu.reference import swiglu_reference


def moe_gemm_reference(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    limit: float,
    out: torch.Tensor,
) -> None:
    """``out[t] = sum_i weights[t, i] * w2[e] swiglu(w13[e] x[t])`` with ``e = experts[t, i]``.

    ``x [T, D]``; ``experts`` int64 and ``weights`` float32 ``[T, k]``; ``w13 [E, 2 I, D]`` (gate rows, then up rows);
    ``w2 [E, D, I]``; ``out`` float32 ``[T, D]``. Experts are visited in ascending order.
    """
    _visit(x, experts, weights, lambda e: (w13[e], w2[e]), limit, out)


def moe_gemm_quant_reference(
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
    """As :func:`moe_gemm_reference` with quantised weights, decoded to the dtype of ``x``, which holds them exactly.

    fp4: ``w13`` uint8 ``[E, 2 I, D / 2]``, two e2m1 codes a byte, low nibble first, ``w13_scales`` an e8m0 byte per 32
    columns, uint8 ``[E, 2 I, D / 32]``; ``w2`` uint8 ``[E, D, I / 2]`` likewise.
    fp8: ``w13`` e4m3 ``[E, 2 I, D]``, an e8m0 byte per 128 × 128, uint8 ``[E, 2 I / 128, D / 128]``; ``w2`` likewise.
    Activations stay as they are (dsv4-spec 2.14 quantises them too, and is that much further from the truth).
    """
    decode = dequantise_e2m1 if w13.dtype is torch.uint8 else dequantise_e4m3_blocks

    def of(e: int) -> tuple[torch.Tensor, torch.Tensor]:
        return decode(w13[e], w13_scales[e]).to(x.dtype), decode(w2[e], w2_scales[e]).to(x.dtype)

    _visit(x, experts, weights, of, limit, out)


def _visit(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    of: Callable[[int], tuple[torch.Tensor, torch.Tensor]],
    limit: float,
    out: torch.Tensor,
) -> None:
    out.zero_()
    for e in torch.unique(experts).tolist():
        w13, w2 = of(e)
        inter = w2.shape[1]
        token, place = (experts == e).nonzero(as_tuple=True)
        h = x[token] @ w13.t()
        a = swiglu_reference(h[:, :inter], h[:, inter:], limit).to(x.dtype)
        y = (a @ w2.t()).float() * weights[token, place].unsqueeze(1)
        out.index_add_(0, token, y)
