"""Cases and cost of the index stream kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dsv4_kernels.index_streams._launch import CSA_STREAM, STREAMS
from dsv4_kernels.index_streams.reference import csa_stream_reference, index_streams_reference
from dsv4_kernels.registry import Arguments, Case, Cost, KernelSpec, Tolerance
from dsv4_kernels.testing.inputs import Inputs

WINDOW, PAGES = 128, 4000


def _csa(inputs: Inputs, counts: Sequence[int], k: int, windows: Sequence[int] | None = None) -> Arguments:
    tokens = len(counts)
    heads = [WINDOW] * tokens if windows is None else windows
    ends = [0]
    for head, count in zip(heads, counts, strict=True):
        ends.append(ends[-1] + head + count)
    topk = torch.full((tokens, k), -1, dtype=torch.int32, device=inputs.device)
    indices = inputs.integers(0, 5000, ends[-1], dtype=torch.int32)
    if not inputs.meta:
        for t, count in enumerate(counts):
            topk[t, :count] = inputs.distinct(8 * k, count, dtype=torch.int32).sort().values
            indices[ends[t + 1] - count : ends[t + 1]] = -1
    return {
        "indices": indices, "indptr": inputs.tensor(ends, torch.int32), "topk": topk,
        "page_table": inputs.integers(1, PAGES, max(tokens, 1), 8 * k // 64 + 1, dtype=torch.int32),
        "request": inputs.integers(0, max(tokens, 1), tokens), "entries_per_page": 64, "first_row": 20_000,
        "out": inputs.empty(ends[-1], dtype=torch.int32),
    }  # fmt: skip


def _streams(
    inputs: Inputs, requests: Sequence[tuple[int, int]], *, decode: bool, topk: int = 512, some: bool = False
) -> Arguments:
    """``requests``: start and number of tokens of each."""
    tokens = sum(n for _, n in requests)
    positions = [s + i for s, n in requests for i in range(n)]
    item = [r for r, (_, n) in enumerate(requests) for _ in range(n)]
    firsts = [sum(n for _, n in requests[:r]) for r in range(len(requests))]
    longest = max((p + 1 for p in positions), default=1)
    wide = {"pool": WINDOW, "hca": WINDOW + longest // 128, "csa": WINDOW + topk, "extend": WINDOW}
    if decode:
        del wide["extend"]
    if some:
        wide = {"pool": WINDOW}
    arguments: Arguments = {
        "positions": inputs.tensor(positions, torch.int64),
        "slots": inputs.tensor([r + 1 for r in item], torch.int64),
        "starts": inputs.tensor([p + 1 for p in positions] if decode else [requests[r][0] for r in item], torch.int64),
        "first_rows": inputs.tensor([firsts[r] for r in item], torch.int64),
        "request": inputs.tensor(item, torch.int64),
        "page_table": inputs.integers(1, PAGES, max(len(requests), 1), longest // 256 + 1, dtype=torch.int32),
        "window": WINDOW, "ring_rows": WINDOW + 3, "swa_rows": 7000, "topk": topk, "hca_entries_per_page": 2,
        "ring_row": inputs.empty(tokens, dtype=torch.int64),
    }  # fmt: skip
    for name in ("pool", "hca", "csa", "extend"):
        held = name in wide
        arguments[f"{name}_indptr"] = inputs.empty(tokens + 1, dtype=torch.int32) if held else None
        arguments[f"{name}_indices"] = inputs.empty(tokens * wide[name], dtype=torch.int32) if held else None
    return arguments


def _csa_cost(arguments: Arguments) -> Cost:
    written = arguments["out"].numel()
    return Cost(8 * written + 4 * arguments["topk"].numel(), 0)


def _streams_cost(arguments: Arguments) -> Cost:
    held = [arguments[f"{name}_indices"] for name in ("pool", "hca", "csa", "extend")]
    tokens = arguments["positions"].numel()
    return Cost(4 * sum(t.numel() for t in held if t is not None) + 48 * tokens, 0)


_BUFFERS = tuple(f"{name}_{part}" for name in ("pool", "hca", "csa", "extend") for part in ("indptr", "indices"))

SPECS = (
    KernelSpec(
        "csa_stream",
        csa_stream_reference,
        "dsv4_kernels.index_streams.triton_op:csa_stream",
        (
            Case("one", lambda i: _csa(i, (512,), 512), compiled=True, bench=True),
            Case("ragged", lambda i: _csa(i, (0, 1, 64, 33), 64, (1, 2, 128, 300)), compiled=True),
            Case("none", lambda i: _csa(i, (), 64)),
            Case("top-1024", lambda i: _csa(i, (1024, 700), 1024), small=False),
            Case("t8192", lambda i: _csa(i, (512,) * 8192, 512), small=False, bench=True),
        ),
        _csa_cost,
        (CSA_STREAM,),
        outputs=("out",),
        tolerance=Tolerance(exact=frozenset({"out"})),
    ),
    KernelSpec(
        "index_streams",
        index_streams_reference,
        "dsv4_kernels.index_streams.triton_op:index_streams",
        (
            Case("one", lambda i: _streams(i, ((4000, 1),), decode=True), compiled=True, bench=True),
            Case("decode", lambda i: _streams(i, ((0, 1), (126, 3), (600, 2), (130, 1)), decode=True, topk=64)),
            Case("prefill", lambda i: _streams(i, ((0, 9), (120, 15), (600, 2)), decode=False, topk=64), compiled=True),
            Case("window-only", lambda i: _streams(i, ((3, 2), (700, 1)), decode=True, some=True)),
            Case("none", lambda i: _streams(i, (), decode=True)),
            Case("decode-300", lambda i: _streams(i, ((900, 1),) * 300, decode=True), small=False),
            Case("prefill-3000", lambda i: _streams(i, ((0, 2000), (5000, 1000)), decode=False), small=False),
            Case("t128", lambda i: _streams(i, ((32_000, 1),) * 128, decode=True), small=False, bench=True),
        ),
        _streams_cost,
        (STREAMS,),
        updates=(*_BUFFERS, "ring_row"),
        tolerance=Tolerance(exact=frozenset({*_BUFFERS, "ring_row"})),
    ),
)
