"""CPU siblings against their references on fresh inputs, small ones (compiled loops) and large ones."""

from __future__ import annotations

import pytest
import torch
from dsv4_kernels.index_topk import index_topk_reference
from dsv4_kernels.index_topk.cpu import index_topk_cpu
from dsv4_kernels.inverse_rope.cpu import rotate_cpu
from dsv4_kernels.mhc_pre_post import mhc_head_reference, mhc_post_reference, mhc_pre_reference
from dsv4_kernels.mhc_pre_post.cpu import mhc_head_cpu, mhc_post_cpu, mhc_pre_cpu
from dsv4_kernels.moe_gemm import moe_gemm_reference
from dsv4_kernels.moe_gemm.cpu import SMALL_EXPERT, mlp_cpu, moe_gemm_cpu
from dsv4_kernels.moe_route import moe_route_reference
from dsv4_kernels.moe_route.cpu import moe_route_cpu
from dsv4_kernels.norm_quant import rms_norm_reference
from dsv4_kernels.norm_quant.cpu import rms_norm_cpu
from dsv4_kernels.qk_norm_rope_store import (
    kv_norm_rope_reference,
    kv_norm_rope_store_reference,
    q_norm_rope_reference,
)
from dsv4_kernels.qk_norm_rope_store.cpu import kv_norm_rope_cpu, kv_norm_rope_store_cpu, q_norm_rope_cpu
from dsv4_kernels.rope import rope_frequencies, rope_table, rotate_tail
from dsv4_kernels.sparse_decode import sparse_decode_reference
from dsv4_kernels.sparse_decode.cpu import sparse_decode_cpu
from dsv4_kernels.swiglu import swiglu_reference
from dsv4_kernels.swiglu.cpu import swiglu_cpu

SIZES = [1, 3, 16, 700]
NAN = float("nan")
LIMIT = 2e-5


@pytest.fixture
def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(random: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=random)


def nans(*shape: int) -> torch.Tensor:
    return torch.full(shape, NAN)


def close(ours: torch.Tensor, reference: torch.Tensor) -> None:
    assert (ours - reference).abs().max() <= LIMIT * max(1.0, reference.abs().max().item())


@pytest.mark.parametrize("tokens", SIZES)
@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm(random: torch.Generator, tokens: int, weighted: bool) -> None:
    wide = normal(random, tokens, 96)
    x, w = wide[:, 16:80], normal(random, 64) if weighted else None
    ours, reference = nans(tokens, 64), nans(tokens, 64)
    rms_norm_cpu(x, w, 1e-6, ours)
    rms_norm_reference(x, w, 1e-6, reference)
    close(ours, reference)


@pytest.mark.parametrize("tokens", [*SIZES, 2100])
def test_hyper_connections(random: torch.Generator, tokens: int) -> None:
    x = normal(random, tokens, 4, 32)
    fn, base, scale = normal(random, 24, 128) / 8, normal(random, 24), normal(random, 3)
    results = []
    for pre, post_op in ((mhc_pre_cpu, mhc_post_cpu), (mhc_pre_reference, mhc_post_reference)):
        out, post, comb, streams = nans(tokens, 32), nans(tokens, 4), nans(tokens, 4, 4), x.clone()
        pre(streams, fn, base, scale, rms_eps=1e-6, hc_eps=1e-6, iters=20, out=out, post=post, comb=comb)
        post_op(out, post, comb, streams)
        results.append((out, post, comb, streams))
    for ours, reference in zip(*results, strict=True):
        close(ours, reference)


@pytest.mark.parametrize("tokens", SIZES)
def test_the_head_s_hyper_connection(random: torch.Generator, tokens: int) -> None:
    x, fn, base = normal(random, tokens, 4, 32), normal(random, 4, 128) / 8, normal(random, 4)
    ours, reference = nans(tokens, 32), nans(tokens, 32)
    for op, out in ((mhc_head_cpu, ours), (mhc_head_reference, reference)):
        op(x, fn, base, torch.tensor([1.7]), rms_eps=1e-6, hc_eps=1e-6, out=out)
    close(ours, reference)


def test_hyper_connections_of_extreme_inputs(random: torch.Generator) -> None:
    x = normal(random, 2, 4, 32) * 1e4
    fn, base, scale = normal(random, 24, 128) * 50, normal(random, 24) * 50, torch.tensor([20.0, -20.0, 30.0])
    out, post, comb = nans(2, 32), nans(2, 4), nans(2, 4, 4)
    mhc_pre_cpu(x, fn, base, scale, rms_eps=1e-6, hc_eps=1e-6, iters=20, out=out, post=post, comb=comb)
    assert all(t.isfinite().all() for t in (out, post, comb))


