"""Q and KV norm + rope in float32 on the CPU."""

from __future__ import annotations

import numpy as np
import torch

from dsv4_kernels.native import is_native
from dsv4_kernels.qk_norm_rope_store import _native
from dsv4_kernels.qk_norm_rope_store.reference import (
    kv_norm_rope_reference,
    kv_norm_rope_store_reference,
    q_norm_rope_reference,
)
from dsv4_kernels.rows import Rows


def q_norm_rope_cpu(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float) -> None:
    """See :func:`q_norm_rope_reference`."""
    if is_native(q):
        _native.q_norm_rope(q.numpy(), cos.numpy(), sin.numpy(), np.float32(eps))
    else:
        q_norm_rope_reference(q, cos, sin, eps)


def kv_norm_rope_cpu(
    kv: torch.Tensor, weight: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float, out: torch.Tensor
) -> None:
    """See :func:`kv_norm_rope_reference`."""
    if is_native(kv, weight, out):
        _store(kv, weight, cos, sin, eps, out, np.arange(kv.shape[0]))
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
    if isinstance(pool, torch.Tensor) and is_native(kv, weight, pool):
        _store(kv, weight, cos, sin, eps, pool, rows.numpy())
    else:
        kv_norm_rope_store_reference(kv, weight, cos, sin, eps, pool, rows)


def _store(
    kv: torch.Tensor,
    weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    rows: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
) -> None:
    _native.kv_norm_rope(kv.numpy(), weight.numpy(), cos.numpy(), sin.numpy(), np.float32(eps), out.numpy(), rows)
