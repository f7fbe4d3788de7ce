"""On a GPU: the whole model under every plan, as graphs and eagerly, with the same bits; captures; the probe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from dsv4lab.checkpoint.synthetic import random_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.presets import preset
from dsv4lab.engine.device_runs import DeviceRuns
from dsv4lab.engine.placement import device_api, place_of
from dsv4lab.engine.runner import Runner
from dsv4lab.errors import EngineError
from dsv4lab.kv.metadata import BatchItem
from dsv4lab.overlap.arena import Arena, Lane
from dsv4lab.overlap.compile import compile_program
from dsv4lab.overlap.graphs import GraphCache
from dsv4lab.overlap.ops import Op
from dsv4lab.overlap.plan import OverlapPlan, Rule
from dsv4lab.overlap.spin import SpinBench
from dsv4lab.overlap.streams_device import DeviceStreams
from dsv4lab.predict.probe import probe

pytestmark = pytest.mark.gpu

MODEL = replace(preset("demo"), compress_ratios=(0, 4, 128, 4), num_hash_layers=1)
PLANS = (
    "off",
    "hip",
    "cuda",
    "moe",
    "cuda+moe",
    "side+query+moe",
    "side+query+moe+high",
    "side+query+route",
    "keys+moe+high",
)
PAGES = {1: (2, 4), 2: (3,), 3: (5,)}


@cache
def kind() -> str:
    return "hip" if torch.version.hip else "cuda"


def make_runner(**changes: Any) -> Runner:
    fields = {
        "device": kind(),
        "dtype": "bfloat16",
        "max_running_requests": 4,
        "max_total_tokens": 4096,
        "eager_fork": kind() == "cuda",
        **changes,
    }
    return Runner(MODEL, random_weights(MODEL, 0, torch.bfloat16), EngineConfig("demo", **fields))


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    made = make_runner()
    yield made
    made.close()


def gpu_of(runner: Runner) -> DeviceRuns:
    assert runner.gpu is not None
    return runner.gpu


def tokens(slot: int, n: int) -> tuple[int, ...]:
    return tuple(torch.randint(2, MODEL.vocab_size, (n,), generator=torch.Generator().manual_seed(slot)).tolist())


TEXT = {slot: tokens(slot, 320) for slot in PAGES}


def step(positions: dict[int, int]) -> list[BatchItem]:
    return [BatchItem(s, PAGES[s], at, TEXT[s][at : at + 1]) for s, at in positions.items()]


STEPS = [
    step({1: 253, 2: 125, 3: 6}),
    step({1: 254, 3: 7}),
    step({1: 255, 2: 126, 3: 8}),
    step({1: 256, 2: 127}),
    step({2: 128}),
]


def session(runner: Runner) -> list[torch.Tensor]:
    """Prefill, then decode over boundaries of both ratios while the batch changes. All logits."""
    for slot in PAGES:
        runner.reset_slot(slot)
    items = [BatchItem(s, PAGES[s], 0, TEXT[s][:n]) for s, n in ((1, 253), (2, 125), (3, 6))]
    return [runner.forward(items, "prefill").logits, *(runner.forward(items, "decode").logits for items in STEPS)]


def same(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(left, right, strict=True))


def test_every_plan_gives_the_same_bits_in_graphs_and_eagerly(runner: Runner) -> None:
    runner.set_plan("off")
    expected = session(runner)
    assert all(torch.isfinite(logits).all() for logits in expected)
    for plan in PLANS:
        runner.set_plan(plan)
        assert same(session(runner), expected), f"{plan} in graphs"
    shape = runner.prepare(STEPS[-1], "decode")
    for plan in PLANS:
        runner.set_plan(plan)
        compiled = runner._programs.compiled(shape, runner.plan)
        with torch.inference_mode():
            if kind() == "cuda":
                gpu_of(runner).streams.launch(compiled, runner.arena).record()
            else:
                gpu_of(runner).streams.warm(compiled, runner.arena)
        assert same([runner.arena.buffers["logits"][:1].cpu()], expected[-1:]), f"{plan} eagerly"


def test_a_request_gives_the_same_bits_beside_padding_and_beside_others() -> None:
    runner = make_runner(graph_buckets=(4,))
    session(runner)
    together = runner.forward(STEPS[2], "decode").logits
    assert same([runner.forward(STEPS[2][:1], "decode").logits], [together[:1]])
    runner.close()


def test_a_thousand_replays_give_the_same_bits_and_allocate_nothing(runner: Runner) -> None:
    runner.set_plan("cuda")
    session(runner)
    shape = runner.prepare(STEPS[-1], "decode")
    gpu, logits = gpu_of(runner), runner.arena.buffers["logits"][:1]
    with torch.inference_mode():
        gpu.launch(shape, runner.plan, lambda compiled: compiled).record()
        first, before, good = logits.clone(), torch.cuda.memory_allocated(), torch.zeros((), device=logits.device)
        for _ in range(1000):
            gpu.launch(shape, runner.plan, lambda compiled: compiled)
            good += (logits == first).all()
        assert int(good) == 1000
        assert torch.cuda.memory_allocated() - before <= 1 << 20, "the counter's own blocks at most"


def test_auto_chooses_by_time_and_keeps_the_bits() -> None:
    off, auto = make_runner(plan="off"), make_runner(plan="auto")
    assert same(session(off), session(auto))
    choices = gpu_of(auto).choices
    assert len(choices) > 1
    assert all("off" in choice.us and choice.us["off"] > 0 for choice in choices.values())
    for each in (off, auto):
        each.close()


def test_a_sync_inside_a_capture_is_an_error_that_names_the_op_and_the_next_capture_works() -> None:
    api = device_api(place_of(EngineConfig("demo", device=kind(), dtype="bfloat16")))
    assert api is not None
    streams, arena = DeviceStreams(api), Arena(4, torch.device("cuda", torch.cuda.current_device()))
    cache_of_graphs = GraphCache(streams)
    value = arena.view("value", 4, (), torch.float32)
    plan = OverlapPlan("p", (Rule("side", "side0"),))

    def program(bad: bool) -> Any:
        def work(_: Lane) -> None:
            value.add_(value.sum().item() if bad else 1.0)

        ops = [Op("fill", lambda _: value.fill_(1.0), (), ("value",)), Op("side", work, ("value",), ("value",))]
        return compile_program(ops, plan, "decode", 4)

    with pytest.raises(EngineError, match="cannot be captured in op side on side0"):
        cache_of_graphs.get("bad", program(bad=True), arena)
    cache_of_graphs.launch(cache_of_graphs.get("good", program(bad=False), arena)).record()
    assert value.tolist() == [2.0] * 4


def test_streams_really_overlap_and_are_joined() -> None:
    api = device_api(place_of(EngineConfig("demo", device=kind(), dtype="bfloat16")))
    assert api is not None
    bench = SpinBench(api, rounds=3)
    rows, found = probe(bench.measure, bench.distinct_streams(8))
    assert found.queues >= 2
    assert all(row["measured_us"] > 0 for row in rows)
