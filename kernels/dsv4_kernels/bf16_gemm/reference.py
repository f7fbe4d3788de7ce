"""Matrix product of bf16 operands in plain torch (dsv4-spec 2.14: compressor, ``weights_proj``, ``wo_a``)."""

from __future__ import annotations

import torch


def bf16_gemm_reference(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """``out [T, G, N]`` = ``x [T, G, K]`` times ``weight [G, N, K]``, a group each, with float32 sums.

    ``out`` is float32 or bf16. Without groups, ``x [T, K]``, ``weight [N, K]``, ``out [T, N]``.
    """
    if weight.dim() == 2:
        out.copy_(x.float() @ weight.float().t())
    else:
        out.copy_(torch.einsum("tgk,gnk->tgn", x.float(), weight.float()))
