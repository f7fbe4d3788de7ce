"""Sparse attention of few tokens over float32 rows on the CPU."""

from __future__ import annotations

import numpy as np
import torch

from dsv4_kernels.native import is_native
from dsv4_kernels.rows import Rows
from dsv4_kernels.sparse_decode import _native
from dsv4_kernels.sparse_decode.reference import sparse_decode_reference

FEW_TOKENS = 32
FEW_PRODUCTS = 1 << 20  # values of q times rows of a list: below it the loop beats a gather with two products


def sparse_decode_cpu(
    q: torch.Tensor,
    pool: Rows,
    indices: torch.Tensor,
    indptr: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> None:
    """See :func:`sparse_decode_reference`; here every listed row must be valid, as builders guarantee."""
    if not (isinstance(pool, torch.Tensor) and is_native(q, pool, out)) or q.shape[0] > FEW_TOKENS:
        sparse_decode_reference(q, pool, indices, indptr, sink, scale, out)
        return
    bounds = indptr.numpy()
    if (int(bounds[-1]) - int(bounds[0])) * (q.shape[1] * q.shape[2]) <= FEW_PRODUCTS:
        _native.attend(q.numpy(), pool.numpy(), indices.numpy(), bounds, sink.numpy(), np.float32(scale), out.numpy())
        return
    lengths = np.diff(bounds)
    if lengths.all():
        _gathered(q, pool, indices, bounds, lengths, sink, scale, out)
    else:
        sparse_decode_reference(q, pool, indices, indptr, sink, scale, out)


def _gathered(
    q: torch.Tensor,
    pool: torch.Tensor,
    indices: torch.Tensor,
    bounds: np.ndarray[tuple[int, ...], np.dtype[np.int32]],
    lengths: np.ndarray[tuple[int, ...], np.dtype[np.int32]],
    sink: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> None:
    width = int(lengths.max())
    places = bounds[:-1, None] + np.minimum(np.arange(width), lengths[:, None] - 1)
    rows = torch.from_numpy(indices.numpy()[places].astype(np.int64))
    keys = pool[rows]
    scores = torch.bmm(q, keys.transpose(1, 2)).mul_(scale)
    if lengths.min() != width:
        scores.masked_fill_(torch.from_numpy(np.arange(width) >= lengths[:, None]).unsqueeze(1), float("-inf"))
    bound = sink.view(1, -1, 1)
    top = torch.maximum(scores.amax(-1, keepdim=True), bound)
    p = scores.sub_(top).exp_()
    total = p.sum(-1, keepdim=True).add_(torch.exp(bound - top))
    torch.bmm(p, keys, out=out)
    out.div_(total)
