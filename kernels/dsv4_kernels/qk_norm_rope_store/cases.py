"""Cases and cost of the fused Q/KV norm and rope, and of its parts."""

from __future__ import annotations

import torch

from dsv4_kernels.qk_norm_rope_store._launch import QK_NORM_ROPE
from dsv4_kernels.qk_norm_rope_store.reference import (
    kv_norm_rope_reference,
    kv_norm_rope_store_reference,
    q_norm_rope_reference,
    qk_norm_rope_reference,
    qk_norm_rope_store_pools_reference,
)
from dsv4_kernels.registry import Arguments, Case, Cost, KernelSpec
from dsv4_kernels.rows import nope_row_bytes
from dsv4_kernels.targets_of_rows import rows_of
from dsv4_kernels.testing.inputs import Inputs

MODULE = "dsv4_kernels.qk_norm_rope_store.triton_op"
EPS = 1e-6


def angles(inputs: Inputs, tokens: int, half: int) -> dict[str, torch.Tensor]:
    """Cosines and sines as the runtime holds them, side by side in one tensor."""
    table = inputs.empty(tokens, 2, half, dtype=torch.float32)
    if not inputs.meta:
        turn = inputs.uniform(tokens, half, high=6.28)
        table[:, 0], table[:, 1] = turn.cos(), turn.sin()
    return {"cos": table[:, 0], "sin": table[:, 1]}


def _q(inputs: Inputs, tokens: int, heads: int, d: int, dtype: torch.dtype) -> Arguments:
    return {"q": inputs.normal(tokens, heads, d, dtype=dtype, scale=3.0)}


def _kv(inputs: Inputs, tokens: int, d: int, dtype: torch.dtype) -> Arguments:
    wide = inputs.normal(tokens, d + 256, dtype=dtype, scale=2.0)  # the columns of a wider product
    return {"kv": wide[:, 256:], "weight": inputs.normal(d, dtype=dtype)}


def _pool(inputs: Inputs, tokens: int, d: int, rope: int, rows: int, fp8: bool, dtype: torch.dtype) -> Arguments:
    pool = inputs.normal(rows, d, dtype=dtype)
    if fp8:
        pool = torch.zeros(rows, nope_row_bytes(d - rope), dtype=torch.uint8, device=inputs.device)
    return {
        "pool": pool,
        "rope_pool": inputs.normal(rows, rope) if fp8 else None,
        "rows": inputs.distinct(rows, tokens),
    }


