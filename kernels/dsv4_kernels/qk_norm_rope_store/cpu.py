"""Q and KV norm + rope of few tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dsv4_kernels.qk_norm_rope_store.reference import (
    kv_norm_rope_reference,
    kv_norm_rope_store_reference,
    q_norm_rope_reference,
)
from dsv4_kernels.rows import Rows
from dsv4_kernels.small import inverse_rms, is_small, rotate_tail_small


def q_norm_rope_cpu(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float) -> None:
    """See :func:`q_norm_rope_reference`."""
    if not is_small(q):
        q_norm_rope_reference(q, cos, sin, eps)
        return
    y = q.numpy()
    y *= inverse_rms(y, eps)
    rotate_tail_small(y, cos.numpy(), sin.numpy())


def _kv(kv: torch.Tensor, weight: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float) -> Any:
    x = kv.numpy()
    y = x * inverse_rms(x, eps)
    y *= weight.numpy()
    rotate_tail_small(y, cos.numpy(), sin.numpy())
    return y


def kv_norm_rope_cpu(
    kv: torch.Tensor, weight: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float, out: torch.Tensor
) -> None:
    """See :func:`kv_norm_rope_reference`."""
    if is_small(kv, weight, out):
        np.copyto(out.numpy(), _kv(kv, weight, cos, sin, eps))
    else:
        kv_norm_rope_reference(kv, weight, cos, sin, eps, out)


def kv_norm_rope_store_cpu(
    kv: torch.Tensor,
    weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    eps: float,
    pool: Rows,
    rows: torch.Tensor,
) -> None:
    """See :func:`kv_norm_rope_store_reference`."""
    if is_small(kv, weight) and isinstance(pool, torch.Tensor) and pool.dtype is torch.float32:
        pool.numpy()[rows.numpy()] = _kv(kv, weight, cos, sin, eps)
    else:
        kv_norm_rope_store_reference(kv, weight, cos, sin, eps, pool, rows)
