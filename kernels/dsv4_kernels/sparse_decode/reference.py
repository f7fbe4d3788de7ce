"""Paged sparse attention over one list of pool rows per token, in plain torch (dsv4-spec 5.1, 3.4)."""

from __future__ import annotations

import torch

from dsv4_kernels.attend import BLOCK_TOKENS, attend, padded_rows
from dsv4_kernels.rows import Fp8Rows, Rows


def sparse_decode_reference(
    q: torch.Tensor,
    pool: Rows,
    indices: torch.Tensor,
    indptr: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> None:
    """``out[t] = attention(q[t], pool[indices[indptr[t]:indptr[t + 1]]])`` with K = V.

    ``q``, ``out``: ``[T, H, d]``; ``pool``: ``[rows, d]``; ``indices``, ``indptr``: int32; ``sink``: float32 ``[H]``,
    a logit per head that adds to the denominator only. -1 entries are skipped; an empty list gives zeros.
    """
    starts, lengths = indptr[:-1].long(), (indptr[1:] - indptr[:-1]).long()
    for a in range(0, q.shape[0], BLOCK_TOKENS):
        part = slice(a, a + BLOCK_TOKENS)
        rows, mask = padded_rows(indices, starts[part], lengths[part])
        attend(q[part], pool[rows], mask, sink, scale, out[part])


def sparse_decode_fp8_reference(
    q: torch.Tensor,
    pool: torch.Tensor,
    rope_pool: torch.Tensor,
    indices: torch.Tensor,
    indptr: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> None:
    """As :func:`sparse_decode_reference` on :class:`dsv4_kernels.rows.Fp8Rows` of ``pool`` and ``rope_pool``."""
    rows = Fp8Rows(pool, rope_pool.to(torch.bfloat16), q.shape[2] - rope_pool.shape[1])
    sparse_decode_reference(q, rows, indices, indptr, sink, scale, out)
