"""The engine on a recorded device: graphs by bucket and plan, padding, live plans, plan auto, HIP's rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from dsv4lab.checkpoint.synthetic import random_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.presets import preset
from dsv4lab.engine.auto_plan import CANDIDATES, MARGIN, choose
from dsv4lab.engine.device_runs import DeviceRuns, GraphShape, batch_buckets
from dsv4lab.engine.placement import place_of
from dsv4lab.engine.runner import Runner
from dsv4lab.errors import ConfigError, EngineError, PlanError, UnavailableError
from dsv4lab.kv.metadata import BatchItem, build_metadata
from dsv4lab.kv.padding import Bucket, pad_decode
from dsv4lab.model.builder import Shape
from dsv4lab.model.programs import MAX_PLANS
from dsv4lab.model.transformer import logits_view
from dsv4lab.overlap.compile import compile_program
from dsv4lab.overlap.plan import AUTO, OFF, OverlapPlan, Rule, resolve_plan
from dsv4lab.overlap.recording import replay_lanes
from tests.cpu.fake_device import FakeDevice, FakeGraph

MODEL = preset("tiny")
PLANS = ["off", "hip", "cuda", "moe", "cuda+moe"]
PAGES = {1: (2, 4), 2: (3,), 3: (5,)}


def make_runner(device: FakeDevice | None = None, **changes: Any) -> Runner:
    torch.set_num_threads(1)
    fields = {"streams": "serial", "max_running_requests": 3, "max_total_tokens": 2048, **changes}
    return Runner(MODEL, random_weights(MODEL, 0), EngineConfig("tiny", **fields), device=device)


def gpu_of(runner: Runner) -> DeviceRuns:
    assert runner.gpu is not None
    return runner.gpu


def tokens(seed: int, n: int) -> tuple[int, ...]:
    return tuple(torch.randint(2, MODEL.vocab_size, (n,), generator=torch.Generator().manual_seed(seed)).tolist())


TEXT = {slot: tokens(slot, 320) for slot in PAGES}


def prefill(runner: Runner) -> torch.Tensor:
    items = [BatchItem(s, PAGES[s], 0, TEXT[s][:n]) for s, n in ((1, 253), (2, 125), (3, 6))]
    return runner.forward(items, "prefill").logits


def step(positions: dict[int, int], width: int = 1) -> list[BatchItem]:
    return [BatchItem(s, PAGES[s], at, TEXT[s][at : at + width]) for s, at in positions.items()]


STEPS = [
    step({1: 253, 2: 125, 3: 6}),
    step({1: 254, 3: 7}),
    step({3: 8}),
    step({1: 255, 2: 126, 3: 9}),  # entries of both ratios are completed; the next token of 1 is on its second page
    step({1: 256, 2: 127}),
    step({1: 257, 2: 128}),
]
"""The batch shrinks and grows."""


def padded(runner: Runner, items: Sequence[BatchItem], bucket: Bucket, *, wide: bool = False) -> torch.Tensor:
    """The forward on serial streams, with the metadata of ``bucket``."""
    meta = pad_decode(
        build_metadata(runner.geometry, MODEL.index_topk, items, "decode"), runner.geometry, MODEL.index_topk, bucket
    )
    rows = torch.arange(bucket.tokens) if wide else meta.last_rows
    shape = Shape("decode", bucket.tokens, rows.numel())
    with torch.inference_mode():
        runner._programs.inputs.set(meta, rows)
        runner.launch(shape)
        real = len(items) * (bucket.width if wide else 1)
        return logits_view(runner._programs.builder(shape))[:real].clone()


def bucket_of(runner: Runner) -> Bucket:
    now = gpu_of(runner)._now
    assert now is not None
    return now.bucket


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("buckets", [None, (3,)])
def test_replays_give_the_bits_of_padded_serial_forwards(plan: str, buckets: tuple[int, ...] | None) -> None:
    device = FakeDevice()
    runner, serial, plain = make_runner(device, plan=plan, graph_buckets=buckets), make_runner(), make_runner()
    assert torch.equal(prefill(runner), prefill(serial))
    prefill(plain)
    addresses: dict[Bucket, set[int]] = {}
    for items in STEPS:
        found = runner.forward(items, "decode")
        assert torch.equal(found.logits, padded(serial, items, bucket_of(runner)))
        assert (found.logits - plain.forward(items, "decode").logits).abs().max() < 1e-5
        inputs = runner._programs.inputs
        address = (inputs.meta.positions.data_ptr(), inputs.output_rows.data_ptr())
        addresses.setdefault(bucket_of(runner), set()).update(address)
    assert {b.requests for b in addresses} == ({1, 2, 3} if buckets is None else {3})
    assert all(len(found) == 2 for found in addresses.values()), "inputs stay where they are"
    graphs = gpu_of(runner).graphs
    assert (graphs.captures, graphs.replays) == (len(addresses), len(STEPS))
    assert gpu_of(runner).eager == 0
    runner.close()


def test_a_replay_waits_for_nothing_on_the_host_but_its_own_end() -> None:
    device = FakeDevice()
    runner = make_runner(device, plan="cuda")
    prefill(runner)
    for items in STEPS[:2]:
        runner.forward(items, "decode")
    shape = runner.prepare(STEPS[1], "decode")
    before = device.host_waits
    with torch.inference_mode():
        launched = gpu_of(runner).launch(shape, runner.plan, lambda compiled: compiled)
    assert device.host_waits == before
    assert launched.record().program.mode == "decode"


def test_verify_steps_are_graphs_of_their_width() -> None:
    device = FakeDevice()
    runner, serial = (make_runner(d, verify_tokens=3, plan=p) for d, p in ((device, "hip"), (None, "off")))
    assert torch.equal(prefill(runner), prefill(serial))
    for items in (step({1: 253, 2: 125}, 3), step({1: 255, 2: 126, 3: 6}, 3)):
        found = runner.forward(items, "decode", all_rows=True).logits
        assert found.shape[0] == 3 * len(items)
        assert torch.equal(found, padded(serial, items, bucket_of(runner), wide=True))
    assert gpu_of(runner).graphs.captures == 2


def test_a_batch_beyond_the_largest_bucket_and_graphs_off_run_eagerly() -> None:
    device = FakeDevice()
    runner, plain = make_runner(device, plan="cuda", graph_max_bs=2), make_runner()
    assert torch.equal(prefill(runner), prefill(plain))
    assert torch.equal(runner.forward(STEPS[0], "decode").logits, plain.forward(STEPS[0], "decode").logits)
    assert (gpu_of(runner).eager, gpu_of(runner).graphs.captures) == (1, 0)
    runner.forward(STEPS[1], "decode")
    assert (gpu_of(runner).eager, gpu_of(runner).graphs.captures) == (1, 1)
    off = make_runner(FakeDevice(), plan="cuda", graphs=False)
    prefill(off)
    off.forward(STEPS[1], "decode")
    assert (gpu_of(off).eager, gpu_of(off).graphs.captures) == (1, 0)


def waits_of(run: Callable[[], object], device: FakeDevice) -> int:
    before = device.waits
    run()
    return device.waits - before


@pytest.mark.parametrize(
    ("kind", "eager_fork", "forks"),
    [("hip", None, False), ("hip", True, True), ("cuda", None, True), ("cuda", False, False)],
)
def test_on_hip_streams_fork_inside_captures_only(kind: str, eager_fork: bool | None, forks: bool) -> None:
    device = FakeDevice(kind)
    runner = make_runner(device, plan="hip", eager_fork=eager_fork)
    assert (waits_of(lambda: prefill(runner), device) > 2) == forks
    runner.forward(STEPS[0], "decode")
    graph = next(iter(gpu_of(runner).graphs._graphs.values())).graph
    assert graph.streams == 3
    assert waits_of(lambda: runner.forward(STEPS[0], "decode"), device) == 2, "a replay forks by itself"


def test_a_new_plan_is_captured_and_the_old_graph_stays() -> None:
    device = FakeDevice()
    runner = make_runner(device, plan="off")
    prefill(runner)
    graphs = gpu_of(runner).graphs
    bits = [runner.forward(STEPS[0], "decode").logits]
    for captures, plan in ((2, "hip"), (3, "cuda"), (3, "off"), (3, "hip")):
        runner.set_plan(plan)
        bits.append(runner.forward(STEPS[0], "decode").logits)
        assert graphs.captures == captures
    assert all(torch.equal(other, bits[0]) for other in bits)
    assert len(graphs) == 3


def priced(fast_streams: int) -> Callable[[FakeGraph], float]:
    return lambda graph: 50.0 if graph.streams == fast_streams else 100.0 + graph.streams


def test_auto_takes_the_fastest_plan_of_each_bucket_and_keeps_its_graph() -> None:
    device = FakeDevice()
    runner = make_runner(device, plan="auto")
    prefill(runner)
    gpu = gpu_of(runner)
    device.price = priced(3)  # main and two side streams
    first = runner.forward(STEPS[0], "decode")
    choice = gpu.choices[gpu._now]  # type: ignore[index]
    assert choice.plan.name in ("hip", "hip+moe")
    assert choice.us[choice.plan.name] == 50.0
    assert {"off", "cuda", "moe", "side+query+moe", "side+query+moe+high"} <= set(choice.us)
    assert len(gpu.graphs) == 2, "off and the plan taken"
    (told,) = gpu.status()["auto"]
    assert (told["requests"], told["width"], told["plan"]) == (3, 1, choice.plan.name)
    replays = gpu.graphs.replays
    device.price = priced(1)
    assert torch.equal(runner.forward(STEPS[0], "decode").logits, first.logits)
    assert gpu.graphs.replays == replays + 1, "a choice stands"
    runner.forward(STEPS[1], "decode")
    assert gpu.choices[gpu._now].plan == OFF  # type: ignore[index]
    plain = make_runner()
    prefill(plain)
    assert (plain.forward(STEPS[0], "decode").logits - first.logits).abs().max() < 1e-5


def test_a_shape_keeps_the_programs_of_all_candidates() -> None:
    """And of a plan in use: one that was forgotten would be captured again in each round."""
    assert len(CANDIDATES) < MAX_PLANS


def test_auto_leaves_large_steps_alone_and_prefill_is_off() -> None:
    device = FakeDevice()
    runner = make_runner(device, plan="auto", token_gate=2)
    assert waits_of(lambda: prefill(runner), device) == 2
    gpu = gpu_of(runner)
    device.price = priced(3)
    runner.forward(STEPS[0], "decode")
    assert (gpu.choices, gpu.graphs.captures) == ({}, 1)
    runner.forward(STEPS[1], "decode")
    assert len(gpu.choices) == 1


def test_auto_on_few_side_streams_folds_its_candidates() -> None:
    device = FakeDevice()
    runner = make_runner(device, plan="auto", side_streams=1)
    assert runner.plan == OverlapPlan("auto/1")
    prefill(runner)
    device.price = priced(2)
    runner.forward(STEPS[0], "decode")
    taken = next(iter(gpu_of(runner).choices.values())).plan
    assert taken.side_streams == ("side0",)


def test_auto_and_queue_settings_are_refused_where_they_mean_nothing() -> None:
    with pytest.raises(PlanError, match="plan auto measures graphs on GPUs, with dp_size 1"):
        make_runner(plan="auto")
    with pytest.raises(PlanError, match="plan auto measures graphs on GPUs, with dp_size 1"):
        make_runner(FakeDevice(), plan="auto", graphs=False)
    runner = make_runner(FakeDevice())
    with pytest.raises(UnavailableError, match="queue policy and threads are the CPU device's"):
        runner.set_streams("queue", 4, "refcount", 1)


def test_a_gpu_that_is_not_here_or_not_served_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(text: str, **fields: Any) -> None:
        with pytest.raises((UnavailableError, ConfigError), match=text):
            place_of(EngineConfig("tiny", **{"dtype": "bfloat16", **fields}))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("cuda", "hip:1"):
        refused(f"device '{device}' is not available here; it takes cpu", device=device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.version, "hip", None)
    refused("device 'hip' is not available here; it takes cpu, cuda or cuda:N", device="hip")
    refused("device 'cuda:2': there are 2 GPUs, numbered from 0", device="cuda:2")
    refused("dtype is 'float32': kernels of cuda take 'bfloat16'", device="cuda", dtype="float32")
    refused("graphs is True: with dp_size above 1", device="cuda", dp_size=2)


def test_a_forward_that_cannot_be_captured_is_an_error_and_changes_nothing_else() -> None:
    device = FakeDevice()
    runner, plain = make_runner(device, plan="hip"), make_runner()
    prefill(runner)
    prefill(plain)
    device.fail_at = 5
    with pytest.raises(EngineError, match=r"decode of 3 tokens under plan hip cannot be captured in op .*graphs=False"):
        runner.forward(STEPS[0], "decode")
    device.fail_at = None
    expected = plain.forward(STEPS[0], "decode").logits
    assert (runner.forward(STEPS[0], "decode").logits - expected).abs().max() < 1e-5


def test_auto_leaves_out_plans_that_there_are_no_streams_for() -> None:
    runner = make_runner(FakeDevice(distinct=3), plan="auto")
    prefill(runner)
    runner.forward(STEPS[0], "decode")
    (choice,) = gpu_of(runner).choices.values()
    assert {"off", "hip", "side"} <= set(choice.us)
    assert "cuda" not in choice.us, "it takes main and three side streams"


def test_a_watched_selection_comes_out_of_graphs_too() -> None:
    device = FakeDevice()
    runner, plain = make_runner(device, plan="cuda", graph_buckets=(3,)), make_runner()
    layer = MODEL.compress_ratios.index(4)
    for each in (runner, plain):
        prefill(each)
        each.watch_selection(layer)
    for items in STEPS:
        found, expected = (each.forward(items, "decode").selection for each in (runner, plain))
        assert found is not None
        assert expected is not None
        assert torch.equal(found.sort().values, expected.sort().values)
    runner.watch_selection(None)
    assert runner.forward(STEPS[-1], "decode").selection is None


@pytest.mark.parametrize(
    "plan", ["hip", "cuda", "moe", "cuda+moe", "hip+moe", "side+query+moe", "side+query+route", "keys+moe"]
)
def test_recorded_late_side_work_leaves_main_on_one_lane(plan: str) -> None:
    runner = make_runner()
    ops = runner.op_list("decode", 2)
    natural, late = (
        compile_program(ops, resolve_plan(plan), "decode", 2, late_sides=late).program for late in (False, True)
    )
    assert {op.label for op in natural.ops} == {op.label for op in late.ops}
    assert len(replay_lanes(late)) == len(late.streams)
    assert len(replay_lanes(natural)) > len(natural.streams)
    mains = [[op.label for op in program.ops if op.stream == "main"] for program in (natural, late)]
    assert mains[0] == mains[1]


def test_batch_buckets() -> None:
    assert batch_buckets(1) == (1,)
    assert batch_buckets(20) == (1, 2, 4, 8, 16, 20)
    assert batch_buckets(32) == (1, 2, 4, 8, 16, 24, 32)
    assert batch_buckets(8, (2, 64)) == (2, 8)
    assert GraphShape(Bucket(4, 3, 2), wide=True).shape == Shape("decode", 12, 12)
    assert GraphShape(Bucket(4, 3, 2), wide=False).shape == Shape("decode", 12, 4)


def test_a_plan_must_win_clearly_to_be_taken() -> None:
    plans = (OFF, resolve_plan("hip"), resolve_plan("cuda"))
    assert choose(plans, [[100.0] * 8, [98.0] * 8, [99.0] * 8]).plan.name == "hip"
    assert choose(plans, [[100.0] * 8, [100 * (1 - MARGIN / 2)] * 8, [101.0] * 8]).plan is OFF
    noisy = [90.0, 90.0, 90.0, 90.0, 90.0, 110.0, 110.0, 110.0]
    assert choose(plans, [[100.0] * 8, noisy, [100.0] * 8]).plan is OFF, "slower in three rounds of eight"
    drift = [100.0 + 10 * r for r in range(8)]
    found = choose(plans, [drift, [0.97 * t for t in drift], [1.01 * t for t in drift]])
    assert found.plan.name == "hip", "ratios are taken round by round"
    assert found.us["off"] == 135.0


def test_gated_plans() -> None:
    cuda = resolve_plan("cuda")
    assert cuda.gated(64) == cuda
    assert {rule.max_tokens for rule in cuda.gated(128).rules} == {128}
    narrow = OverlapPlan("own", (Rule("a", "side0", max_tokens=8), Rule("b", "side1"), Rule("c", "side1", "any", 100)))
    assert [rule.max_tokens for rule in narrow.gated(32).rules] == [8, 32]
    assert AUTO.gated(64) == AUTO


def test_graph_fields_are_checked() -> None:
    assert EngineConfig.from_json(EngineConfig("tiny", graph_buckets=(1, 8)).to_json()).graph_buckets == (1, 8)
    assert EngineConfig.from_json({"model": "tiny", "graph_buckets": [1, 8]}).graph_buckets == (1, 8)
    wrong = {"graph_buckets": [], "graph_max_bs": 0, "graphs": 1, "eager_fork": "yes", "max_graphs": 0}
    for field, value in wrong.items():
        with pytest.raises(ConfigError, match=field):
            EngineConfig.from_json({"model": "tiny", field: value})
