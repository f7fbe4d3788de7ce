"""Two-region sparse attention of a prefill chunk, in plain torch (dsv4-spec 5.2)."""

from __future__ import annotations

import torch

from dsv4_kernels.attend import BLOCK_TOKENS, attend, padded_rows
from dsv4_kernels.rows import Fp8Rows, Rows


def sparse_prefill_reference(
    q: torch.Tensor,
    pool: Rows,
    prefix_indices: torch.Tensor,
    prefix_indptr: torch.Tensor,
    kv: torch.Tensor,
    extend_indices: torch.Tensor,
    extend_indptr: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> None:
    """As ``sparse_decode``, with one softmax over pool rows (prefix) and rows of this forward's ``kv [T, d]``."""
    prefix_starts, prefix_lengths = prefix_indptr[:-1].long(), (prefix_indptr[1:] - prefix_indptr[:-1]).long()
    extend_starts, extend_lengths = extend_indptr[:-1].long(), (extend_indptr[1:] - extend_indptr[:-1]).long()
    for a in range(0, q.shape[0], BLOCK_TOKENS):
        part = slice(a, a + BLOCK_TOKENS)
        rows, mask = padded_rows(prefix_indices, prefix_starts[part], prefix_lengths[part])
        own, own_mask = padded_rows(extend_indices, extend_starts[part], extend_lengths[part])
        stored = pool[rows].to(kv.dtype)
        if not bool(mask.any(1).all()):  # masked places of a token without pool rows are row 0, which nobody owns
            stored = torch.where(mask.unsqueeze(-1), stored, 0)
        gathered = torch.cat((stored, kv[own]), dim=1)
        attend(q[part], gathered, torch.cat((mask, own_mask), dim=1), sink, scale, out[part])


def sparse_prefill_fp8_reference(
    q: torch.Tensor,
    pool: torch.Tensor,
    rope_pool: torch.Tensor,
    prefix_indices: torch.Tensor,
    prefix_indptr: torch.Tensor,
    kv: torch.Tensor,
    extend_indices: torch.Tensor,
    extend_indptr: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> None:
    """As :func:`sparse_prefill_reference` on :class:`dsv4_kernels.rows.Fp8Rows` of ``pool`` and ``rope_pool``."""
    rows = Fp8Rows(pool, rope_pool.to(torch.bfloat16), q.shape[2] - rope_pool.shape[1])
    lists = (prefix_indices, prefix_indptr, kv, extend_indices, extend_indptr)
    sparse_prefill_reference(q, rows, *lists, sink, scale, out)
