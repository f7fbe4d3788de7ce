"""The grid of ranks, and the order of collectives: integers and names only."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.presets import PRESETS, preset
from dsv4lab.errors import ConfigError, PlanError
from dsv4lab.overlap.compile import compile_program
from dsv4lab.overlap.ops import Op
from dsv4lab.overlap.plan import OverlapPlan, Rule
from dsv4lab.parallel.layout import Layout, led_by
from dsv4lab.parallel.order import COMM, check_order, collectives
from dsv4lab.parallel.sharding import Sharding
from dsv4lab.timeline.program import ProgramOp, StreamProgram

TINY = preset("tiny")


@given(st.sampled_from([1, 2, 3, 4, 8]), st.sampled_from([1, 2, 4]), st.data())
def test_every_rank_has_one_place(tp: int, dp: int, data: st.DataObject) -> None:
    ep = data.draw(st.sampled_from([n for n in range(1, tp * dp + 1) if tp * dp % n == 0]))
    ranks = [Layout(tp, dp, ep, rank) for rank in range(tp * dp)]
    assert len({(at.dp_rank, at.tp_rank) for at in ranks}) == len({(at.ep_rank, at.moe_tp_rank) for at in ranks})
    assert {at.leader for at in ranks} == {at.rank for at in ranks if at.tp_rank == 0}
    started = [other for at in ranks for other in led_by(at)]
    assert sorted(started) == list(range(1, tp * dp)), "each but rank 0 is started once"
    for at in ranks:
        assert all(ranks[other].rank == other and other > at.rank for other in led_by(at))
        assert at.of_drafter().world_size == (tp if dp > 1 else tp * dp)


@pytest.mark.parametrize("name", ["flash", "pro"])
@pytest.mark.parametrize(
    "layout", [Layout(8, 1, 1), Layout(8, 1, 8), Layout(1, 8, 8), Layout(2, 4, 2), Layout(4, 2, 1)]
)
def test_the_released_models_divide(name: str, layout: Layout) -> None:
    config = PRESETS[name]
    layout.check(config)
    local = layout.local(config)
    assert local.num_attention_heads * layout.tp_size == config.num_attention_heads
    assert local.num_attention_heads // local.o_groups == config.num_attention_heads // config.o_groups
    held = [layout.at(rank).experts(config) for rank in range(8)]
    assert sorted({e for part in held for e in part}) == list(range(config.n_routed_experts))


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (Layout(4), "tp_size = 4: tiny has o_groups = 2, which 4 ranks cannot share evenly; it takes 1 or 2"),
        (Layout(3), "tp_size = 3: tiny has num_attention_heads = 4, .*; it takes 1 or 2"),
        (Layout(1, 16, 16), "ep_size = 16: tiny has n_routed_experts = 8, .*; it takes 1, 2, 4 or 8"),
        (
            Layout(1, 3, 1),
            "tp_size x dp_size / ep_size = 3: tiny has moe_intermediate_size = 32, .* 1, 2, 4, 8, 16 or 32",
        ),
        (Layout(1, 64, 8), "tp_size x dp_size = 64: tiny has n_shared_experts x moe_intermediate_size = 32"),
    ],
)
def test_a_split_that_does_not_come_out_even_names_the_field_and_what_fits(layout: Layout, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        layout.check(TINY)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tp_size": 0}, "tp_size: got 0"),
        ({"tp_size": 16, "dp_size": 8}, "dp_size: got 8, expected at most 64 ranks"),
        ({"tp_size": 2, "ep_size": 3}, "ep_size: got 3, expected a divisor of the 2 ranks"),
        ({"tp_size": 2, "ep_size": 2, "shared_expert_fusion": True}, "shared_expert_fusion: got True"),
        ({"collective_timeout_s": 0}, "collective_timeout_s: got 0"),
    ],
)
def test_sizes_are_checked_by_name(fields: dict[str, int], text: str) -> None:
    with pytest.raises(ConfigError, match=f"engine config: {text}"):
        EngineConfig("tiny", **fields)  # type: ignore[arg-type]


def test_what_is_replicated_is_whole_everywhere() -> None:
    sharding = Sharding(Layout(2, 1, 1, 1), TINY)
    whole = (
        "layers.1.attn.wq_a.weight", "layers.1.attn.wkv.weight", "layers.1.attn.indexer.wq_b.weight",
        "layers.1.attn.indexer.weights_proj.weight", "layers.1.attn.compressor.wkv.weight", "layers.1.ffn.gate.weight",
        "layers.0.ffn.gate.tid2eid", "layers.1.hc_attn_fn", "mtp.0.e_proj.weight", "norm.weight",
        "mtp.2.markov_head.markov_w2.weight",
    )  # fmt: skip
    assert [sharding.part(name, (64, 64)) for name in whole] == [None] * len(whole)
    split = (
        "embed.weight",
        "head.weight",
        "mtp.0.attn.wq_b.weight",
        "layers.1.attn.attn_sink",
        "mtp.2.attn.wo_a.weight",
    )
    assert all(sharding.part(name, (64, 64)) is not None for name in split)


def test_a_tensor_that_does_not_split_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^mtp.0.ffn.experts.1.w2.weight: dimension 1 of \[64, 33\] does not split"):
        Sharding(Layout(2), TINY).part("mtp.0.ffn.experts.1.w2.weight", (64, 33))


def _program(*ops: ProgramOp) -> StreamProgram:
    return StreamProgram(ops, ("main", "side0", "side1"), "planted", "decode", 1)


def _op(index: int, stream: str, waits: tuple[int, ...] = (), comm: bool = True) -> ProgramOp:
    touched = (COMM,) if comm else (f"r{index}",)
    return ProgramOp(index, f"op{index}.all_reduce", 0, stream, waits, waits, touched, touched)


def test_collectives_on_unordered_streams_are_refused() -> None:
    with pytest.raises(
        PlanError, match=r"plan planted: L0.op1.all_reduce on side0 does not wait for L0.op0.all_reduce"
    ):
        check_order(_program(_op(0, "main"), _op(1, "side0")))
    chained = _program(_op(0, "main"), _op(1, "side1", (0,), comm=False), _op(2, "side0", (1,)))
    check_order(chained)
    assert [op.index for op in collectives(chained)] == [0, 2]
    with pytest.raises(PlanError, match="different orders"):  # the wait comes one op too early
        check_order(_program(_op(0, "main", comm=False), _op(1, "main"), _op(2, "side0", (0,))))


NAMES = [f"a{i}" for i in range(6)]


@given(
    st.lists(st.sampled_from(["main", "side0", "side1", "side2"]), min_size=6, max_size=6), st.permutations(range(6))
)
def test_whatever_a_plan_does_the_scoreboard_keeps_collectives_in_order(streams: list[str], order: list[int]) -> None:
    """Also with another issue order: one that moves a collective before another is illegal already."""
    ops = [Op(n, lambda _: None, (f"x{i}", COMM), (f"x{i}", COMM)) for i, n in enumerate(NAMES)]
    plan = OverlapPlan("any", tuple(Rule(n, s) for n, s in zip(NAMES, streams, strict=True)))
    compiled = compile_program(ops, plan, "decode", 1)
    check_order(compiled.program)
    assert [op.name for op in collectives(compiled.program)] == NAMES
    if order != sorted(order):
        with pytest.raises(PlanError, match="illegal issue order"):
            compile_program(ops, plan, "decode", 1, order)


def test_a_collective_that_hides_its_link_is_found() -> None:
    """What the check is for: an op list in which collectives do not share the resource."""
    ops = [Op(n, lambda _: None, (n,), (n, COMM) if n == "a0" else (n,)) for n in NAMES]
    planted = [replace(op, writes=(*op.writes, COMM), reads=op.reads) for op in ops]
    plan = OverlapPlan("any", tuple(Rule(n, f"side{i}") for i, n in enumerate(NAMES)))
    program = compile_program(ops, plan, "decode", 1).program
    hidden = StreamProgram(
        tuple(replace(op, writes=planted[op.index].writes) for op in program.ops),
        program.streams, program.plan, program.mode, program.tokens,
    )  # fmt: skip
    with pytest.raises(PlanError, match="block for ever"):
        check_order(hidden)
