"""Wrapper of the compression kernels; arguments as in ``reference.py``."""

from __future__ import annotations

from typing import Any

import torch
import triton

from dsv4_kernels.checks import require, require_dtype, require_shape, require_unit_stride
from dsv4_kernels.compress._kernel import _compress_finish_kernel, _compress_kernel
from dsv4_kernels.compress._launch import COMPRESS, FINISH
from dsv4_kernels.compress._whole import _compress_channels_kernel
from dsv4_kernels.launch import launch, overlaps
from dsv4_kernels.paged_rows import IndexFp4Pages, IndexFp8Pages
from dsv4_kernels.ring_store.triton_op import ring_store_pools
from dsv4_kernels.rows import Rows
from dsv4_kernels.target import target_of
from dsv4_kernels.targets_of_rows import two_pools
from dsv4_kernels.workspace import workspace

KEYS = {"fp8": 1, "fp4": 2}
"""Format of quantised index keys to the kernels' number."""
MOST_PROGRAMS = 65_535
"""Of a grid's second dim."""


def compress(
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
    """See :func:`dsv4_kernels.compress.compress_reference`; rows and state destinations of -1 are skipped.

    Two launches: the state may only be overwritten when all windows have been read.
    """
    lists = {
        "gather_state": gather_state, "gather_flat": gather_flat, "from_flat": from_flat, "positions": positions,
        "rows": rows, "state_src": state_src, "state_dst": state_dst,
    }  # fmt: skip
    if isinstance(pool, IndexFp8Pages | IndexFp4Pages):
        kind = "fp8" if isinstance(pool, IndexFp8Pages) else "fp4"
        compress_index_pages(
            ks, state, ape, norm_weight, frequencies, eps, pages=pool.pages, kind=kind, entries_per_page=pool.per_page,
            **lists,
        )  # fmt: skip
        return
    plain, rope_pool = two_pools(pool)
    compress_pools(ks, state, ape, norm_weight, frequencies, eps, pool=plain, rope_pool=rope_pool, **lists)


def compress_pools(
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
    pool: torch.Tensor,
    rope_pool: torch.Tensor | None,
    rows: torch.Tensor,
    state_src: torch.Tensor,
    state_dst: torch.Tensor,
) -> None:
    """As :func:`compress`, with the tensors of the pool: one, or the pair of the fp8 layout."""
    into = {
        "pool_ptr": pool, "rope_ptr": pool if rope_pool is None else rope_pool, "pool_stride": pool.stride(0),
        "rope_stride": 0 if rope_pool is None else rope_pool.stride(0),
    }  # fmt: skip
    constants = {"ROPE": 0 if rope_pool is None else rope_pool.shape[1], "KEYS": 0, "PER_PAGE": 1}
    _compress(
        ks, state, ape, norm_weight, frequencies, eps, gather_state, gather_flat, from_flat, positions, rows, state_src,
        state_dst, into, constants,
    )  # fmt: skip


def compress_index_pages(
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
    pages: torch.Tensor,
    kind: str,
    entries_per_page: int,
    rows: torch.Tensor,
    state_src: torch.Tensor,
    state_dst: torch.Tensor,
) -> None:
    """See :func:`dsv4_kernels.compress.compress_index_pages_reference`."""
    d = norm_weight.shape[0]
    require(kind in KEYS, f"kind is {kind!r}, expected fp8 or fp4")
    require(d & (d - 1) == 0 and 32 <= d <= 256, f"keys have {d} values; expected a power of two from 32 to 256")
    require_dtype("pages", pages, torch.uint8)
    require_unit_stride("pages", pages)
    require(pages.stride(0) % 4 == 0, f"pages of {pages.stride(0)} bytes do not align their float32 scales")
    into = {"pool_ptr": pages, "rope_ptr": pages, "pool_stride": pages.stride(0), "rope_stride": 0}
    _compress(
        ks, state, ape, norm_weight, frequencies, eps, gather_state, gather_flat, from_flat, positions, rows, state_src,
        state_dst, into, {"ROPE": 0, "KEYS": KEYS[kind], "PER_PAGE": entries_per_page},
    )  # fmt: skip


def _compress(
    ks: torch.Tensor,
    state: torch.Tensor,
    ape: torch.Tensor,
    norm_weight: torch.Tensor,
    frequencies: torch.Tensor,
    eps: float,
    gather_state: torch.Tensor,
    gather_flat: torch.Tensor,
    from_flat: torch.Tensor,
    positions: torch.Tensor,
    rows: torch.Tensor,
    state_src: torch.Tensor,
    state_dst: torch.Tensor,
    into: dict[str, Any],
    store: dict[str, int],
) -> None:
    """The entries, then the state; the second launch also ends what long windows' channels have pooled."""
    entries, window = gather_flat.shape
    ratio, width = ape.shape
    d = norm_weight.shape[0]
    _check(ks, state, ape, frequencies, gather_state, gather_flat, from_flat, positions, rows)
    require(width in (d, 2 * d), f"ape is {list(ape.shape)}, expected [ratio, {d}] or [ratio, {2 * d}]")
    chosen = COMPRESS.choose(target_of(ks.device), window=window, d=d, rows=entries)
    split = chosen["CHANNELS"] > 0 and entries > 0
    pooled = workspace("compress.pooled", (max(entries * d if split else 0, 1),), torch.float32, ks.device)
    window_of = {
        "ks_ptr": ks, "state_ptr": state, "ape_ptr": ape, "gather_state_ptr": gather_state,
        "gather_flat_ptr": gather_flat, "from_flat_ptr": from_flat.view(torch.uint8), "rows_ptr": rows,
        "pooled_ptr": pooled, "ks_stride": ks.stride(0), "state_stride": state.stride(0),
        "ape_stride": ape.stride(0), "gather_stride": gather_flat.stride(0),
    }  # fmt: skip
    ends = {
        "weight_ptr": norm_weight, "frequencies_ptr": frequencies, "positions_ptr": positions, "rows_ptr": rows,
        "pooled_ptr": pooled, "eps": eps, **into,
    }  # fmt: skip
    constants = {
        "D": d, "BLOCK_D": triton.next_power_of_2(d), "HALF": frequencies.shape[0], "ROOT": float(d**-0.5),
        "STAGES": d.bit_length() - 1, "PDL": overlaps(ks), **store,
    }  # fmt: skip
    shape = {**constants, "C": width, "RATIO": ratio, "WINDOW": window}
    parts = triton.cdiv(d, chosen["CHANNELS"]) if split else 1
    if split and chosen["BLOCK_W"] == window == ratio:
        whole = {"D": d, "WINDOW": window, "PDL": overlaps(ks)}
        grid = (parts, min(entries, chosen["ENTRIES"] or MOST_PROGRAMS))
        launch(_compress_channels_kernel, grid, {**window_of, "n_entries": entries}, whole, chosen)
    else:
        launch(_compress_kernel, (entries, parts), {**window_of, **ends}, shape, chosen)
    if not split:
        ring_store_pools(ks, state_src, state, None, state_dst)
        return
    require_shape("state_dst", state_dst, *state_src.shape)
    carried = {
        "ks_ptr": ks, "state_ptr": state, "src_ptr": state_src, "dst_ptr": state_dst, "n_entries": entries,
        "ks_stride": ks.stride(0), "state_stride": state.stride(0),
    }  # fmt: skip
    launch(
        _compress_finish_kernel,
        (entries + state_src.shape[0],),
        {**ends, **carried},
        {**constants, "WIDTH": 2 * width, "BLOCK_WIDTH": triton.next_power_of_2(2 * width)},
        FINISH.choose(target_of(ks.device)),
    )


def _check(
    ks: torch.Tensor,
    state: torch.Tensor,
    ape: torch.Tensor,
    frequencies: torch.Tensor,
    gather_state: torch.Tensor,
    gather_flat: torch.Tensor,
    from_flat: torch.Tensor,
    positions: torch.Tensor,
    rows: torch.Tensor,
) -> None:
    entries, window = gather_flat.shape
    require(window & (window - 1) == 0 and window >= 8, f"windows of {window} rows; expected a power of two from 8")
    require_shape("ks", ks, -1, 2 * ape.shape[1])
    require_shape("state", state, -1, 2 * ape.shape[1])
    for name, tensor in (("ks", ks), ("state", state), ("ape", ape)):
        require_dtype(name, tensor, torch.float32)
        require_unit_stride(name, tensor)
    require_dtype("frequencies", frequencies, torch.float64)
    for name, tensor in (("gather_state", gather_state), ("gather_flat", gather_flat), ("from_flat", from_flat)):
        require_shape(name, tensor, entries, window)
        require(tensor.is_contiguous(), f"{name} is not contiguous")
    require_dtype("from_flat", from_flat, torch.bool)
    for name, tensor in (("positions", positions), ("rows", rows)):
        require_shape(name, tensor, entries)
        require_dtype(name, tensor, torch.int64)
