"""KV compression of few entries in float32 on the CPU."""

from __future__ import annotations

import numpy as np
import torch

from dsv4_kernels.compress import _native
from dsv4_kernels.compress.reference import compress_reference
from dsv4_kernels.native import is_native
from dsv4_kernels.rows import Rows

FEW_ENTRIES = 32
FEW_TOKENS = 64


def compress_cpu(
    ks: torch.Tensor,
    state: torch.Tensor,
    ape: torch.Tensor,
    norm_weight: torch.Tensor,
    frequencies: torch.Tensor,
    eps: float,
    *,
    gather_state: torch.Tensor,
    gather_flat: torch.Tensor,
    from_flat: torch.Tensor,
    positions: torch.Tensor,
    pool: Rows,
    rows: torch.Tensor,
    state_src: torch.Tensor,
    state_dst: torch.Tensor,
) -> None:
    """See :func:`compress_reference`."""
    if rows.numel() > FEW_ENTRIES or ks.shape[0] > FEW_TOKENS or not is_native(ks, state, norm_weight):
        plain = False
    else:
        plain = not rows.numel() or (isinstance(pool, torch.Tensor) and is_native(pool))
    if not plain:
        compress_reference(
            ks, state, ape, norm_weight, frequencies, eps, gather_state=gather_state, gather_flat=gather_flat,
            from_flat=from_flat, positions=positions, pool=pool, rows=rows, state_src=state_src, state_dst=state_dst,
        )  # fmt: skip
        return
    if rows.numel():
        assert isinstance(pool, torch.Tensor)
        _native.compress(
            ks.numpy(),
            state.numpy(),
            ape.numpy(),
            norm_weight.numpy(),
            frequencies.numpy(),
            np.float32(eps),
            gather_state.numpy(),
            gather_flat.numpy(),
            from_flat.numpy(),
            positions.numpy(),
            pool.numpy(),
            rows.numpy(),
        )
    _native.carry(ks.numpy(), state.numpy(), state_src.numpy(), state_dst.numpy())
