"""Cases and cost of the ring store."""

from __future__ import annotations

import torch

from dsv4_kernels.registry import Arguments, Case, Cost, KernelSpec, Tolerance
from dsv4_kernels.ring_store._launch import RING_STORE
from dsv4_kernels.ring_store.reference import ring_store_pools_reference
from dsv4_kernels.rows import nope_row_bytes
from dsv4_kernels.testing.inputs import Inputs


def _store(
    inputs: Inputs, n: int, *, rows: int = 3000, tokens: int = 0, d: int = 512, fp8: bool = False, rope: int = 64
) -> Arguments:
    tokens = tokens or n
    pool = inputs.normal(rows, d)
    if fp8:
        pool = torch.zeros(rows, nope_row_bytes(d - rope), dtype=torch.uint8, device=inputs.device)
    return {
        "kv": inputs.normal(tokens, d),
        "src": inputs.distinct(tokens, n),
        "pool": pool,
        "rope_pool": inputs.normal(rows, rope) if fp8 else None,
        "dst": inputs.distinct(rows, n),
    }


def _strided(inputs: Inputs, n: int) -> Arguments:
    arguments = _store(inputs, n)
    return {**arguments, "kv": inputs.normal(n, 1024)[:, 512:], "pool": inputs.normal(3000, 640)[:, :512]}


def row_bytes(pool: torch.Tensor, rope_pool: torch.Tensor | None) -> int:
    """Bytes of a stored row."""
    return pool.shape[1] * pool.element_size() + (0 if rope_pool is None else rope_pool.shape[1] * 2)


def _cost(arguments: Arguments) -> Cost:
    kv, n = arguments["kv"], arguments["src"].numel()
    return Cost(n * (kv.shape[1] * kv.element_size() + row_bytes(arguments["pool"], arguments["rope_pool"]) + 16), 0)


SPECS = (
    KernelSpec(
        "ring_store",
        ring_store_pools_reference,
        "dsv4_kernels.ring_store.triton_op:ring_store_pools",
        (
            Case("one", lambda i: _store(i, 1), bench=True),
            Case("some-of-many", lambda i: _store(i, 37, tokens=300)),
            Case("many", lambda i: _store(i, 300), compiled=True),
            Case("strided", lambda i: _strided(i, 20)),
            Case("tiny", lambda i: _store(i, 20, d=64)),
            Case("none", lambda i: _store(i, 0, tokens=3)),
            Case("fp8", lambda i: _store(i, 30, fp8=True)),
            Case("fp8-many", lambda i: _store(i, 300, fp8=True), compiled=True),
            Case("fp8-tiny", lambda i: _store(i, 20, d=64, fp8=True, rope=16)),
            Case("far", lambda i: _store(i, 30, rows=4_300_000), small=False),
            Case("rows-65536", lambda i: _store(i, 65536, rows=400_000), small=False, bench=True),
            Case("fp8-rows-65536", lambda i: _store(i, 65536, rows=400_000, fp8=True), small=False, bench=True),
        ),
        _cost,
        (RING_STORE,),
        updates=("pool", "rope_pool"),
        tolerance=Tolerance(exact=frozenset({"pool", "rope_pool"})),
    ),
)
