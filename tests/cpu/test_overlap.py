"""Every plan is correct by construction: same bits, whatever the streams, the queues and the issue order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from dsv4lab.checkpoint.synthetic import random_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.presets import preset
from dsv4lab.engine.runner import Runner
from dsv4lab.errors import EngineError, HazardError, PlanError
from dsv4lab.kv.metadata import BatchItem
from dsv4lab.overlap.arena import Arena, Lane
from dsv4lab.overlap.audit import audit
from dsv4lab.overlap.compile import compile_program
from dsv4lab.overlap.ops import Op, fuse
from dsv4lab.overlap.plan import OverlapPlan, Rule, resolve_plan
from dsv4lab.overlap.streams import SerialStreams
from dsv4lab.overlap.streams_cpu import QueueStreams

MODEL = preset("tiny")
WILD = OverlapPlan(
    "wild",
    (
        Rule("moe.shared", "side3"),
        Rule("q_norm*", "side1"),
        Rule("indexer.*", "side2", layers="csa"),
        Rule("mhc_post", "side0"),
        Rule("compressor.gemm", "side2"),
        Rule("kv_norm*", "side4"),
        Rule("ring_store", "side5"),
    ),
)
PLANS = ["off", "hip", "cuda", "moe", "cuda+moe", "side+query+moe", "side+query+route", "keys+moe", WILD]


def make_runner(**changes: object) -> Runner:
    config = EngineConfig(
        "tiny", **{"streams": "serial", "max_running_requests": 3, "max_total_tokens": 2048, **changes}
    )  # type: ignore[arg-type]
    return Runner(MODEL, random_weights(MODEL, 0), config)


def tokens(seed: int, n: int) -> tuple[int, ...]:
    return tuple(torch.randint(2, MODEL.vocab_size, (n,), generator=torch.Generator().manual_seed(seed)).tolist())


def session(runner: Runner) -> torch.Tensor:
    """Two requests: chunked prefill, then decode across a 4- and a 128-boundary. All logits, stacked."""
    a, b = tokens(1, 270), tokens(2, 140)
    for slot in (1, 2):
        runner.reset_slot(slot)
    out = [runner.forward([BatchItem(1, (2, 4), 0, a[:190])], "prefill").logits]
    out.append(
        runner.forward([BatchItem(1, (2, 4), 190, a[190:250]), BatchItem(2, (3,), 0, b[:124])], "prefill").logits
    )
    for i in range(8):
        items = [BatchItem(1, (2, 4), 250 + i, (a[250 + i],)), BatchItem(2, (3,), 124 + i, (b[124 + i],))]
        out.append(runner.forward(items, "decode").logits)
    return torch.cat(out)


@pytest.fixture(scope="module")
def serial_bits() -> torch.Tensor:
    return session(make_runner())


@pytest.fixture
def runner() -> Iterator[Runner]:
    made = make_runner()
    yield made
    made.close()


@pytest.mark.parametrize("policy", ["round_robin", "refcount"])
@pytest.mark.parametrize("hw_queues", [1, 2, 3, 4, 8])
def test_same_bits_for_every_plan_queue_count_and_mapping(
    serial_bits: torch.Tensor, hw_queues: int, policy: str
) -> None:
    runner = make_runner(streams="queue", hw_queues=hw_queues, queue_policy=policy)
    for plan in PLANS:
        runner.set_plan(plan)
        assert torch.equal(session(runner), serial_bits), f"{plan} on {hw_queues} queues, {policy}"
    runner.close()


def test_folded_side_streams_give_the_same_bits(serial_bits: torch.Tensor) -> None:
    for n in range(4):
        runner = make_runner(streams="queue", plan="cuda", side_streams=n)
        assert len(runner.program("decode", 1).streams) == n + 1
        assert torch.equal(session(runner), serial_bits)
        runner.close()


def _random_order(deps: Sequence[Sequence[int]], rng: random.Random) -> list[int]:
    """A random topological order."""
    left = [set(d) for d in deps]
    ready = [i for i, d in enumerate(left) if not d]
    order = []
    while ready:
        i = ready.pop(rng.randrange(len(ready)))
        order.append(i)
        for j, d in enumerate(left):
            if i in d:
                d.remove(i)
                if not d:
                    ready.append(j)
    return order


@pytest.mark.parametrize("mode", ["decode", "prefill"])
def test_200_random_legal_issue_orders_give_the_same_bits(runner: Runner, mode: str) -> None:
    prompt = tokens(3, 131)
    runner.forward([BatchItem(1, (1,), 0, prompt[:123])], "prefill")
    items = [BatchItem(1, (1,), 123, prompt[123:124] if mode == "decode" else prompt[123:131])]
    saved = {name: [t.clone() for t in tensors] for name, tensors in runner.resources().items()}

    def replay(order: list[int] | None) -> torch.Tensor:
        for name, tensors in runner.resources().items():
            for now, old in zip(tensors, saved.get(name, []), strict=False):
                now.copy_(old)
        shape = runner.prepare(items, mode)  # type: ignore[arg-type]
        compiled = compile_program(runner.op_list(mode, shape.tokens, shape.outputs), plan, mode, shape.tokens, order)  # type: ignore[arg-type]
        SerialStreams().run(compiled, runner.arena)
        return runner.arena.buffers["logits"][: shape.outputs].clone()

    for plan, count in ((WILD, 100), (resolve_plan("off"), 100)):
        shape = runner.prepare(items, mode)  # type: ignore[arg-type]
        program = compile_program(runner.op_list(mode, shape.tokens, shape.outputs), plan, mode, shape.tokens).program  # type: ignore[arg-type]
        expected, rng = replay(None), random.Random(plan.name)
        orders = {tuple(_random_order([o.deps for o in program.ops], rng)) for _ in range(count)}
        assert len(orders) > 1
        for order in orders:
            assert torch.equal(replay(list(order)), expected)


@pytest.mark.parametrize("mode", ["decode", "prefill"])
def test_ring_store_and_compressed_store_have_no_edge(runner: Runner, mode: str) -> None:
    runner.set_plan("cuda")
    program = runner.program(mode, 3)  # type: ignore[arg-type]
    store = "kv_norm_rope_store" if mode == "decode" else "ring_store"
    for layer in (1, 2, 3):
        ring = next(o for o in program.ops if o.layer == layer and o.name == store)
        compressed = next(o for o in program.ops if o.layer == layer and o.name == "compressor.store")
        first, second = sorted((ring.index, compressed.index))
        assert first not in program.ops[second].deps
        assert not {f"kv.{layer}.ring", f"kv.{layer}.rows"} <= {*ring.writes, *compressed.writes} & {*ring.writes}


@pytest.mark.parametrize("plan", ["hip", "cuda"])
def test_side_streams_depend_only_on_the_layer_input(runner: Runner, plan: str) -> None:
    """The compressor forks right behind the attention norm and joins at attention (dsv4-spec 6.1)."""
    runner.set_plan(plan)
    program = runner.program("decode", 1)
    names = {o.index: o.name for o in program.ops}
    gemm = next(o for o in program.ops if o.layer == 2 and o.name == "compressor.gemm")
    assert gemm.stream != "main"
    assert "mhc_post_pre" in {names[w] for w in gemm.waits}
    attention = next(o for o in program.ops if o.layer == 2 and o.name == "attention")
    assert "compressor.store" in {names[w] for w in attention.waits}
    assert attention.stream == "main"


@pytest.mark.parametrize("mode", ["decode", "prefill"])
def test_audit_finds_every_declaration_true(runner: Runner, mode: str) -> None:
    prompt = tokens(4, 140)
    runner.forward([BatchItem(1, (1,), 0, prompt[:127])], "prefill")
    n = 1 if mode == "decode" else 9
    shape = runner.prepare([BatchItem(1, (1,), 127, prompt[127 : 127 + n])], mode)  # type: ignore[arg-type]
    ops = runner.op_list(mode, shape.tokens, shape.outputs)  # type: ignore[arg-type]
    audit(ops, runner.resources(), runner.arena)
    audit([part for op in ops for part in (op.parts or (op,))], runner.resources(), runner.arena)


@pytest.mark.parametrize(
    ("op", "field", "resource"),
    [
        ("attention", "reads", "kv.1.rows"),
        ("compressor.store", "writes", "kv.1.rows"),
        ("compressor.store", "writes", "state.1"),
        ("compressor.store", "reads", "state.1"),
        ("indexer.topk", "reads", "index_k.1"),
        ("qk_norm_rope_store", "writes", "kv.1.ring"),
        ("indexer.csa_tail", "reads", "indexer.topk"),
        ("moe.experts", "reads", "moe.weights"),
        ("moe.experts", "reads", "moe.expert_ids"),
        ("mhc_post_pre", "reads", "attn.out"),
    ],
)
def test_a_missing_declaration_is_caught_by_name(runner: Runner, op: str, field: str, resource: str) -> None:
    prompt = tokens(5, 128)
    runner.forward([BatchItem(1, (1,), 0, prompt[:127])], "prefill")
    shape = runner.prepare([BatchItem(1, (1,), 127, prompt[127:])], "decode")
    ops = runner.op_list("decode", shape.tokens, shape.outputs)
    at = next(i for i, o in enumerate(ops) if o.name == op and o.layer == 1)
    assert resource in getattr(ops[at], field)
    kept = tuple(r for r in getattr(ops[at], field) if r != resource)
    broken = [*ops[:at], replace(ops[at], **{field: kept}), *ops[at + 1 :]]
    with pytest.raises(HazardError, match=rf"op L1\.{op} .*{resource.replace('.', '[.]')}"):
        audit(broken, runner.resources(), runner.arena)


def test_an_unknown_op_is_an_error_that_lists_the_ops(runner: Runner) -> None:
    before = runner.plan
    with pytest.raises(PlanError, match=r"no op matches 'compresor\.\*'; the ops are embed, .*compressor\.gemm"):
        runner.set_plan(OverlapPlan("typo", (Rule("compresor.*", "side0"),)))
    assert runner.plan == before


def test_a_plan_that_separates_the_parts_runs_the_parts(runner: Runner) -> None:
    fused = {o.name for o in runner.program("decode", 1).ops}
    runner.set_plan(OverlapPlan("split", (Rule("kv_norm_rope*", "side0"), Rule("mhc_pre", "side1"))))
    split = {o.name for o in runner.program("decode", 1).ops}
    assert {"qk_norm_rope_store", "mhc_post_pre"} <= fused
    assert not {"q_norm_rope", "mhc_post", "kv_norm_rope_store"} <= fused
    assert {"q_norm_rope", "kv_norm_rope_store", "mhc_post", "mhc_pre"} <= split
    assert not {"qk_norm_rope_store", "mhc_post_pre"} & split


@pytest.mark.parametrize("mode", ["decode", "prefill"])
def test_fused_against_parts(runner: Runner, mode: str) -> None:
    prompt = tokens(6, 135)
    runner.forward([BatchItem(1, (1,), 0, prompt[:126])], "prefill")
    items = [BatchItem(1, (1,), 126, prompt[126 : 127 if mode == "decode" else 135])]
    shape = runner.prepare(items, mode)  # type: ignore[arg-type]
    ops = runner.op_list(mode, shape.tokens, shape.outputs)  # type: ignore[arg-type]
    assert any(op.parts for op in ops)
    parts = [part for op in ops for part in (op.parts or (op,))]
    lane = Lane("main", runner.arena)
    results = []
    saved = {name: [t.clone() for t in ts] for name, ts in runner.resources().items()}
    for variant in (ops, parts):
        for name, tensors in runner.resources().items():
            for now, old in zip(tensors, saved.get(name, []), strict=False):
                now.copy_(old)
        for op in variant:
            op.run(lane)
        results.append({name: [t.clone() for t in ts] for name, ts in runner.resources().items()})
    for name, left in results[0].items():
        for a, b in zip(left, results[1][name], strict=True):
            assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), name


def test_a_fused_op_of_one_stream_is_taken_apart_where_the_plan_splits_it() -> None:
    parts = [_op("a", ("x",), ("y",)), _op("b", ("x",), ("z",))]
    ops = [fuse("both", lambda _: None, parts)]
    names = {
        plan.name: [op.name for op in compile_program(ops, plan, "decode", 1).program.ops]
        for plan in (OverlapPlan("whole"), OverlapPlan("apart", (), ("bo*",)), OverlapPlan("other", (), ("mhc*",)))
    }
    assert names == {"whole": ["both"], "apart": ["a", "b"], "other": ["both"]}


def test_buffers_side_by_side_are_columns_of_one() -> None:
    arena = Arena(4)
    whole = arena.side_by_side(3, {"left": 2, "right": 3}, torch.float32)
    whole.copy_(torch.arange(15.0).view(3, 5))
    assert torch.equal(arena.view("left", 3, (2,), torch.float32), whole[:, :2])
    assert torch.equal(arena.view("right", 3, (3,), torch.float32), whole[:, 2:])
    assert arena.side_by_side(4, {"left": 2, "right": 3}, torch.float32).data_ptr() == whole.data_ptr()
    with pytest.raises(EngineError, match="buffer left has memory of its own already"):
        arena.side_by_side(3, {"left": 2, "more": 3}, torch.float32)
    with arena.no_alloc(), pytest.raises(EngineError, match="one and two would be allocated"):
        arena.side_by_side(3, {"one": 1, "two": 1}, torch.float32)


def test_a_replay_asks_for_no_new_buffer_and_keeps_addresses(runner: Runner) -> None:
    prompt = tokens(7, 140)
    runner.forward([BatchItem(1, (1,), 0, prompt[:120])], "prefill")
    runner.forward([BatchItem(1, (1,), 120, prompt[120:121])], "decode")
    before = {name: t.data_ptr() for name, t in runner.arena.buffers.items()}
    with runner.arena.no_alloc():
        for i in range(121, 134):
            runner.forward([BatchItem(1, (1,), i, prompt[i : i + 1])], "decode")
        with pytest.raises(EngineError, match="fresh would be allocated inside no_alloc"):
            runner.arena.view("fresh", 1, (2,), torch.float32)
    assert {name: t.data_ptr() for name, t in runner.arena.buffers.items()} == before


def _op(name: str, reads: tuple[str, ...], writes: tuple[str, ...], run: object = lambda _: None) -> Op:
    return Op(name, run, reads, writes)  # type: ignore[arg-type]


def test_a_failing_op_ends_the_replay_and_leaves_the_queues_usable() -> None:
    def fail(_: Lane) -> None:
        raise RuntimeError("planted")

    ran: list[str] = []
    ops = [
        _op("a", (), ("r",), fail),
        _op("b", ("r",), ("s",), lambda _: ran.append("b")),
        _op("c", ("s",), (), lambda _: ran.append("c")),
    ]
    plan = OverlapPlan("p", (Rule("b", "side0"),))
    streams = QueueStreams(2)
    arena = Arena(1)
    with pytest.raises(RuntimeError, match="planted"):
        streams.run(compile_program(ops, plan, "decode", 1), arena)
    assert ran == []
    streams.run(compile_program(ops[1:], plan, "decode", 1), arena)
    assert ran == ["b", "c"]
    streams.close()
    with pytest.raises(EngineError, match="closed"):
        streams.run(compile_program(ops[1:], plan, "decode", 1), arena)


def test_streams_on_one_queue_run_in_issue_order_and_others_overlap() -> None:
    """side1 shares the queue of main when there are two queues: its packet waits behind main's."""
    ran: list[str] = []
    ops = [_op(n, (), (n,), lambda _, n=n: ran.append(n)) for n in ("a", "b", "c", "d")]
    plan = OverlapPlan("p", (Rule("b", "side0"), Rule("c", "side1")))
    streams = QueueStreams(2)
    record = streams.run(compile_program(ops, plan, "decode", 1), Arena(1))
    assert record.queue_of == {"main": 0, "side0": 1, "side1": 0}
    assert [n for n in ran if n != "b"] == ["a", "c", "d"]
    assert (record.end_ns >= record.start_ns).all()
    assert (record.start_ns >= record.head_ns).all()
    assert (record.head_ns >= record.queued_ns).all()
    streams.close()


def test_scratch_is_private_to_a_stream() -> None:
    arena = Arena(4)
    main, side = Lane("main", arena), Lane("side0", arena)
    a = main.scratch("partials", (8,), torch.float32)
    assert a.data_ptr() == main.scratch("partials", (2, 4), torch.float32).data_ptr()
    assert a.data_ptr() != side.scratch("partials", (8,), torch.float32).data_ptr()
