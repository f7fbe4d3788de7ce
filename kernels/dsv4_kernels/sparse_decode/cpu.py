"""Sparse attention of few tokens over float32 rows."""

from __future__ import annotations

import numpy as np
import torch

from dsv4_kernels.rows import Rows
from dsv4_kernels.sparse_decode.reference import sparse_decode_reference

FEW_TOKENS = 32


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
    bounds = indptr.numpy()
    lengths = np.diff(bounds)
    if q.shape[0] > FEW_TOKENS or pool.dtype is not torch.float32 or q.dtype is not torch.float32 or not lengths.all():
        sparse_decode_reference(q, pool, indices, indptr, sink, scale, out)
        return
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
