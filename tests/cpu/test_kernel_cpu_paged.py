"""CPU siblings that read or write the pool by page and row, against their references on fresh inputs."""

from __future__ import annotations

import pytest
import torch
from dsv4_kernels.compress import compress_reference
from dsv4_kernels.compress.cpu import compress_cpu
from dsv4_kernels.index_score import index_score_paged_reference
from dsv4_kernels.index_streams import csa_stream_reference
from dsv4_kernels.index_streams.cpu import csa_stream_cpu
from dsv4_kernels.index_topk import index_topk_reference
from dsv4_kernels.index_topk.cpu import index_select_cpu
from dsv4_kernels.inverse_rope.cpu import rope_table_cpu
from dsv4_kernels.moe_gemm.cpu import moe_gemm_cpu
from dsv4_kernels.rope import rope_frequencies, rope_table
from dsv4_kernels.sparse_decode.cpu import sparse_decode_cpu

NAN = float("nan")
FREQUENCIES = rope_frequencies(16, 160000.0, factor=16.0)


@pytest.fixture
def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pages(random: torch.Generator, requests: int, each: int) -> torch.Tensor:
    """int32 ``[requests, each]``: distinct pages from 1 on."""
    return (torch.randperm(requests * each, generator=random) + 1).view(requests, each).int()


@pytest.mark.parametrize("tokens", [1, 3, 64, 65])
def test_rope_table(random: torch.Generator, tokens: int) -> None:
    positions = torch.randint(0, 1 << 20, (tokens,), generator=random)
    out = torch.full((tokens, 2, 8), NAN)
    rope_table_cpu(positions, FREQUENCIES, out)
    reference = torch.stack(rope_table(positions, FREQUENCIES), dim=1)
    assert (out - reference).abs().max() <= 1e-7


@pytest.mark.parametrize("tokens", [1, 3, 40])
@pytest.mark.parametrize(("heads", "dim"), [(2, 8), (32, 64)])
def test_index_select_is_score_then_topk(random: torch.Generator, tokens: int, heads: int, dim: int) -> None:
    per_page, each, k = 8, 20, 16
    table = pages(random, 4, each)
    keys = torch.full(((4 * each + 1) * per_page, dim), NAN)
    keys[per_page:] = torch.randint(-2, 3, (4 * each * per_page, dim), generator=random).float()
    q = torch.randint(-2, 3, (tokens, heads, dim), generator=random).float()
    weights = torch.randint(-2, 3, (tokens, heads + 3), generator=random).float()[:, :heads]  # columns of wider rows
    request = torch.randint(0, 4, (tokens,), generator=random)
    visible = torch.randint(0, per_page * each + 1, (tokens,), generator=random)
    scores = torch.full((tokens, per_page * each), NAN)
    ours, reference = (torch.full((tokens, k), 99, dtype=torch.int32) for _ in range(2))
    paged = {"page_table": table, "request": request, "visible": visible, "entries_per_page": per_page, "scale": 0.5}
    index_select_cpu(q, weights, keys, out=ours, **paged)
    index_score_paged_reference(q, weights, keys, out=scores, **paged)
    index_topk_reference(scores, visible, k, reference)
    assert torch.equal(ours, reference)  # whole numbers: scores are exact, ties are many


@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_csa_stream_is_equal(random: torch.Generator, tokens: int) -> None:
    per_page, each, k = 8, 5, 6
    counts = torch.randint(0, k + 1, (tokens,), generator=random)
    heads = torch.randint(1, 9, (tokens,), generator=random)
    indptr = torch.cat((torch.zeros(1, dtype=torch.int64), (heads + counts).cumsum(0))).int()
    indices = torch.full((int(indptr[-1]),), -1, dtype=torch.int32)
    topk = torch.full((tokens, k), -1, dtype=torch.int32)
    for t in range(tokens):
        indices[int(indptr[t]) : int(indptr[t]) + int(heads[t])] = torch.arange(int(heads[t])).int()
        chosen = torch.randperm(per_page * each, generator=random)[: int(counts[t])].sort().values
        topk[t, : len(chosen)] = chosen.int()
    request = torch.randint(0, 3, (tokens,), generator=random)
    ours, reference = (torch.full((tokens * (8 + k),), 99, dtype=torch.int32) for _ in range(2))
    for op, out in ((csa_stream_cpu, ours), (csa_stream_reference, reference)):
        op(indices, indptr, topk, pages(torch.Generator().manual_seed(1), 3, each), request,
           entries_per_page=per_page, first_row=1000, out=out)  # fmt: skip
    assert torch.equal(ours, reference)


