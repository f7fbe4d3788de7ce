"""Ranks as threads of this process, over real gloo groups: the tokens of one process, the same bits under any plan."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist

from dsv4lab.checkpoint.source import stored_weights
from dsv4lab.checkpoint.synth import write_synthetic
from dsv4lab.checkpoint.synthetic import random_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.from_json import load_model_config
from dsv4lab.config.model import ModelConfig
from dsv4lab.config.presets import preset
from dsv4lab.engine.runner import Runner
from dsv4lab.errors import CollectiveError, ConfigError, PlanError
from dsv4lab.kv.metadata import BatchItem
from dsv4lab.overlap.arena import Arena, Lane
from dsv4lab.overlap.audit import audit
from dsv4lab.overlap.plan import OverlapPlan, Rule, resolve_plan
from dsv4lab.parallel.groups import ALONE, Parallel, backend_of, open_groups
from dsv4lab.parallel.layout import Layout
from dsv4lab.parallel.order import collectives
from dsv4lab.parallel.sharding import Sharding
from dsv4lab.trace.collectives import is_collective
from tests.cpu.fake_device import FakeDevice

TINY = preset("tiny")
SMALL = replace(TINY, compress_ratios=(4, 0), num_hash_layers=1, dspark=None)
PROMPT = tuple(torch.randint(2, TINY.vocab_size, (90,), generator=torch.Generator().manual_seed(4)).tolist())
PAGES = (1, 2)
NEW = 5
T = TypeVar("T")


def as_ranks(layout: Layout, work: Callable[[Parallel], T], timeout_s: float = 60.0) -> list[T]:
    """``work`` of every rank's groups, one thread each; what a rank raises is raised here."""
    store, found, errors = dist.HashStore(), {}, []

    def play(rank: int) -> None:
        try:
            parallel = open_groups(layout.at(rank), store, "cpu", timeout_s)
            found[rank] = work(parallel)
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            errors.append(error)

    threads = [threading.Thread(target=play, args=(rank,)) for rank in range(layout.world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [found[rank] for rank in range(layout.world_size)]


def runner_of(parallel: Parallel, model: ModelConfig = TINY, **fields: Any) -> Runner:
    at = parallel.layout
    config = EngineConfig(
        "tiny", max_running_requests=2, chunked_prefill_size=64, tp_size=at.tp_size, dp_size=at.dp_size,
        ep_size=at.ep_size, **{"streams": "serial", "max_total_tokens": 1024, **fields},
    )  # fmt: skip
    sharding = None if parallel is ALONE else Sharding(at, model)
    weights = random_weights(model, 0, getattr(torch, config.dtype), sharding)
    return Runner(model, weights, config, (), parallel)


@dataclass
class Answer:
    tokens: list[int]
    logits: torch.Tensor


def generate(runner: Runner) -> Answer:
    """Two prefill chunks, decode steps, and a verify step of three tokens."""
    rows = []
    for a, b in ((0, 64), (64, len(PROMPT))):
        rows = [runner.forward([BatchItem(1, PAGES, a, PROMPT[a:b])], "prefill").logits]
    tokens = [int(rows[-1].argmax())]
    while len(tokens) < NEW:
        item = BatchItem(1, PAGES, len(PROMPT) + len(tokens) - 1, (tokens[-1],))
        rows.append(runner.forward([item], "decode").logits)
        tokens.append(int(rows[-1].argmax()))
    if runner.geometry.max_verify_tokens > 2:
        item = BatchItem(1, PAGES, len(PROMPT) + len(tokens) - 1, (tokens[-1], 7, 8))
        rows.append(runner.forward([item], "decode", all_rows=True).logits)
    return Answer(tokens, torch.cat(rows))


@pytest.fixture(scope="module")
def alone() -> Answer:
    return generate(runner_of(ALONE, verify_tokens=3))


def close_to(answer: Answer, expected: Answer) -> bool:
    return answer.tokens == expected.tokens and bool((answer.logits - expected.logits).abs().max() < 1e-4)


@pytest.mark.parametrize("layout", [Layout(2), Layout(2, 1, 2)], ids=["tp2", "tp2 ep2"])
def test_two_ranks_of_one_group_compute_what_one_process_does(layout: Layout, alone: Answer) -> None:
    first, second = as_ranks(layout, lambda p: generate(runner_of(p, verify_tokens=3)))
    assert torch.equal(first.logits, second.logits), "ranks of a group must agree to the bit"
    assert close_to(first, alone)


def test_two_ranks_in_bf16() -> None:
    """The parts of a sum are rounded before it, so logits differ in the last places of bf16; by more where the router
    chooses between two that are nearly equal.
    """

    def work(parallel: Parallel) -> torch.Tensor:
        runner = runner_of(parallel, dtype="bfloat16")
        return runner.all_logits([BatchItem(1, PAGES, 0, PROMPT[:20])], "prefill")

    first, second = as_ranks(Layout(2), work)
    assert torch.equal(first, second)
    distances = (first - work(ALONE)).abs().amax(1)
    assert distances.median() < 0.03 * first.abs().max()


@pytest.mark.parametrize("layout", [Layout(1, 2), Layout(1, 2, 2)], ids=["dp2", "dp2 ep2"])
def test_two_groups_share_the_experts_of_different_forwards(layout: Layout, alone: Answer) -> None:
    """One generates; the other has no tokens, then decodes on its own while the first has none."""

    def work(parallel: Parallel) -> tuple[Answer, int]:
        runner = runner_of(parallel, verify_tokens=3)
        idle = 0
        if parallel.layout.rank == 1:
            while runner.rounds < NEW + 2:
                idle += runner.idle_forward() is not None
        answer = generate(runner)
        if parallel.layout.rank == 0:
            while runner.idle_forward() is not None:
                idle += 1
        else:
            assert runner.idle_forward() is None, "nobody has tokens any more"
        return answer, idle

    for answer, idle in as_ranks(layout, work):
        assert close_to(answer, alone)
        assert idle == NEW + 2


def test_groups_of_two_in_two_groups(alone: Answer) -> None:
    def work(parallel: Parallel) -> Answer | None:
        runner = runner_of(parallel, verify_tokens=3)
        if parallel.layout.dp_rank == 0:
            answer = generate(runner)
            runner.idle_forward()
            return answer
        while runner.idle_forward() is not None:
            pass
        return None

    first, second, *others = as_ranks(Layout(2, 2, 2), work)
    assert others == [None, None]
    assert first is not None
    assert second is not None
    assert torch.equal(first.logits, second.logits)
    assert close_to(first, alone)


def test_groups_that_run_forwards_of_different_kinds_together(alone: Answer) -> None:
    """Prefill here, decode there: the longer one's rows are brought by both."""

    def work(parallel: Parallel) -> torch.Tensor:
        runner = runner_of(parallel)
        other = tuple(reversed(PROMPT[:20]))
        if parallel.layout.rank == 1:
            runner.forward([BatchItem(1, PAGES, 0, other)], "prefill")
            return runner.forward([BatchItem(1, PAGES, 20, (9,))], "decode").logits
        runner.idle_forward()
        return runner.forward([BatchItem(1, PAGES, 0, PROMPT[:64])], "prefill").logits

    first, second = as_ranks(Layout(1, 2), work)
    one = runner_of(ALONE)
    assert (one.forward([BatchItem(1, PAGES, 0, PROMPT[:64])], "prefill").logits - first).abs().max() < 1e-4
    one.forward([BatchItem(2, (3,), 0, tuple(reversed(PROMPT[:20])))], "prefill")
    assert (one.forward([BatchItem(2, (3,), 20, (9,))], "decode").logits - second).abs().max() < 1e-4


SCATTERED = OverlapPlan(
    "scattered",
    (
        Rule("moe.all_reduce", "side0", layers="csa"),
        Rule("attn.all_reduce", "side1"),
        Rule("moe.shared", "side2"),
        Rule("compressor.*", "side1"),
        Rule("lm_head.*", "side0"),
    ),
)
"""Collectives on three streams."""


def test_every_plan_gives_the_same_bits_on_every_stream_of_every_rank(alone: Answer) -> None:
    def work(parallel: Parallel) -> list[torch.Tensor]:
        runner = runner_of(parallel, streams="queue", hw_queues=3, verify_tokens=3)
        answers = []
        for plan in ("off", "hip", "cuda+moe", SCATTERED):
            runner.set_plan(plan)
            runner.reset_slot(1)
            answers.append(generate(runner).logits)
        names = [op.label for op in collectives(runner.program("decode", 1))]
        assert names == ["embed.all_reduce", *(f"L{i}.{part}.all_reduce" for i in range(4) for part in ("attn", "moe")),
                         "lm_head.all_gather"]  # fmt: skip
        assert all(map(is_collective, names)), "traces must take them for communication"
        runner.close()
        return answers

    first, second = as_ranks(Layout(2), work)
    assert all(torch.equal(logits, first[0]) for logits in [*first, *second])
    assert (first[0] - alone.logits).abs().max() < 1e-4


def test_plan_auto_goes_by_the_slowest_rank_on_all_of_them() -> None:
    """Each rank on a recorded device whose replays take this long by their streams; alone they would disagree."""
    prices = ({1: 100.0, 2: 90.0, 3: 50.0, 4: 50.0}, {1: 100.0, 2: 80.0, 3: 200.0, 4: 200.0})

    def work(parallel: Parallel) -> tuple[str, list[int]]:
        torch.set_num_threads(1)
        device, price = FakeDevice(), prices[parallel.layout.rank]
        device.price = lambda graph: price[graph.streams]
        config = EngineConfig("tiny", plan="auto", max_running_requests=2, max_total_tokens=1024, tp_size=2)
        weights = random_weights(SMALL, 0, torch.float32, Sharding(parallel.layout, SMALL))
        runner = Runner(SMALL, weights, config, (), parallel, device=device)
        out = [int(runner.forward([BatchItem(1, PAGES, 0, PROMPT)], "prefill").logits[0].argmax())]
        for i in range(3):
            item = BatchItem(1, PAGES, len(PROMPT) + i, (out[-1],))
            out.append(int(runner.forward([item], "decode").logits[0].argmax()))
        assert runner.gpu is not None
        ((_, choice),) = runner.gpu.choices.items()
        return choice.plan.name, out

    (plan, tokens), other = as_ranks(Layout(2), work)
    assert other == (plan, tokens)
    assert len(resolve_plan(plan).side_streams) == 1


def test_ops_of_ranks_touch_what_they_declare() -> None:
    def work(parallel: Parallel) -> None:
        runner = runner_of(parallel, model=SMALL, max_total_tokens=256)
        runner.forward([BatchItem(1, (1,), 0, PROMPT[:9])], "prefill")
        shape = runner.prepare([BatchItem(1, (1,), 9, (5,))], "decode")
        with torch.inference_mode():
            audit(runner._programs.ops(shape), runner.resources(), runner.arena)

    as_ranks(Layout(1, 2, 2), work)
    as_ranks(Layout(2), work)


@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_a_fused_shared_expert_gives_the_same_sums(tokens: int) -> None:
    """Tolerance: a few roundings of fp32. Fused, the shared expert is the last addend, as it is unfused; only the
    shape of its products differs.
    """
    plain, fused = runner_of(ALONE), runner_of(ALONE, shared_expert_fusion=True)
    items = [BatchItem(1, PAGES, 0, PROMPT[:tokens])]
    a, b = (runner.all_logits(items, "prefill") for runner in (plain, fused))
    assert (a - b).abs().max() < 2e-5
    assert {op.name for op in plain.op_list("decode", 1)} - {op.name for op in fused.op_list("decode", 1)} == {
        "moe.shared"
    }
    with pytest.raises(PlanError, match=r"no op matches 'moe.shared'"):
        fused.set_plan("moe")


def test_two_ranks_with_a_fused_shared_expert(alone: Answer) -> None:
    first, _ = as_ranks(Layout(2), lambda p: generate(runner_of(p, verify_tokens=3, shared_expert_fusion=True)))
    assert close_to(first, alone)


def test_fusion_takes_one_shared_expert() -> None:
    two = replace(TINY, n_shared_experts=2, compress_ratios=(0,))
    with pytest.raises(ConfigError, match="shared_expert_fusion: tiny has 2 shared experts"):
        Runner(two, random_weights(two, 0), EngineConfig("tiny", streams="serial", shared_expert_fusion=True))


def test_sums_are_in_rank_order_and_the_same_everywhere() -> None:
    parts = [torch.tensor([1e8, 1.0]), torch.tensor([1.0, 2.0]), torch.tensor([-1e8, 3.0])]

    def work(parallel: Parallel) -> tuple[torch.Tensor, torch.Tensor]:
        assert parallel.tp is not None
        lane = Lane("main", Arena(4))
        x = parts[parallel.tp.rank].clone()
        parallel.tp.all_reduce(x, lane)
        out = torch.empty(2)
        parallel.tp.reduce_scatter(torch.stack([p * (parallel.tp.rank + 1) for p in parts]), out, lane)
        return x, out

    got = as_ranks(Layout(3), work)
    assert all(torch.equal(total, torch.stack(parts).sum(0)) for total, _ in got)
    assert [out.tolist() for _, out in got] == [(6 * p).tolist() for p in parts]


def test_a_rank_that_does_not_come_is_waited_for_with_a_limit() -> None:
    with pytest.raises(CollectiveError, match="start of tp0"):
        open_groups(Layout(2), dist.HashStore(), "cpu", 0.5)


def test_a_rank_that_leaves_is_missed_by_the_collective_that_needs_it() -> None:
    def work(parallel: Parallel) -> None:
        assert parallel.tp is not None
        if parallel.layout.rank == 1:
            parallel.close()
        else:
            parallel.tp.all_reduce(torch.ones(3), Lane("main", Arena(4)))

    with pytest.raises(CollectiveError, match="all_gather of tp0"):
        as_ranks(Layout(2), work)


def test_backends_by_device() -> None:
    assert backend_of("cpu") == "gloo"
    if not dist.is_nccl_available():
        from dsv4lab.errors import UnavailableError

        with pytest.raises(UnavailableError, match="several ranks on cuda take the nccl backend"):
            backend_of("cuda")


def test_ranks_keep_quantised_weights_as_stored(tmp_path: Path) -> None:
    """Shapes whose halves keep to blocks of scales; a rank has the codes of one process, and so its numbers."""
    model = replace(
        TINY, name="blocks", hidden_size=128, o_lora_rank=128, moe_intermediate_size=256, n_routed_experts=4,
        compress_ratios=(0, 4), num_hash_layers=1, dspark=None, mtp_layers=0,
    )  # fmt: skip
    write_synthetic(tmp_path, model, weights="fp4")
    read = load_model_config(tmp_path)

    def answer(parallel: Parallel) -> Answer:
        at = parallel.layout
        config = EngineConfig(
            str(tmp_path), streams="serial", max_running_requests=2, max_total_tokens=512, chunked_prefill_size=64,
            weights="stored", tp_size=at.tp_size, ep_size=at.ep_size,
        )  # fmt: skip
        sharding = None if parallel is ALONE else Sharding(at, read)
        tensors = stored_weights(str(tmp_path), read, 0, torch.float32, None, sharding)
        return generate(Runner(read, tensors, config, (), parallel))

    expected = answer(ALONE)
    for layout in (Layout(2), Layout(2, 1, 2)):
        first, second = as_ranks(layout, answer)
        assert torch.equal(first.logits, second.logits)
        assert close_to(first, expected)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [Layout(4), Layout(8), Layout(8, 1, 8), Layout(1, 8, 8), Layout(2, 4, 2)], ids=str)
def test_four_and_eight_ranks(layout: Layout) -> None:
    wide = replace(
        TINY, name="wide", num_attention_heads=8, o_groups=8, moe_intermediate_size=64, compress_ratios=(0, 4, 128)
    )
    expected = generate(runner_of(ALONE, model=wide))

    def work(parallel: Parallel) -> Answer | None:
        runner = runner_of(parallel, model=wide)
        if parallel.layout.dp_rank == 0:
            answer = generate(runner)
            runner.idle_forward()
            return answer
        while runner.idle_forward() is not None:
            pass
        return None

    answers = [answer for answer in as_ranks(layout, work, timeout_s=300.0) if answer is not None]
    assert len(answers) == layout.tp_size
    assert all(torch.equal(answer.logits, answers[0].logits) for answer in answers)
    assert close_to(answers[0], expected)
