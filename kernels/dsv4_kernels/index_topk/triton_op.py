"""Wrapper of the top-k kernels; arguments as in ``reference.py``."""

from __future__ import annotations

import torch
import triton

from dsv4_kernels.checks import require, require_dtype, require_shape, require_unit_stride
from dsv4_kernels.index_topk._kernel import _index_topk_kernel, _index_topk_merge_kernel
from dsv4_kernels.index_topk._launch import INDEX_TOPK, MERGE
from dsv4_kernels.launch import launch, overlaps
from dsv4_kernels.target import target_of
from dsv4_kernels.workspace import workspace

MOST_CANDIDATES = 65536


def index_topk(scores: torch.Tensor, visible: torch.Tensor, k: int, out: torch.Tensor) -> None:
    """See :func:`dsv4_kernels.index_topk.index_topk_reference`."""
    rows, entries = scores.shape
    require_dtype("scores", scores, torch.float32)
    require_shape("visible", visible, rows)
    require_shape("out", out, rows, k)
    require_dtype("out", out, torch.int32)
    for name, tensor in (("scores", scores), ("visible", visible), ("out", out)):
        require_unit_stride(name, tensor)
    target = target_of(scores.device)
    chosen = INDEX_TOPK.choose(target, entries=entries)
    chunks = max(1, triton.cdiv(entries, chosen["BLOCK"]))
    require(chunks * k <= MOST_CANDIDATES or chunks == 1, f"rows of {entries} scores are longer than the kernel takes")
    parts = rows * chunks * k if chunks > 1 else 1
    values = workspace("index_topk.values", (parts,), torch.float32, scores.device)
    candidates = workspace("index_topk.entries", (parts,), torch.int32, scores.device)
    common = {"K": k, "BLOCK_KK": triton.next_power_of_2(k), "PDL": overlaps(scores)}
    launch(
        _index_topk_kernel,
        (rows, chunks),
        {
            "scores_ptr": scores, "visible_ptr": visible, "out_ptr": out, "values_ptr": values,
            "entries_ptr": candidates, "n_entries": entries, "scores_stride": scores.stride(0),
            "out_stride": out.stride(0),
        },
        {**common, "CHUNKS": chunks},
        chosen,
    )  # fmt: skip
    if chunks == 1:
        return
    launch(
        _index_topk_merge_kernel,
        (rows,),
        {"values_ptr": values, "entries_ptr": candidates, "out_ptr": out, "out_stride": out.stride(0)},
        {**common, "N": chunks * k, "BLOCK": triton.next_power_of_2(chunks * k)},
        MERGE.choose(target, candidates=chunks * k),
    )