@pytest.mark.parametrize(("ratio", "halves"), [(4, 2), (128, 1)])
@pytest.mark.parametrize(("entries", "tokens"), [(0, 1), (1, 1), (5, 16), (40, 200)])
def test_compress(random: torch.Generator, ratio: int, halves: int, entries: int, tokens: int) -> None:
    d, width, states = 32, 8 if ratio == 4 else 128, 300
    ks = torch.randn(tokens, 2 * halves * d, generator=random)
    state = torch.randn(states, 2 * halves * d, generator=random)
    state[-1, : halves * d], state[-1, halves * d :] = 0.0, float("-inf")
    gather_state = torch.randint(0, states - 1, (entries, width), generator=random)
    gather_state[:, : width // 4] = states - 1  # before the beginning
    from_flat = torch.rand(entries, width, generator=random) < 0.3
    from_flat[:, : width // 4] = False
    arguments = {
        "gather_state": gather_state,
        "gather_flat": torch.randint(0, tokens, (entries, width), generator=random),
        "from_flat": from_flat,
        "positions": torch.randint(0, 1 << 17, (entries,), generator=random),
        "rows": torch.randperm(entries + 7, generator=random)[:entries],
        "state_src": torch.randperm(tokens, generator=random)[: (tokens + 1) // 2],
        "state_dst": torch.randperm(states - 1, generator=random)[: (tokens + 1) // 2],
    }
    ape, norm = torch.randn(ratio, halves * d, generator=random), torch.randn(d, generator=random)
    results = []
    for op in (compress_cpu, compress_reference):
        pool, ring = torch.full((entries + 7, d), NAN), state.clone()
        op(ks, ring, ape, norm, FREQUENCIES, 1e-6, pool=pool, **arguments)
        results.append((pool, ring))
    (pool, ring), (reference, ring_reference) = results
    assert torch.equal(ring, ring_reference)
    assert torch.equal(pool.isnan(), reference.isnan())
    assert torch.allclose(pool, reference, atol=2e-5, rtol=2e-5, equal_nan=True)


def test_an_index_outside_its_tensor_is_an_error() -> None:
    x, far = torch.zeros(1, 2, 8), torch.tensor([7], dtype=torch.int32)
    with pytest.raises(IndexError, match="row lies outside the pool"):
        sparse_decode_cpu(x, torch.zeros(7, 8), far, torch.tensor([0, 1]).int(), torch.zeros(2), 1.0, x.clone())
    with pytest.raises(IndexError, match="lie outside the indices"):
        sparse_decode_cpu(x, torch.zeros(7, 8), far, torch.tensor([0, 2]).int(), torch.zeros(2), 1.0, x.clone())
    with pytest.raises(IndexError, match="expert id lies outside"):
        moe_gemm_cpu(x[0], far.long().expand(2, 1), torch.ones(2, 1), torch.zeros(7, 4, 8), torch.zeros(7, 8, 2), 1.0,
                     torch.zeros(2, 8))  # fmt: skip
    with pytest.raises(IndexError, match="lies outside the page table"):
        csa_stream_cpu(far, torch.tensor([0, 1]).int(), far.view(1, 1), torch.ones(1, 1).int(), torch.zeros(1).long(),
                       entries_per_page=4, first_row=0, out=far.clone())  # fmt: skip