@pytest.mark.parametrize("tokens", SIZES)
def test_norm_and_rope(random: torch.Generator, tokens: int) -> None:
    positions = torch.randint(0, 1 << 17, (tokens,), generator=random)
    cos, sin = rope_table(positions, rope_frequencies(16, 160000.0, factor=16.0))
    q, wide, w = normal(random, tokens, 3, 64), normal(random, tokens, 100), normal(random, 64)
    kv = wide[:, 36:]
    mine, reference = q.clone(), q.clone()
    q_norm_rope_cpu(mine, cos, sin, 1e-6)
    q_norm_rope_reference(reference, cos, sin, 1e-6)
    close(mine, reference)
    for inverse in (False, True):
        mine, reference = q.clone(), rotate_tail(q.clone(), cos, sin, inverse=inverse)
        rotate_cpu(mine, cos, sin, inverse=inverse)
        close(mine, reference)
    mine, reference = nans(tokens, 64), nans(tokens, 64)
    kv_norm_rope_cpu(kv, w, cos, sin, 1e-6, mine)
    kv_norm_rope_reference(kv, w, cos, sin, 1e-6, reference)
    close(mine, reference)
    rows = torch.randperm(tokens + 5, generator=random)[:tokens]
    mine, reference = nans(tokens + 5, 64), nans(tokens + 5, 64)
    kv_norm_rope_store_cpu(kv, w, cos, sin, 1e-6, mine, rows)
    kv_norm_rope_store_reference(kv, w, cos, sin, 1e-6, reference, rows)
    assert torch.equal(mine.isnan(), reference.isnan())
    close(mine[rows], reference[rows])


@pytest.mark.parametrize("tokens", SIZES)
def test_topk_is_equal(random: torch.Generator, tokens: int) -> None:
    scores = torch.randint(-3, 4, (tokens, 60), generator=random).float()
    scores[torch.rand(tokens, 60, generator=random) < 0.1] = NAN
    visible = torch.randint(0, 61, (tokens,), generator=random)
    ours = torch.full((tokens, 16), 99, dtype=torch.int32)
    reference = ours.clone()
    index_topk_cpu(scores, visible, 16, ours)
    index_topk_reference(scores, visible, 16, reference)
    assert torch.equal(ours, reference)


@pytest.mark.parametrize("tokens", SIZES)
@pytest.mark.parametrize("hashed", [True, False])
def test_route(random: torch.Generator, tokens: int, hashed: bool) -> None:
    x, gate = normal(random, tokens, 32), normal(random, 9, 32) * 4
    ids = torch.randint(0, 50, (tokens,), generator=random)
    table = torch.randint(0, 9, (50, 2), generator=random) if hashed else None
    results = []
    for op in (moe_route_cpu, moe_route_reference):
        weights, experts = nans(tokens, 2), torch.full((tokens, 2), -1)
        op(
            x,
            gate,
            bias=None if hashed else normal(torch.Generator().manual_seed(1), 9),
            table=table,
            token_ids=ids,
            top_k=2,
            scale=1.5,
            scoring="sqrtsoftplus",
            renormalise=True,
            weights=weights,
            experts=experts,
        )
        results.append((weights, experts))
    assert torch.equal(results[0][1], results[1][1])
    close(results[0][0], results[1][0])


@pytest.mark.parametrize("tokens", SIZES)
@pytest.mark.parametrize(("choices", "inter"), [(4, 10), (40, 10), (4, 200), (40, 200)])
def test_experts(random: torch.Generator, tokens: int, choices: int, inter: int) -> None:
    assert (2 * inter * 24 > SMALL_EXPERT) == (inter == 200)
    x, w13, w2 = normal(random, tokens, 24), normal(random, choices, 2 * inter, 24), normal(random, choices, 24, inter)
    experts = torch.randint(0, choices, (tokens, 3), generator=random)
    experts[0] = experts[0, 0]
    weights = torch.rand(tokens, 3, generator=random)
    ours, reference = nans(tokens, 24), nans(tokens, 24)
    moe_gemm_cpu(x, experts, weights, w13, w2, 10.0, ours)
    moe_gemm_reference(x, experts, weights, w13, w2, 10.0, reference)
    close(ours, reference)
    one = torch.zeros(tokens, 1, dtype=torch.int64)
    mlp_cpu(x, w13[0], w2[0], 10.0, ours.fill_(NAN))
    moe_gemm_reference(x, one, torch.ones(tokens, 1), w13, w2, 10.0, reference)
    close(ours, reference)


@pytest.mark.parametrize("tokens", SIZES)
def test_swiglu(random: torch.Generator, tokens: int) -> None:
    gate, up = normal(random, tokens, 40) * 100, normal(random, tokens, 40) * 10
    close(swiglu_cpu(gate, up, 10.0), swiglu_reference(gate, up, 10.0))


@pytest.mark.parametrize("tokens", [1, 3, 16, 50])
@pytest.mark.parametrize("ragged", [True, False])
def test_decode_attention(random: torch.Generator, tokens: int, ragged: bool) -> None:
    pool = nans(300, 32)
    pool[:200] = normal(random, 200, 32)
    lengths = torch.randint(1, 90, (tokens,), generator=random) if ragged else torch.full((tokens,), 70)
    indptr = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0))).int()
    spare = torch.full((7,), 299)
    indices = torch.cat((torch.randint(0, 200, (int(indptr[-1]),), generator=random), spare)).int()
    q, sink = normal(random, tokens, 3, 32), normal(random, 3)
    ours, reference = nans(tokens, 3, 32), nans(tokens, 3, 32)
    sparse_decode_cpu(q, pool, indices, indptr, sink, 0.2, ours)
    sparse_decode_reference(q, pool, indices, indptr, sink, 0.2, reference)
    close(ours, reference)
