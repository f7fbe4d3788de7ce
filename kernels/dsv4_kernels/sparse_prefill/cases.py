"""Cases and cost of the sparse prefill kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dsv4_kernels.registry import Arguments, Case, Cost, KernelSpec
from dsv4_kernels.sparse_decode.cases import lists, two_pools
from dsv4_kernels.sparse_prefill._launch import PREFILL, PREFILL_FP8
from dsv4_kernels.sparse_prefill.reference import sparse_prefill_fp8_reference, sparse_prefill_reference
from dsv4_kernels.testing.inputs import Inputs


def windows(inputs: Inputs, requests: Sequence[int], window: int) -> dict[str, torch.Tensor]:
    """Extend lists of requests of these lengths: each token's last ``window`` rows of its own request."""
    first = [r for r, n in enumerate(requests) for _ in range(n)]
    begin = [sum(requests[:r]) for r in first]
    lengths = [min(t - b + 1, window) for t, b in enumerate(begin)]
    ends = [0]
    for n in lengths:
        ends.append(ends[-1] + n)
    if inputs.meta:
        return {
            "extend_indices": inputs.empty(ends[-1], dtype=torch.int32),
            "extend_indptr": inputs.tensor(ends, torch.int32),
        }
    counts = torch.tensor(lengths, dtype=torch.int64)
    start = torch.arange(len(lengths)) + 1 - counts
    offset = torch.arange(ends[-1]) - torch.repeat_interleave(torch.tensor(ends[:-1], dtype=torch.int64), counts)
    rows = torch.repeat_interleave(start, counts) + offset
    return {
        "extend_indices": rows.to(torch.int32).to(inputs.device),
        "extend_indptr": inputs.tensor(ends, torch.int32),
    }


def prefill_arguments(
    inputs: Inputs, heads: int, requests: Sequence[int], prefix: Sequence[int] | int, *, window: int = 128,
    rows: int = 700, d: int = 512, holes: float = 0.0, dtype: torch.dtype = torch.bfloat16,
) -> Arguments:  # fmt: skip
    """Arguments of one call: requests of these lengths, ``prefix`` pool rows per token, a window of own rows."""
    tokens = sum(requests)
    lengths = [prefix] * tokens if isinstance(prefix, int) else prefix
    read = lists(inputs, rows, lengths, holes)
    return {
        "q": inputs.normal(tokens, heads, d, dtype=dtype),
        "pool": inputs.normal(rows, d, dtype=dtype),
        "prefix_indices": read["indices"], "prefix_indptr": read["indptr"],
        "kv": inputs.normal(tokens, d, dtype=dtype),
        **windows(inputs, requests, window),
        "sink": inputs.normal(heads, dtype=torch.float32),
        "scale": d**-0.5,
        "out": inputs.empty(tokens, heads, d, dtype=dtype),
    }  # fmt: skip


def _fp8(inputs: Inputs, heads: int, requests: Sequence[int], prefix: Sequence[int] | int, d: int = 512) -> Arguments:
    return {**prefill_arguments(inputs, heads, requests, prefix, d=d), **two_pools(inputs, 700, d)}


def _cost(arguments: Arguments) -> Cost:
    q, pool = arguments["q"], arguments["pool"]
    d = q.shape[2]
    row = pool.shape[1] * pool.element_size() + (128 if "rope_pool" in arguments else 0)
    listed, own = arguments["prefix_indices"].numel(), arguments["extend_indices"].numel()
    kv = arguments["kv"]
    once = min(listed, pool.shape[0]) * row + kv.numel() * kv.element_size()  # rows that many tokens share count once
    moved = once + 4 * (listed + own) + 2 * q.numel() * q.element_size()
    return Cost(moved, 4 * (listed + own) * q.shape[1] * d)


SPECS = (
    KernelSpec(
        "sparse_prefill",
        sparse_prefill_reference,
        "dsv4_kernels.sparse_prefill.triton_op:sparse_prefill",
        (
            Case("window-16", lambda i: prefill_arguments(i, 16, (5, 1, 7), 0, window=4)),
            Case("prefix-16", lambda i: prefill_arguments(i, 16, (6, 1), (0, 1, 70, 3, 64, 65, 130))),
            Case("long-prefix-16", lambda i: prefill_arguments(i, 16, (2, 1), 100, holes=0.2)),
            Case("prefix-32", lambda i: prefill_arguments(i, 32, (3, 2), 20)),
            Case("prefix-64", lambda i: prefill_arguments(i, 64, (3,), 70), compiled=True),
            Case("heads-8", lambda i: prefill_arguments(i, 8, (3, 2), 5)),
            Case("small-dim", lambda i: prefill_arguments(i, 4, (9, 2), 5, d=64, window=3)),
            Case("float32", lambda i: prefill_arguments(i, 4, (9, 2), 5, d=64, window=3, dtype=torch.float32)),
            Case("no-token", lambda i: prefill_arguments(i, 16, (), 0)),
            Case("chunk-128", lambda i: prefill_arguments(i, 128, (200, 1, 60), 300, holes=0.05), small=False),
            Case("chunk-64", lambda i: prefill_arguments(i, 64, (300, 33), 77), small=False),
            Case("chunk-16", lambda i: prefill_arguments(i, 16, (300, 33), 20), small=False),
            Case("far-64", lambda i: prefill_arguments(i, 64, (9,), 200, rows=4_300_000), small=False),
            Case("h64-t4096", lambda i: prefill_arguments(i, 64, (4096,), 512, rows=70_000), small=False, bench=True),
            Case("h64-t4096-window", lambda i: prefill_arguments(i, 64, (4096,), 0), small=False, bench=True),
            Case("h16-t4096", lambda i: prefill_arguments(i, 16, (4096,), 512, rows=70_000), small=False, bench=True),
            Case("h16-t4096-window", lambda i: prefill_arguments(i, 16, (4096,), 0), small=False, bench=True),
        ),
        _cost,
        (PREFILL,),
        outputs=("out",),
        variants={"portable": ("dsv4_kernels.sparse_prefill.triton_op:sparse_prefill_portable", "sm_90")},
    ),
    KernelSpec(
        "sparse_prefill_fp8",
        sparse_prefill_fp8_reference,
        "dsv4_kernels.sparse_prefill.triton_op:sparse_prefill_fp8",
        (
            Case("window-16", lambda i: _fp8(i, 16, (5, 1, 7), 0)),
            Case("prefix-16", lambda i: _fp8(i, 16, (6, 1), (0, 1, 70, 3, 64, 65, 130))),
            Case("prefix-64", lambda i: _fp8(i, 64, (3,), 70), compiled=True),
            Case("chunk-32", lambda i: _fp8(i, 32, (100, 33), 77), small=False),
        ),
        _cost,
        (PREFILL_FP8,),
        outputs=("out",),
    ),
)
