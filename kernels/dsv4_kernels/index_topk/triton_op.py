"""Wrapper of the top-k kernels; arguments as in ``reference.py``."""

from __future__ import annotations

from typing import Any

import torch
import triton

from dsv4_kernels.checks import require, require_dtype, require_shape, require_unit_stride
from dsv4_kernels.index_topk._kernel import _index_topk_kernel, _index_topk_merge_kernel
from dsv4_kernels.index_topk._launch import INDEX_TOPK, MERGE, TAIL
from dsv4_kernels.launch import Config, launch, overlaps
from dsv4_kernels.target import target_of
from dsv4_kernels.workspace import workspace


def index_topk(scores: torch.Tensor, visible: torch.Tensor, k: int, out: torch.Tensor) -> None:
    """See :func:`dsv4_kernels.index_topk.index_topk_reference`."""
    rows, entries = scores.shape
    if overlaps(scores):
        chosen = TAIL.choose(target_of(scores.device), entries=entries, tokens=rows)
        if 0 < entries <= chosen["BLOCK"]:
            _by_tail(scores, visible, k, out, chosen)
            return
    index_topk_portable(scores, visible, k, out)


def _by_tail(scores: torch.Tensor, visible: torch.Tensor, k: int, out: torch.Tensor, chosen: Config) -> None:
    """NVIDIA's sibling, for rows that fit."""
    from dsv4_kernels.index_topk._tail import _index_topk_tail_kernel

    launch_rows(_index_topk_tail_kernel, scores, visible, k, out, chosen)


def launch_rows(
    kernel: Any, scores: torch.Tensor, visible: torch.Tensor, k: int, out: torch.Tensor, chosen: Config
) -> None:
    """Launch ``kernel``, one program or cluster a row."""
    _check(scores, visible, k, out)
    launch(
        kernel,
        (scores.shape[0],),
        {
            "scores_ptr": scores, "visible_ptr": visible, "out_ptr": out, "n_entries": scores.shape[1],
            "scores_stride": scores.stride(0), "out_stride": out.stride(0),
        },
        {"K": k, "BLOCK_KK": triton.next_power_of_2(k), "PDL": True, "WARPS": chosen.num_warps},
        chosen,
    )  # fmt: skip


def _check(scores: torch.Tensor, visible: torch.Tensor, k: int, out: torch.Tensor) -> None:
    rows = scores.shape[0]
    require_dtype("scores", scores, torch.float32)
    require_shape("visible", visible, rows)
    require_shape("out", out, rows, k)
    require_dtype("out", out, torch.int32)
    for name, tensor in (("scores", scores), ("visible", visible), ("out", out)):
        require_unit_stride(name, tensor)


def index_topk_portable(scores: torch.Tensor, visible: torch.Tensor, k: int, out: torch.Tensor) -> None:
    """As :func:`index_topk` by the kernels that run everywhere, for rows of any length."""
    _check(scores, visible, k, out)
    rows, entries = scores.shape
    target = target_of(scores.device)
    chosen = INDEX_TOPK.choose(target, entries=entries)
    chunks = max(1, triton.cdiv(entries, chosen["BLOCK"]))
    parts = rows * chunks * k if chunks > 1 else 1
    values, candidates = _scratch("chunks", parts, scores.device)
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
    while chunks > 1:
        n = chunks * k
        merge = MERGE.choose(target, candidates=n)
        chunks = triton.cdiv(n, merge["BLOCK"])
        require(chunks * k < n, f"k = {k} is too much for merges of {merge['BLOCK']} candidates")
        into = _scratch(f"merge{chunks}", rows * chunks * k if chunks > 1 else 1, scores.device)
        target_entries, stride = (out, out.stride(0)) if chunks == 1 else (into[1], chunks * k)
        launch(
            _index_topk_merge_kernel,
            (rows, chunks),
            {
                "values_ptr": values, "entries_ptr": candidates, "out_ptr": target_entries, "out_values_ptr": into[0],
                "out_stride": stride,
            },
            {**common, "N": n, "LAST": chunks == 1},
            merge,
        )  # fmt: skip
        values, candidates = into


def _scratch(name: str, size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and entries of candidates, on this stream."""
    values = workspace(f"index_topk.{name}.values", (size,), torch.float32, device)
    return values, workspace(f"index_topk.{name}.entries", (size,), torch.int32, device)
