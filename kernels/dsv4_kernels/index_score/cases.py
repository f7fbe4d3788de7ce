"""Cases and cost of the indexer scores."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dsv4_kernels.index_score._launch import HOPPER, INDEX_SCORE
from dsv4_kernels.index_score.reference import index_score_pages_reference, index_score_reference
from dsv4_kernels.paged_rows import IndexFp4Pages, IndexFp8Pages
from dsv4_kernels.registry import Arguments, Case, Cost, KernelSpec
from dsv4_kernels.testing.inputs import Inputs

PER_PAGE = 64
KEY_BYTES = {"fp8": 132, "fp4": 68}


def _dense(inputs: Inputs, tokens: int, entries: int, heads: int = 64, dim: int = 128) -> Arguments:
    return {
        "q": inputs.normal(tokens, heads, dim),
        "weights": inputs.normal(tokens, heads, dtype=torch.float32),
        "keys": inputs.normal(entries, dim),
        "scale": (heads * dim) ** -0.5,
    }


def _paged(
    inputs: Inputs, kind: str, visible: Sequence[int], requests: Sequence[int] | None = None, heads: int = 64,
    width: int = 0,
) -> Arguments:  # fmt: skip
    """Tokens of these requests (one each by default) that see so many entries."""
    own = list(range(len(visible))) if requests is None else list(requests)
    pages_each = max([width, *visible]) // PER_PAGE + 1
    count = max([r + 1 for r in own], default=1)
    table = inputs.distinct(count * pages_each + 1, count * pages_each, dtype=torch.int32)
    return {
        **{k: v for k, v in _dense(inputs, len(visible), 1, heads).items() if k != "keys"},
        "keys": _keys(inputs, kind, count * pages_each + 1),
        "page_table": table.view(count, pages_each),
        "request": inputs.tensor(own, torch.int64),
        "visible": inputs.tensor(list(visible), torch.int64),
        "kind": kind,
        "entries_per_page": PER_PAGE,
        "out": inputs.normal(len(visible), pages_each * PER_PAGE, dtype=torch.float32),
    }


def _keys(inputs: Inputs, kind: str, pages: int) -> torch.Tensor:
    values = inputs.normal(pages * PER_PAGE, 128)
    if kind == "bf16":
        return values
    bytes_ = torch.zeros(pages, PER_PAGE * KEY_BYTES[kind], dtype=torch.uint8, device=inputs.device)
    if not inputs.meta:
        store = (IndexFp8Pages if kind == "fp8" else IndexFp4Pages)(bytes_, PER_PAGE, 128)
        with torch.device(inputs.device):
            for a in range(0, pages * PER_PAGE, 1 << 18):
                rows = torch.arange(a, min(a + (1 << 18), pages * PER_PAGE), device=inputs.device)
                store.put(rows, values[rows])
    return bytes_


def _dense_cost(arguments: Arguments) -> Cost:
    q, keys = arguments["q"], arguments["keys"]
    products = q.shape[0] * keys.shape[0]
    moved = q.numel() * 2 + keys.numel() * 2 + arguments["weights"].numel() * 4 + 4 * products
    return Cost(moved, products * q.shape[1] * (2 * q.shape[2] + 3))


def _paged_cost(arguments: Arguments) -> Cost:
    q, request, visible = arguments["q"], arguments["request"], arguments["visible"]
    width = {"bf16": 256, **KEY_BYTES}[arguments["kind"]]
    if visible.device.type == "meta":
        products = keys = q.shape[0] * arguments["out"].shape[1]
    else:
        products = int(visible.sum())
        keys = sum(int(visible[request == r].max()) for r in request.unique())
    moved = keys * width + 4 * products + q.numel() * 2
    return Cost(moved, products * q.shape[1] * (2 * q.shape[2] + 3))


def _cases(kind: str) -> tuple[Case, ...]:
    return (
        Case(f"{kind}-one", lambda i: _paged(i, kind, (150,))),
        Case(f"{kind}-ragged", lambda i: _paged(i, kind, (0, 1, 64, 65, 200), heads=8)),
        Case(f"{kind}-mixed", lambda i: _paged(i, kind, [40 + t for t in range(300)], [t // 37 for t in range(300)]),
             small=False, compiled=True),
        Case(f"{kind}-16k-t1", lambda i: _paged(i, kind, (16_384,)), small=False, bench=True),
        Case(f"{kind}-16k-t64", lambda i: _paged(i, kind, (16_384,) * 64), small=False, bench=True),
        Case(f"{kind}-prefill", lambda i: _paged(i, kind, [1000 + t // 4 for t in range(4096)], [0] * 4096),
             small=False, bench=True),
    )  # fmt: skip


SPECS = (
    KernelSpec(
        "index_score",
        index_score_reference,
        "dsv4_kernels.index_score.triton_op:index_score",
        (
            Case("one", lambda i: _dense(i, 1, 70), compiled=True),
            Case("some", lambda i: _dense(i, 5, 130, 8)),
            Case("tiny", lambda i: _dense(i, 5, 33, 4, 32)),
            Case("many", lambda i: _dense(i, 300, 1000), small=False),
        ),
        _dense_cost,
        (INDEX_SCORE,),
        returns=True,
    ),
    KernelSpec(
        "index_score_paged",
        index_score_pages_reference,
        "dsv4_kernels.index_score.triton_op:index_score_pages",
        (*_cases("bf16"), *_cases("fp8"), *_cases("fp4")),
        _paged_cost,
        (INDEX_SCORE, *HOPPER),
        updates=("out",),
        variants={"hopper": ("dsv4_kernels.index_score.triton_op:index_score_pages_hopper", "sm_90")},
    ),
)