def _arguments(
    inputs: Inputs, parts: str, tokens: int, heads: int = 16, *, d: int = 512, rope: int = 64, rows: int = 3000,
    fp8: bool = False, dtype: torch.dtype = torch.bfloat16,
) -> Arguments:  # fmt: skip
    arguments: Arguments = {**angles(inputs, tokens, rope // 2), "eps": EPS}
    if "q" in parts:
        arguments |= _q(inputs, tokens, heads, d, dtype)
    if "k" in parts:
        arguments |= _kv(inputs, tokens, d, dtype)
    if "o" in parts:
        arguments["out"] = inputs.empty(tokens, d, dtype=dtype)
    if "s" in parts:
        arguments |= _pool(inputs, tokens, d, rope, rows, fp8, dtype)
        if "q" not in parts:
            del arguments["rope_pool"]
    return arguments


def _cost(arguments: Arguments) -> Cost:
    tokens, values, moved = arguments["cos"].shape[0], 0, arguments["cos"].numel() * 8
    if "q" in arguments:
        q = arguments["q"]
        values, moved = values + q.numel(), moved + 2 * q.numel() * q.element_size()
    if "kv" in arguments:
        kv = arguments["kv"]
        values, moved = values + kv.numel(), moved + kv.numel() * kv.element_size()
        pool, rope = arguments.get("pool", arguments.get("out")), arguments.get("rope_pool")
        assert pool is not None
        moved += tokens * (pool.shape[1] * pool.element_size() + (0 if rope is None else rope.shape[1] * 2))
    return Cost(moved, 6 * values)


def _cases(parts: str, *, bench: bool = False) -> tuple[Case, ...]:
    cases = [
        Case("one", lambda i: _arguments(i, parts, 1), bench=True),
        Case("some", lambda i: _arguments(i, parts, 7, 5)),
        Case("many-rows", lambda i: _arguments(i, parts, 40, 16), compiled=True),
        Case("tiny", lambda i: _arguments(i, parts, 5, 4, d=64, rope=16)),
        Case("float32", lambda i: _arguments(i, parts, 5, 4, d=64, rope=16, dtype=torch.float32)),
        Case("none", lambda i: _arguments(i, parts, 0)),
        Case("heads-128", lambda i: _arguments(i, parts, 600, 128), small=False),
    ]
    if "s" in parts:
        cases.append(Case("far", lambda i: _arguments(i, parts, 5, rows=4_300_000), small=False))
    if bench:
        cases.append(Case("h64-t128", lambda i: _arguments(i, parts, 128, 64), small=False, bench=True))
        cases.append(Case("h64-t2048", lambda i: _arguments(i, parts, 2048, 64), small=False, bench=True))
    return tuple(cases)


def _verify_fp8(arguments: Arguments) -> None:
    """Rows are those of the reference, but for codes where float32 sums in another order round to the next one."""
    kv, weight, cos, sin = (arguments[name] for name in ("kv", "weight", "cos", "sin"))
    rows, pool, rope_pool = arguments["rows"], arguments["pool"], arguments["rope_pool"]
    expected = torch.zeros_like(pool), torch.zeros_like(rope_pool)
    with torch.device(kv.device):
        kv_norm_rope_store_reference(kv, weight, cos, sin, EPS, rows_of(*expected, kv.shape[1]), rows)
    nope = kv.shape[1] - rope_pool.shape[1]
    off = (pool.int() - expected[0].int()).abs()
    assert int(off[:, nope:].sum()) == 0, "scales differ"
    assert float((off > 0).float().mean()) < 0.005, f"{int((off > 0).sum())} codes differ"
    assert int(off.max() if off.numel() else 0) <= 1, "a code differs by more than one step"
    near = (rope_pool[rows].float() - expected[1][rows].float()).abs() <= expected[1][rows].float().abs() * 2.0**-7
    assert bool(near.all()), "rope values differ"


SPECS = (
    KernelSpec(
        "q_norm_rope", q_norm_rope_reference, f"{MODULE}:q_norm_rope", _cases("q"), _cost, (QK_NORM_ROPE,),
        updates=("q",),
    ),
    KernelSpec(
        "kv_norm_rope", kv_norm_rope_reference, f"{MODULE}:kv_norm_rope", _cases("ko"), _cost, (QK_NORM_ROPE,),
        outputs=("out",),
    ),
    KernelSpec(
        "kv_norm_rope_store", kv_norm_rope_store_reference, f"{MODULE}:kv_norm_rope_store", _cases("ks"), _cost,
        (QK_NORM_ROPE,), updates=("pool",),
    ),
    KernelSpec(
        "qk_norm_rope", qk_norm_rope_reference, f"{MODULE}:qk_norm_rope", _cases("qko", bench=True), _cost,
        (QK_NORM_ROPE,), outputs=("out",), updates=("q",),
    ),
    KernelSpec(
        "qk_norm_rope_store", qk_norm_rope_store_pools_reference, f"{MODULE}:qk_norm_rope_store_pools",
        _cases("qks", bench=True), _cost, (QK_NORM_ROPE,), updates=("q", "pool"),
    ),
    KernelSpec(
        "qk_norm_rope_store_fp8", qk_norm_rope_store_pools_reference, f"{MODULE}:qk_norm_rope_store_pools",
        (
            Case("some", lambda i: _arguments(i, "qks", 7, 5, fp8=True), compiled=True),
            Case("tiny", lambda i: _arguments(i, "qks", 5, 4, d=64, rope=16, fp8=True)),
            Case("heads-128", lambda i: _arguments(i, "qks", 600, 128, fp8=True), small=False),
            Case("one", lambda i: _arguments(i, "qks", 1, 64, fp8=True), small=False, bench=True),
            Case("h64-t2048", lambda i: _arguments(i, "qks", 2048, 64, fp8=True), small=False, bench=True),
        ),
        _cost, (QK_NORM_ROPE,), updates=("q", "pool", "rope_pool"), verify=_verify_fp8,
    ),
)  # fmt: skip
