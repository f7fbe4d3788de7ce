"""Cases and cost of the compression."""

from __future__ import annotations

import torch

from dsv4_kernels.compress._launch import COMPRESS, FINISH
from dsv4_kernels.compress.reference import (
    compress_index_pages_reference,
    compress_pools_reference,
    compress_reference,
)
from dsv4_kernels.hadamard import hadamard
from dsv4_kernels.paged_rows import IndexFp4Pages, IndexFp8Pages
from dsv4_kernels.registry import Arguments, Case, Cost, KernelSpec
from dsv4_kernels.ring_store._launch import RING_STORE
from dsv4_kernels.rope import rope_frequencies
from dsv4_kernels.testing.inputs import Inputs


def _compress(
    inputs: Inputs, ratio: int, entries: int, *, tokens: int = 40, d: int = 512, rope: int = 64, kept: int = 5,
    pool_rows: int = 3000, dtype: torch.dtype = torch.bfloat16,
) -> Arguments:  # fmt: skip
    """Entries of random rows of this forward and of the state; the first one lacks its older half (sentinel)."""
    window, width = (8, 2 * d) if ratio == 4 else (128, d)
    state = inputs.normal(700, 2 * width, dtype=torch.float32)
    gather_state = inputs.integers(0, 699, entries, window)
    from_flat = inputs.uniform(entries, window) < 0.5
    if not inputs.meta:
        state[-1, :width], state[-1, width:] = 0.0, float("-inf")
        if entries:
            gather_state[0, : window // 2], from_flat[0, : window // 2] = 699, False
    return {
        "ks": inputs.normal(tokens, 2 * width, dtype=torch.float32),
        "state": state,
        "ape": inputs.normal(ratio, width, dtype=torch.float32),
        "norm_weight": inputs.normal(d, dtype=torch.float32),
        "frequencies": rope_frequencies(rope, 160_000.0, factor=16.0).to(inputs.device),
        "eps": 1e-6,
        "gather_state": gather_state,
        "gather_flat": inputs.integers(0, tokens, entries, window),
        "from_flat": from_flat,
        "positions": inputs.integers(0, 1_000_000, entries),
        "pool": inputs.normal(pool_rows, d, dtype=dtype),
        "rope_pool": None,
        "rows": inputs.distinct(pool_rows, entries),
        "state_src": inputs.distinct(tokens, min(kept, tokens)),
        "state_dst": inputs.distinct(690, min(kept, tokens)),
    }


def _padded(inputs: Inputs, ratio: int) -> Arguments:
    """An entry and a carried row that are padding, among others."""
    arguments = _compress(inputs, ratio, 3, d=64, rope=16)
    if not inputs.meta:
        arguments["rows"][1] = -1
        arguments["state_dst"][2] = -1
    return arguments


def _windows(inputs: Inputs, ratio: int, entries: int) -> Arguments:
    """What a long prefill has: whole windows of this forward one after the other, so that every row is read once."""
    arguments = _compress(inputs, ratio, entries, tokens=ratio * entries)
    if not inputs.meta:
        flat, from_flat = arguments["gather_flat"], arguments["from_flat"]
        flat.copy_(torch.arange(flat.numel(), device=flat.device).view_as(flat))
        from_flat.fill_(True)
    return arguments


def _keys(inputs: Inputs, entries: int, kind: str, *, d: int = 128, tokens: int = 40, n: int = 40) -> Arguments:
    """Index keys of ratio 4 into pages of 64; the state rows that are written are not those that are read."""
    arguments = _compress(inputs, 4, entries, tokens=tokens, d=d)
    del arguments["pool"], arguments["rope_pool"]
    arguments["gather_state"] = arguments["gather_state"].clamp(min=100)
    arguments["state_dst"] = inputs.distinct(100, arguments["state_src"].shape[0])
    key_bytes = d + 4 if kind == "fp8" else d // 2 + d // 32
    pages = inputs.integers(0, 120, n, 64 * key_bytes).to(torch.uint8)
    return {**arguments, "pages": pages, "kind": kind, "entries_per_page": 64, "rows": inputs.distinct(64 * n, entries)}


def _verify_keys(arguments: Arguments) -> None:
    """Written keys are the reference's but for sums in another order, which move a code or a scale by one step."""
    d, rows, kind = arguments["norm_weight"].shape[0], arguments["rows"], arguments["kind"]
    plain = {name: value for name, value in arguments.items() if name not in ("pages", "kind", "entries_per_page")}
    wide = torch.zeros(int(rows.max()) + 1 if rows.numel() else 1, d, device=rows.device)
    with torch.device(rows.device):
        compress_reference(**{**plain, "pool": wide, "state": arguments["state"].clone()})
    store = (IndexFp8Pages if kind == "fp8" else IndexFp4Pages)(arguments["pages"], arguments["entries_per_page"], d)
    truth = hadamard(wide[rows].bfloat16())
    largest = truth.abs().amax(-1, keepdim=True) if kind == "fp8" else _amax_of_groups(truth)
    step = largest / (16 if kind == "fp8" else 3)  # half a step of the widest code, and a scale that is one off
    off = (store[rows].to(truth.device) - truth).abs()
    assert bool((off <= step).all()), f"keys are off by up to {float((off / step).max()):.2f} steps"
    assert float((off / step).mean() if off.numel() else 0.0) < 0.35, "keys are off by more than rounding on average"


def _amax_of_groups(x: torch.Tensor) -> torch.Tensor:
    groups = x.reshape(*x.shape[:-1], x.shape[-1] // 32, 32)
    return groups.abs().amax(-1).repeat_interleave(32, dim=-1)


def _cost_keys(arguments: Arguments) -> Cost:
    entries, window = arguments["gather_flat"].shape
    d, moved_rows = arguments["norm_weight"].shape[0], arguments["state_src"].shape[0]
    moved = entries * (window * (2 * d * 4 + 17) + d + 20) + moved_rows * (2 * 4 * arguments["ks"].shape[1] + 16)
    return Cost(moved, entries * d * (window * 6 + 2 * d))


def _cost(arguments: Arguments) -> Cost:
    entries, window = arguments["gather_flat"].shape
    d, moved_rows = arguments["norm_weight"].shape[0], arguments["state_src"].shape[0]
    width = arguments["ks"].shape[1]
    moved = entries * (window * (2 * d * 4 + 17) + d * 2 + 16) + moved_rows * (2 * 4 * width + 16)
    return Cost(moved, entries * window * d * 6)


SPECS = (
    KernelSpec(
        "compress",
        compress_pools_reference,
        "dsv4_kernels.compress.triton_op:compress_pools",
        (
            Case("ratio-4", lambda i: _compress(i, 4, 5), compiled=True),
            Case("ratio-4-index", lambda i: _compress(i, 4, 5, d=128)),
            Case("ratio-128", lambda i: _compress(i, 128, 2), compiled=True),
            Case("tiny", lambda i: _compress(i, 4, 3, d=64, rope=16)),
            Case("tiny-128", lambda i: _compress(i, 128, 3, d=64, rope=16, dtype=torch.float32)),
            Case("padded", lambda i: _padded(i, 4)),
            Case("padded-128", lambda i: _padded(i, 128)),
            Case("many-128", lambda i: _compress(i, 128, 70, d=64, rope=16)),
            Case("no-entry", lambda i: _compress(i, 4, 0)),
            Case("far", lambda i: _compress(i, 4, 9, pool_rows=4_300_000), small=False),
            Case("ratio-4-one", lambda i: _compress(i, 4, 1, tokens=1, kept=1), small=False, bench=True),
            Case("ratio-128-one", lambda i: _compress(i, 128, 1, tokens=1, kept=1), small=False, bench=True),
            Case("ratio-4-t8192", lambda i: _compress(i, 4, 2048, tokens=8192), small=False, bench=True),
            Case("ratio-128-t8192", lambda i: _compress(i, 128, 64, tokens=8192), small=False, bench=True),
            Case("ratio-128-windows", lambda i: _windows(i, 128, 256), small=False, bench=True),
        ),
        _cost,
        (COMPRESS, FINISH, RING_STORE),
        updates=("pool", "state"),
    ),
    KernelSpec(
        "compress_index_pages",
        compress_index_pages_reference,
        "dsv4_kernels.compress.triton_op:compress_index_pages",
        (
            Case("fp8", lambda i: _keys(i, 5, "fp8"), compiled=True),
            Case("fp4", lambda i: _keys(i, 5, "fp4"), compiled=True),
            Case("tiny-fp8", lambda i: _keys(i, 3, "fp8", d=64)),
            Case("tiny-fp4", lambda i: _keys(i, 3, "fp4", d=64)),
            Case("no-key", lambda i: _keys(i, 0, "fp8")),
            Case("one-fp8", lambda i: _keys(i, 1, "fp8", tokens=5), small=False, bench=True),
            Case("fp8-t8192", lambda i: _keys(i, 2048, "fp8", tokens=8192), small=False, bench=True),
        ),
        _cost_keys,
        (COMPRESS, FINISH, RING_STORE),
        updates=("pages", "state"),
        verify=_verify_keys,
    ),
)
