"""Cases and cost of the compression."""

from __future__ import annotations

import torch

from dsv4_kernels.compress._launch import COMPRESS, FINISH
from dsv4_kernels.compress.reference import compress_pools_reference
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
            Case("no-entry", lambda i: _compress(i, 4, 0)),
            Case("far", lambda i: _compress(i, 4, 9, pool_rows=4_300_000), small=False),
            Case("ratio-4-one", lambda i: _compress(i, 4, 1, tokens=1, kept=1), small=False, bench=True),
            Case("ratio-128-one", lambda i: _compress(i, 128, 1, tokens=1, kept=1), small=False, bench=True),
            Case("ratio-4-t8192", lambda i: _compress(i, 4, 2048, tokens=8192), small=False, bench=True),
            Case("ratio-128-t8192", lambda i: _compress(i, 128, 64, tokens=8192), small=False, bench=True),
        ),
        _cost,
        (COMPRESS, FINISH, RING_STORE),
        updates=("pool", "state"),
    ),
)
