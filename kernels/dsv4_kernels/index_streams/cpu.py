"""A layer's CSA stream on the CPU."""

from __future__ import annotations

import torch

from dsv4_kernels.index_streams import _native


def csa_stream_cpu(
    indices: torch.Tensor,
    indptr: torch.Tensor,
    topk: torch.Tensor,
    page_table: torch.Tensor,
    request: torch.Tensor,
    *,
    entries_per_page: int,
    first_row: int,
    out: torch.Tensor,
) -> None:
    """See :func:`dsv4_kernels.index_streams.csa_stream_reference`."""
    _native.csa_stream(
        indices.numpy(),
        indptr.numpy(),
        topk.numpy(),
        page_table.numpy(),
        request.numpy(),
        entries_per_page,
        first_row,
        out.numpy(),
    )
