"""Q head norm + rope, and KV norm + rope + store, in plain torch (dsv4-spec 2.4, 2.5, 5.3)."""

from __future__ import annotations

import torch

from dsv4_kernels.rope import rotate_tail
from dsv4_kernels.rows import Rows, put_rows
from dsv4_kernels.targets_of_rows import rows_of


def q_norm_rope_reference(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float) -> None:
    """Per head: weightless RMSNorm, then rope on the tail; ``q [T, H, d]`` in place, ``cos, sin [T, rope_dim / 2]``."""
    y = q.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    q.copy_(rotate_tail(y, cos, sin))


def kv_norm_rope_reference(
    kv: torch.Tensor, weight: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float, out: torch.Tensor
) -> None:
    """Weighted RMSNorm, then rope on the tail: ``kv [T, d]`` to ``out [T, d]``."""
    y = kv.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight.float()
    out.copy_(rotate_tail(y, cos, sin))


def kv_norm_rope_store_reference(
    kv: torch.Tensor,
    weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    eps: float,
    pool: Rows,
    rows: torch.Tensor,
) -> None:
    """As :func:`kv_norm_rope_reference`, stored at ``pool[rows]`` (``pool [rows_L, d]``, ``rows`` int64 ``[T]``)."""
    y = kv.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight.float()
    put_rows(pool, rows, rotate_tail(y, cos, sin))


def qk_norm_rope_reference(
    q: torch.Tensor,
    kv: torch.Tensor,
    weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    eps: float,
    out: torch.Tensor,
) -> None:
    """:func:`q_norm_rope_reference` and :func:`kv_norm_rope_reference`."""
    q_norm_rope_reference(q, cos, sin, eps)
    kv_norm_rope_reference(kv, weight, cos, sin, eps, out)


def qk_norm_rope_store_pools_reference(
    q: torch.Tensor,
    kv: torch.Tensor,
    weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    eps: float,
    pool: torch.Tensor,
    rope_pool: torch.Tensor | None,
    rows: torch.Tensor,
) -> None:
    """:func:`q_norm_rope_reference` and :func:`kv_norm_rope_store_reference`.

    ``rope_pool`` makes the pair of the fp8 layout of ``pool`` and itself.
    """
    q_norm_rope_reference(q, cos, sin, eps)
    kv_norm_rope_store_reference(kv, weight, cos, sin, eps, rows_of(pool, rope_pool, kv.shape[1]), rows)
