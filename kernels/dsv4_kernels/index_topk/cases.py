"""Cases and cost of the top-k."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dsv4_kernels.index_topk._launch import INDEX_TOPK, MERGE, TAIL
from dsv4_kernels.index_topk.reference import index_topk_reference
from dsv4_kernels.registry import Arguments, Case, Cost, KernelSpec, Tolerance
from dsv4_kernels.testing.inputs import Inputs


def _topk(inputs: Inputs, visible: Sequence[int], entries: int, k: int, levels: int = 0, odd: float = 0.0) -> Arguments:
    """Gaussian scores, or integers of so many ``levels`` (ties); a share ``odd`` is NaN or infinite."""
    rows = len(visible)
    scores = inputs.normal(rows, entries, dtype=torch.float32)
    if levels:
        scores = inputs.integers(-levels, levels, rows, entries).float()
    if odd and not inputs.meta:
        which = inputs.uniform(rows, entries)
        for at, value in enumerate((float("nan"), float("inf"), float("-inf"), -0.0)):
            scores[(which > at * odd / 4) & (which < (at + 1) * odd / 4)] = value
    return {
        "scores": scores, "visible": inputs.tensor(list(visible), torch.int64), "k": k,
        "out": inputs.empty(rows, k, dtype=torch.int32),
    }  # fmt: skip


def _wild(arguments: Arguments) -> Arguments:
    """Scores over many orders of magnitude, half of them 0."""
    if not arguments["scores"].is_meta:
        scores = arguments["scores"]
        scores.copy_(torch.where(scores > 0, torch.exp(20 * scores), 0.0))
    return arguments


def _cost(arguments: Arguments) -> Cost:
    visible, out = arguments["visible"], arguments["out"]
    read = arguments["scores"].numel() if visible.device.type == "meta" else int(visible.sum())
    return Cost(4 * read + 4 * out.numel(), 0)


SPECS = (
    KernelSpec(
        "index_topk",
        index_topk_reference,
        "dsv4_kernels.index_topk.triton_op:index_topk",
        (
            Case("small", lambda i: _topk(i, (70, 5, 0, 64, 33), 70, 32), compiled=True),
            Case("ties", lambda i: _topk(i, (300, 299, 40), 300, 64, levels=2)),
            Case("all-equal", lambda i: _topk(i, (300, 65), 300, 64, levels=1)),
            Case("odd-values", lambda i: _topk(i, (300, 299, 40), 300, 64, odd=0.6)),
            Case("wild", lambda i: _wild(_topk(i, (300, 299, 65), 300, 64))),
            Case("none", lambda i: _topk(i, (), 300, 64)),
            Case("two-launches", lambda i: _topk(i, (9000, 5000, 64, 0, 4097), 9000, 64, levels=3)),
            Case("top-512", lambda i: _topk(i, (4096, 700, 512, 513), 4096, 512), small=False, compiled=True),
            Case("ties-2k", lambda i: _topk(i, (2064, 2050, 513, 0), 2064, 512, levels=9), small=False),
            Case("same-2k", lambda i: _topk(i, (2064, 2050, 1025), 2064, 1024, levels=1), small=False),
            Case("odd-8k", lambda i: _topk(i, (8191, 2050, 1025), 8191, 1024, odd=0.8), small=False),
            Case("wild-2k", lambda i: _wild(_topk(i, (2064, 2050, 513), 2064, 512)), small=False),
            Case("wild-8k", lambda i: _wild(_topk(i, (8192, 5000, 1025), 8192, 1024, odd=0.01)), small=False),
            Case("few-2k", lambda i: _topk(i, (1040, 1025, 2048), 2048, 1024), small=False),
            Case("top-14k", lambda i: _topk(i, (14_000, 9000, 40), 14_000, 512, odd=0.01), small=False, compiled=True),
            Case("top-1024", lambda i: _topk(i, (30_000, 1025, 20), 30_000, 1024, odd=0.01), small=False),
            Case("ties-64k", lambda i: _topk(i, (65_536, 60_000), 65_536, 512, levels=40), small=False, compiled=True),
            Case("t1-4k", lambda i: _topk(i, (4096,), 4096, 512), small=False, bench=True),
            Case("t1-64k", lambda i: _topk(i, (65_536,), 65_536, 512), small=False, bench=True),
            Case("t64-16k", lambda i: _topk(i, (16_384,) * 64, 16_384, 512), small=False, bench=True),
            Case("t4096-4k", lambda i: _topk(i, (4096,) * 4096, 4096, 512), small=False, bench=True),
        ),
        _cost,
        (INDEX_TOPK, MERGE, TAIL),
        outputs=("out",),
        tolerance=Tolerance(exact=frozenset({"out"})),
        variants={"portable": ("dsv4_kernels.index_topk.triton_op:index_topk_portable", "sm_90")},
    ),
)
