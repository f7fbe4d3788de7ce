"""Wrapper of the Hopper sibling of ``sparse_prefill``."""

from __future__ import annotations

import torch

from dsv4_kernels.checks import require_dtype, require_shape, require_unit_stride
from dsv4_kernels.sparse_decode.hopper_op import DIM, launch_hopper
from dsv4_kernels.sparse_decode.triton_op import check_lists, partial_results


def sparse_prefill_hopper(
    q: torch.Tensor,
    pool: torch.Tensor,
    prefix_indices: torch.Tensor,
    prefix_indptr: torch.Tensor,
    kv: torch.Tensor,
    extend_indices: torch.Tensor,
    extend_indptr: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> None:
    """See :func:`dsv4_kernels.sparse_prefill.sparse_prefill_reference`; 512 dims, bf16 or fp16, sm_90."""
    check_lists(q, prefix_indices, prefix_indptr, sink, out)
    check_lists(q, extend_indices, extend_indptr, sink, out)
    for name, tensor in (("pool", pool), ("kv", kv)):
        require_shape(name, tensor, -1, DIM)
        require_dtype(name, tensor, q.dtype)
        require_unit_stride(name, tensor)
    if q.shape[0] == 0:
        return
    lists = (prefix_indices, prefix_indptr, kv, extend_indices, extend_indptr)
    launch_hopper(q, pool, *lists, sink, scale, out, *partial_results(q, 1), splits=1)
