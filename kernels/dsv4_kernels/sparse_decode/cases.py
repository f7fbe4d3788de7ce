"""Cases and cost of the sparse decode kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from dsv4_kernels.registry import Arguments, Case, Cost, KernelSpec
from dsv4_kernels.rows import nope_row_bytes, quantise_tiles
from dsv4_kernels.sparse_decode._launch import DECODE, DECODE_FP8, REDUCE
from dsv4_kernels.sparse_decode.reference import sparse_decode_fp8_reference, sparse_decode_reference
from dsv4_kernels.testing.inputs import Inputs

FAR_ROWS = 4_300_000  # times 512 values this is beyond int32


def lists(inputs: Inputs, rows: int, lengths: Sequence[int], holes: float = 0.0) -> dict[str, torch.Tensor]:
    """Random rows of a pool, a list of each of ``lengths``; a share of ``holes`` is -1."""
    ends = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    indices = inputs.integers(0, rows, ends[-1], dtype=torch.int32)
    if holes and not inputs.meta:
        indices = torch.where(inputs.uniform(ends[-1]) < holes, -1, indices)
    return {"indices": indices, "indptr": inputs.tensor(ends, torch.int32)}


def decode_arguments(
    inputs: Inputs, heads: int, lengths: Sequence[int], *, rows: int = 700, d: int = 512, holes: float = 0.0,
    dtype: torch.dtype = torch.bfloat16, pool: torch.Tensor | None = None,
) -> Arguments:  # fmt: skip
    """Arguments of one call: lists of these ``lengths`` into a pool of ``rows`` rows (``pool`` if given)."""
    tokens = len(lengths)
    return {
        "q": inputs.normal(tokens, heads, d, dtype=dtype),
        "pool": inputs.normal(rows, d, dtype=dtype) if pool is None else pool,
        **lists(inputs, rows, lengths, holes),
        "sink": inputs.normal(heads, dtype=torch.float32),
        "scale": d**-0.5,
        "out": inputs.empty(tokens, heads, d, dtype=dtype),
    }


def _poisoned(inputs: Inputs, heads: int, lengths: Sequence[int]) -> Arguments:
    """Row 0, and the rows that no list names, are NaN."""
    arguments = decode_arguments(inputs, heads, lengths, holes=0.2)
    if not inputs.meta:
        arguments["indices"][arguments["indices"] == 0] = 1
        owned = torch.zeros(700, dtype=torch.bool, device=inputs.device)
        owned[arguments["indices"][arguments["indices"] > 0].long()] = True
        arguments["pool"][~owned] = float("nan")
    return arguments


def _strided(inputs: Inputs, heads: int, lengths: Sequence[int]) -> Arguments:
    arguments = decode_arguments(inputs, heads, lengths)
    wide = inputs.empty(len(lengths), heads, 544)
    wide[..., :512] = arguments["q"]
    pool = inputs.empty(700, 576)
    pool[:, :512] = arguments["pool"]
    return {**arguments, "q": wide[..., :512], "pool": pool[:, :512]}


def _fp8(
    inputs: Inputs, heads: int, lengths: Sequence[int], *, rows: int = 700, d: int = 512, holes: float = 0.0
) -> Arguments:
    arguments = decode_arguments(inputs, heads, lengths, rows=1, d=d)
    return {**arguments, **lists(inputs, rows, lengths, holes), **two_pools(inputs, rows, d)}


def two_pools(inputs: Inputs, rows: int, d: int, rope: int = 64) -> dict[str, torch.Tensor]:
    """Random rows in the fp8 layout; bytes that no value needs are NaN codes."""
    nope = d - rope
    pool = torch.full((rows, nope_row_bytes(nope)), 0xFF, dtype=torch.uint8, device=inputs.device)
    if not inputs.meta:
        for a in range(0, rows, 1 << 20):  # in parts: the float32 copies are large
            codes, scales = quantise_tiles(inputs.normal(min(1 << 20, rows - a), nope))
            pool[a : a + len(codes), :nope] = codes
            pool[a : a + len(codes), nope : nope + 2 * scales.shape[1]] = scales.repeat_interleave(2, dim=1)
    return {"pool": pool, "rope_pool": inputs.normal(rows, rope)}


def _bench(build: Callable[..., Arguments]) -> tuple[Case, ...]:
    """A few points of the grid that ``kernels/bench/attention.py`` covers."""
    return tuple(
        Case(
            f"h{heads}-t{tokens}-l{length}",
            lambda i, h=heads, t=tokens, n=length: build(i, h, (n,) * t, rows=400_000),  # type: ignore[misc]
            small=False,
            bench=True,
        )
        for heads, tokens, length in ((16, 1, 640), (16, 128, 4096), (64, 32, 1152), (64, 128, 4096))
    )


def _cost(arguments: Arguments) -> Cost:
    q, indices, pool = arguments["q"], arguments["indices"], arguments["pool"]
    d = q.shape[2]
    row = pool.shape[1] * pool.element_size()
    if "rope_pool" in arguments:
        row = (d - 64) + 2 * (d // 64 - 1) + 128
    moved = indices.numel() * (row + 4) + 2 * q.numel() * q.element_size() + arguments["indptr"].numel() * 4
    return Cost(moved, 4 * indices.numel() * q.shape[1] * d)


RAGGED = (0, 1, 63, 64, 65, 130, 200)

SPECS = (
    KernelSpec(
        "sparse_decode",
        sparse_decode_reference,
        "dsv4_kernels.sparse_decode.triton_op:sparse_decode",
        (
            Case("ragged-16", lambda i: decode_arguments(i, 16, RAGGED)),
            Case("ragged-64", lambda i: decode_arguments(i, 64, (0, 1, 130)), compiled=True),
            Case("one-token", lambda i: decode_arguments(i, 16, (192,))),
            Case("heads-8-holes", lambda i: decode_arguments(i, 8, (70, 3), holes=0.3)),
            Case("heads-32", lambda i: decode_arguments(i, 32, (70, 3))),
            Case("all-holes", lambda i: decode_arguments(i, 16, (40, 3), holes=1.1)),
            Case("poisoned", lambda i: _poisoned(i, 16, (100, 7))),
            Case("strided", lambda i: _strided(i, 16, (100, 7))),
            Case("small-dim", lambda i: decode_arguments(i, 4, (20, 0, 33), d=64)),
            Case("float32", lambda i: decode_arguments(i, 4, (20, 0, 33), d=64, dtype=torch.float32)),
            Case("float16", lambda i: decode_arguments(i, 16, (20, 90), dtype=torch.float16)),
            Case("no-token", lambda i: decode_arguments(i, 16, ())),
            Case("ragged-128", lambda i: decode_arguments(i, 128, (*RAGGED, 1500)), small=False),
            Case("poisoned-64", lambda i: _poisoned(i, 64, (100, 7, 700)), small=False),
            Case("strided-64", lambda i: _strided(i, 64, (100, 7)), small=False),
            Case("heads-48", lambda i: decode_arguments(i, 48, (300, 64)), small=False),
            Case("far-16", lambda i: decode_arguments(i, 16, (300,) * 4, rows=FAR_ROWS), small=False),
            Case("far-64", lambda i: decode_arguments(i, 64, (300,) * 4, rows=FAR_ROWS), small=False),
            Case("many-64", lambda i: decode_arguments(i, 64, tuple(range(0, 1200, 4)), rows=20_000), small=False),
            Case("long-16", lambda i: decode_arguments(i, 16, (40_000, 5), rows=50_000), small=False),
            *_bench(decode_arguments),
        ),
        _cost,
        (DECODE, REDUCE),
        outputs=("out",),
        variants={
            "portable": ("dsv4_kernels.sparse_decode.triton_op:sparse_decode_portable", "sm_90"),
        },
    ),
    KernelSpec(
        "sparse_decode_fp8",
        sparse_decode_fp8_reference,
        "dsv4_kernels.sparse_decode.triton_op:sparse_decode_fp8",
        (
            Case("ragged-16", lambda i: _fp8(i, 16, RAGGED)),
            Case("ragged-64", lambda i: _fp8(i, 64, (0, 1, 130)), compiled=True),
            Case("holes-32", lambda i: _fp8(i, 32, (70, 3), holes=0.3)),
            Case("small-dim", lambda i: _fp8(i, 4, (20, 0, 33), d=128)),
            Case("far-64", lambda i: _fp8(i, 64, (300,) * 4, rows=FAR_ROWS * 2), small=False),
            Case("many-64", lambda i: _fp8(i, 64, tuple(range(0, 1200, 4)), rows=20_000, holes=0.1), small=False),
            Case("long-16", lambda i: _fp8(i, 16, (40_000, 5), rows=50_000), small=False),
            *_bench(_fp8),
        ),
        _cost,
        (DECODE_FP8, REDUCE),
        outputs=("out",),
        variants={
            "portable": ("dsv4_kernels.sparse_decode.triton_op:sparse_decode_fp8_portable", "sm_90"),
            "hopper": ("dsv4_kernels.sparse_decode.hopper_op:sparse_decode_fp8_hopper_where_it_can", "sm_90"),
        },
    ),
)
