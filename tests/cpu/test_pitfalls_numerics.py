"""Pitfalls 23 to 34 of other implementations: masks, top-k, the router, rope and hyper-connections.

docs/pitfalls.md has the list; numbers are those of the specification. Both the references and the CPU's compiled loops
are run where there are both.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from dsv4_kernels.index_score import index_score_reference
from dsv4_kernels.index_topk import index_topk_reference
from dsv4_kernels.index_topk.cpu import index_topk_cpu
from dsv4_kernels.mhc_pre_post import mhc_post_reference, mhc_pre_reference
from dsv4_kernels.mhc_pre_post.cpu import mhc_post_cpu, mhc_pre_cpu
from dsv4_kernels.moe_route import moe_route_reference
from dsv4_kernels.moe_route.cpu import moe_route_cpu
from dsv4_kernels.rope import rope_frequencies, rope_table, rotate_tail
from dsv4_kernels.sparse_decode import sparse_decode_reference
from dsv4_kernels.sparse_decode.cpu import sparse_decode_cpu

from dsv4lab.engine.request import SamplingParams
from dsv4lab.engine.sampler import sample
from dsv4lab.errors import EngineError
from dsv4lab.kv.metadata import BatchItem
from tests.cpu.tiny import MODEL, decode, gap, prefill, runner_of, text

NAN, INF = float("nan"), float("inf")
Run = Callable[..., None]
TOPK = [index_topk_reference, index_topk_cpu]
ATTEND = [sparse_decode_reference, sparse_decode_cpu]
ROUTE = [moe_route_reference, moe_route_cpu]


def chosen(run: Run, scores: list[list[float]], visible: list[int], k: int) -> list[list[int]]:
    out = torch.full((len(visible), k), 77, dtype=torch.int32)
    run(torch.tensor(scores), torch.tensor(visible), k, out)
    return [sorted(row) for row in out.tolist()]


@pytest.mark.parametrize("run", ATTEND)
@pytest.mark.parametrize("sink", [-INF, -1e4, 0.0, 1e4])
def test_pitfall_23_no_minus_infinity_is_taken_from_itself(run: Run, sink: float) -> None:
    """Huge, tiny and no scores against every sink: finite, and zeros where nothing is read."""
    pool = torch.tensor([[300.0] * 64, [-300.0] * 64])
    q = torch.ones(3, 2, 64)
    out = torch.full((3, 2, 64), NAN)
    indices = torch.tensor([0, 1], dtype=torch.int32)
    run(q, pool, indices, torch.tensor([0, 1, 2, 2], dtype=torch.int32), torch.full((2,), sink), 1.0, out)
    assert out.isfinite().all()
    assert not out[2].any()
    assert (out[0] == 300.0).all(), "its score is far above any of these sinks"
    assert ((out[1] == -300.0) | (out[1] == 0.0)).all()


@pytest.mark.parametrize("heads", [1, 3, 5])
@pytest.mark.parametrize("run", ATTEND)
def test_pitfall_24_heads_are_as_many_as_there_are(run: Run, heads: int) -> None:
    """No padding up to a fixed count: what lies behind the last head is not touched."""
    generator = torch.Generator().manual_seed(heads)
    pool = torch.randn(9, 64, generator=generator)
    wide = torch.randn(2, 8, 64, generator=generator)
    lists = (torch.arange(9, dtype=torch.int32), torch.tensor([0, 4, 9], dtype=torch.int32))
    whole, part = torch.empty(2, 8, 64), torch.full((3, heads, 64), NAN)
    run(wide, pool, *lists, torch.zeros(8), 0.1, whole)
    run(wide[:, :heads].contiguous(), pool, *lists, torch.zeros(heads), 0.1, part[:2])
    assert gap(part[:2], whole[:, :heads]) < 1e-5
    assert part[2].isnan().all()


@pytest.mark.parametrize("run", TOPK)
def test_pitfall_25_nan_scores_never_choose_an_entry_that_is_not_there(run: Run) -> None:
    assert chosen(run, [[NAN, NAN, 1.0, 9.0], [NAN] * 4], [3, 2], 3) == [[0, 1, 2], [-1, 0, 1]]
    with pytest.raises(EngineError, match="logits are not finite"):
        sample(torch.full((8,), NAN).numpy(), SamplingParams(), 0, 0)


@pytest.mark.parametrize("run", TOPK)
def test_pitfall_26_padding_displaces_no_visible_entry_and_ties_go_to_the_lowest(run: Run) -> None:
    """Scores of minus infinity are visible all the same; what is not visible is never preferred to them."""
    assert chosen(run, [[-INF, -INF, 5.0, 9.0]], [3], 3) == [[0, 1, 2]]
    assert chosen(run, [[-3.4e38, -INF, -3.4e38, 0.0, 0.0]], [3], 2) == [[0, 2]]
    assert chosen(run, [[1.0, 2.0, 1.0, 2.0, 1.0, 2.0]], [6], 4) == [[0, 1, 3, 5]]


@pytest.mark.parametrize("run", TOPK)
def test_pitfall_27_the_end_of_a_short_selection_is_minus_one(run: Run) -> None:
    assert chosen(run, [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [0, 1, 2], 5) == [
        [-1] * 5,
        [-1] * 4 + [0],
        [-1] * 3 + [0, 1],
    ]


def routed(
    run: Run, x: torch.Tensor, gate: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    weights, experts = torch.full((len(x), 2), NAN), torch.full((len(x), 2), -1, dtype=torch.int64)
    run(
        x,
        gate,
        bias=bias,
        table=None,
        token_ids=torch.zeros(len(x), dtype=torch.int64),
        top_k=2,
        scale=1.5,
        scoring="sqrtsoftplus",
        renormalise=True,
        weights=weights,
        experts=experts,
    )
    return weights, experts


@pytest.mark.parametrize("run", ROUTE)
def test_pitfall_28_router_scores_do_not_underflow_and_a_bias_chooses_in_full_precision(run: Run) -> None:
    gate = torch.eye(4)
    weights, experts = routed(run, torch.tensor([[-90.0, -100.0, -110.0, -120.0]]), gate, None)
    assert experts.tolist() == [[0, 1]], "softplus of these is below the smallest float32 normal"
    assert weights.isfinite().all()
    bias = torch.tensor([0.0, 2**-12, 0.0, 0.0])  # lost beside 1 in bfloat16
    _, experts = routed(run, torch.full((1, 4), 1.0), gate, bias)
    assert experts[0, 0].item() == 1


def test_pitfall_29_rope_turns_pairs_at_the_end_and_is_undone_at_the_querys_position() -> None:
    """No extra scale under YaRN (cos^2 + sin^2 = 1); neighbouring pairs of the last dimensions; a table per kind."""
    generator = torch.Generator().manual_seed(1)
    plain, scaled = rope_frequencies(16, 10000.0), rope_frequencies(16, 160000.0, factor=16.0)
    assert not torch.equal(plain, scaled)
    positions = torch.tensor([0, 7, 100_000])
    for frequencies in (plain, scaled):
        cos, sin = rope_table(positions, frequencies)
        assert gap(cos.square() + sin.square(), torch.ones_like(cos)) < 1e-5
        x = torch.randn(3, 2, 24, generator=generator)
        turned = rotate_tail(x.clone(), cos, sin)
        assert torch.equal(turned[..., :8], x[..., :8])
        pairs = turned[..., 8:].unflatten(-1, (8, 2)).norm(dim=-1) - x[..., 8:].unflatten(-1, (8, 2)).norm(dim=-1)
        assert pairs.abs().max() < 1e-5
        assert gap(rotate_tail(turned.clone(), cos, sin, inverse=True), x) < 1e-5
        assert gap(rotate_tail(turned, cos[[1, 2, 0]], sin[[1, 2, 0]], inverse=True), x) > 0.1
    assert len({MODEL.kind(layer).label for layer in range(4)}) == 3


@pytest.mark.parametrize(("pre", "after"), [(mhc_pre_reference, mhc_post_reference), (mhc_pre_cpu, mhc_post_cpu)])
def test_pitfall_30_the_mixing_matrix_goes_from_source_to_target_and_post_reaches_two(pre: Run, after: Run) -> None:
    """A known matrix, not symmetric: its columns are the targets. post = 2 sigmoid, so its mean is 1 and not 0.5."""
    x = torch.randn(2, 4, 64, generator=torch.Generator().manual_seed(2))
    out, post, comb = torch.empty(2, 64), torch.empty(2, 4), torch.empty(2, 4, 4)
    base = torch.zeros(24)
    base[8:] = torch.tensor([[9.0, 0, 0, 0], [0, 0, 9.0, 0], [0, 0, 0, 9.0], [0, 9.0, 0, 0]]).flatten()
    fn, scale = torch.zeros(24, 256), torch.ones(3)
    pre(x, fn, base, scale, rms_eps=1e-6, hc_eps=1e-6, iters=20, out=out, post=post, comb=comb)
    assert gap(post, torch.ones(2, 4)) < 1e-5
    assert gap(comb.sum(1), torch.ones(2, 4)) < 1e-4
    before = x.clone()
    after(torch.zeros(2, 64), post, comb, x)
    assert gap(x, before[:, [0, 3, 1, 2]]) < 1e-2


def test_pitfall_31_a_verified_token_has_the_logits_of_a_decoded_one() -> None:
    """Sums are divided by their total, whatever the shape of the forward."""
    runner, tokens = runner_of(verify_tokens=6), text(5, 135)
    prefill(runner, tokens, stop=125)
    verified = runner.all_logits([BatchItem(1, (1, 2, 3), 125, tokens[125:131])], "decode")
    prefill(runner, tokens, stop=125)
    single = torch.stack([decode(runner, tokens, p) for p in range(125, 131)])
    assert gap(verified, single) < 1e-5
    assert torch.equal(verified.argmax(1), single.argmax(1))


def test_pitfall_34_negative_products_count_as_nothing_and_negative_weights_as_they_are() -> None:
    """Relu on each head's product alone: clipping the sum, or dropping negative weights, changes the selection."""
    q = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    keys = torch.tensor([[1.0, -5.0], [2.0, 1.0], [-1.0, 3.0]])
    weights = torch.tensor([[1.0, -0.5]])
    assert index_score_reference(q, weights, keys).tolist() == [[1.0, 1.5, -1.5]]
    for run in TOPK:
        assert chosen(run, [[1.0, 1.5, -1.5]], [3], 2) == [[0, 1]]
