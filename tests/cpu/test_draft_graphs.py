"""Drafters on a recorded device: graphs by bucket and plan with the bits of padded serial runs, errors, no waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from dsv4lab.checkpoint.draft import DraftKind, random_draft_weights
from dsv4lab.checkpoint.synthetic import random_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.presets import preset
from dsv4lab.engine.device_runs import DeviceRuns, batch_buckets
from dsv4lab.engine.draft_runs import StreamDrafts, draft_runs
from dsv4lab.engine.drafters import make_drafter, target_taps
from dsv4lab.engine.runner import Runner
from dsv4lab.errors import EngineError, PoolError
from dsv4lab.kv.draft_padding import pad_block, pad_draft
from dsv4lab.kv.metadata import BatchItem, build_metadata
from dsv4lab.model.builder import Shape
from dsv4lab.overlap.arena import Arena
from dsv4lab.overlap.audit import audit
from dsv4lab.overlap.compile import CompiledProgram
from dsv4lab.overlap.plan import OFF, OverlapPlan
from dsv4lab.spec.draft import Anchor, Committed, greedy_choice
from dsv4lab.spec.dspark import DsparkDrafter
from dsv4lab.spec.forwards import DraftShape
from dsv4lab.spec.mtp import MtpDrafter
from tests.cpu.fake_device import FakeDevice

MODEL = preset("tiny")
KINDS: tuple[DraftKind, ...] = ("mtp", "dspark")
PLANS = ("off", "hip", "cuda", "moe", "cuda+moe")
PAGES = {1: (2, 4), 2: (3,), 3: (5,)}
DRAFTS = 3
WIDTH = {"mtp": MODEL.hc_mult, "dspark": 3}


def tokens(seed: int, n: int) -> tuple[int, ...]:
    return tuple(torch.randint(2, MODEL.vocab_size, (n,), generator=torch.Generator().manual_seed(seed)).tolist())


TEXT = {slot: tokens(slot, 320) for slot in PAGES}
PROMPT = {1: (0, 253), 2: (0, 125), 3: (0, 6)}
STEPS: list[dict[int, tuple[int, int]]] = [
    {1: (253, 254), 2: (125, 129), 3: (6, 8)},
    {1: (254, 258), 3: (8, 9)},
    {2: (129, 132)},
    {1: (258, 259), 2: (132, 133), 3: (9, 13)},
]
"""What each step commits: 1 to 4 tokens of each request, in batches of 3, 2, 1 and 3."""


class Padded(StreamDrafts):
    """The same buckets on serial streams."""

    def __init__(self, runner: Runner, buckets: tuple[int, ...]) -> None:
        super().__init__(runner)
        self._buckets = buckets

    def bucket(self, requests: int) -> int | None:
        return next((size for size in self._buckets if size >= requests), None)

    def replay(
        self, of: DraftShape, tokens: int, compiled: Callable[[OverlapPlan], CompiledProgram], arena: Arena
    ) -> None:
        self.run(compiled(OFF), arena, prefill=False)


def make(
    kind: DraftKind,
    device: FakeDevice | None = None,
    padded: tuple[int, ...] = (),
    drafts: int = DRAFTS,
    **changes: Any,
) -> tuple[Runner, MtpDrafter | DsparkDrafter]:
    torch.set_num_threads(1)
    fields = {"streams": "serial", "max_running_requests": 3, "max_total_tokens": 2048, "verify_tokens": drafts + 1}
    config = EngineConfig("tiny", **{**fields, **changes})
    runner = Runner(MODEL, random_weights(MODEL, 0), config, target_taps(MODEL, kind), device=device)
    with pytest.MonkeyPatch.context() as patch:
        if padded:
            patch.setattr("dsv4lab.engine.drafters.draft_runs", lambda runner: Padded(runner, padded))
        drafter = make_drafter(MODEL, kind, random_draft_weights(MODEL, kind, 7), drafts, runner)
    assert isinstance(drafter, MtpDrafter | DsparkDrafter)
    return runner, drafter


def gpu_of(runner: Runner) -> DeviceRuns:
    assert runner.gpu is not None
    return runner.gpu


def committed(kind: DraftKind, spans: dict[int, tuple[int, int]]) -> list[Committed]:
    """Tokens ``[start, stop)`` of each slot's text, with hidden states from a seed."""
    found = []
    for slot, (start, stop) in spans.items():
        seeded = torch.Generator().manual_seed(slot + stop)
        hidden = torch.randn(stop - start, WIDTH[kind], MODEL.hidden_size, generator=seeded)
        found.append(Committed(slot, PAGES[slot], start, TEXT[slot][start + 1 : stop + 1], hidden))
    return found


def anchors(spans: dict[int, tuple[int, int]]) -> list[Anchor]:
    return [Anchor(slot, PAGES[slot], stop, TEXT[slot][stop]) for slot, (_, stop) in spans.items()]


def state(runner: Runner, drafter: MtpDrafter | DsparkDrafter) -> list[torch.Tensor]:
    """What requests' slots hold of the drafter: rings, and of MTP the last rows. Slot 0 is padding's."""
    first = runner.geometry.ring_rows
    rings = [torch.as_tensor(layer)[first : runner.geometry.slots * first] for layer in drafter.pool.unified]
    last = [drafter.last.streams[1:], drafter.last.logits[1:]] if isinstance(drafter, MtpDrafter) else []
    return [tensor.clone() for tensor in (*rings, *last)]


def same(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def each_step(
    kind: DraftKind, *pairs: tuple[Runner, MtpDrafter | DsparkDrafter]
) -> list[list[tuple[tuple[tuple[int, ...], ...], list[torch.Tensor]]]]:
    """Of every step, and every pair: the greedy drafts, and the state behind them."""
    seen = []
    for _, drafter in pairs:
        drafter.observe(committed(kind, PROMPT))
    for spans in STEPS:
        row = []
        for runner, drafter in pairs:
            drafter.observe(committed(kind, spans))
            row.append((drafter.propose(anchors(spans), None).tokens, state(runner, drafter)))
        seen.append(row)
    return seen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("buckets", [None, (3,)])
def test_replays_give_the_bits_of_padded_serial_runs(
    kind: DraftKind, plan: str, buckets: tuple[int, ...] | None
) -> None:
    device = make(kind, FakeDevice(), plan=plan, graph_buckets=buckets)
    serial, eager = make(kind, padded=batch_buckets(3, buckets)), make(kind)
    for found, expected, plain in each_step(kind, device, serial, eager):
        assert found[0] == expected[0] == plain[0], "drafts"
        assert same(found[1], expected[1]), "rings and last rows"
        ring = zip(found[1][: len(device[1].pool.unified)], plain[1], strict=False)
        assert all((a - b).abs().max() < 1e-4 for a, b in ring), "the CPU engine's rings, but for rounding"
    gpu = gpu_of(device[0])
    shapes = 3 if buckets is None else 1
    assert gpu.drafts.captures == 2 * shapes, "an observation and a draft of each bucket"
    assert (gpu.drafts.replays, gpu.drafts.eager) == (2 * len(STEPS), 0)
    assert gpu.graphs.captures == gpu.drafts.captures, "the model ran nothing"
    assert gpu.status()["drafts"] == {"captures": 2 * shapes, "replays": 2 * len(STEPS), "eagerly": 0, "auto": []}


@pytest.mark.parametrize("kind", KINDS)
def test_plans_change_live_and_old_graphs_stay(kind: DraftKind) -> None:
    runner, drafter = make(kind, FakeDevice(), plan="off", graph_buckets=(3,))
    _, serial = made = make(kind, padded=(3,))
    for each in (drafter, serial):
        each.observe(committed(kind, PROMPT))
    captures = []
    for plan, spans in zip(("off", "moe", "cuda", "off", "moe"), [*STEPS, {2: (133, 134)}], strict=True):
        runner.set_plan(plan)
        for each in (drafter, serial):
            each.observe(committed(kind, spans))
        assert drafter.propose(anchors(spans), None).tokens == serial.propose(anchors(spans), None).tokens
        assert same(state(runner, drafter), state(*made))
        captures.append(gpu_of(runner).drafts.captures)
    assert captures == [2, 4, 6, 6, 6]
    graphs = [held.graph.streams for held in gpu_of(runner).graphs._graphs.values()]
    assert max(graphs) > 1, "side streams are used by some"


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_waits_on_the_host_and_inputs_stay_where_they_are(kind: DraftKind) -> None:
    device = FakeDevice()
    _, drafter = make(kind, device, plan="cuda")
    drafter.observe(committed(kind, PROMPT))
    for _ in range(2):
        before = device.host_waits
        drafter.observe(committed(kind, STEPS[0]))
        drafter.propose(anchors(STEPS[0]), None)
    assert device.host_waits == before, "a replay, and the reading of its tokens, which the device does not count"
    (packed, _), drafted = drafter._chain._fixed[3], drafter._arena.buffers["draft.chosen"]
    addresses = [place.meta.positions.data_ptr() for place in packed], drafted.data_ptr()
    drafter.propose(anchors(STEPS[0]), None)
    (packed, _), drafted = drafter._chain._fixed[3], drafter._arena.buffers["draft.chosen"]
    assert ([place.meta.positions.data_ptr() for place in packed], drafted.data_ptr()) == addresses


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drafts", [1, 2, 5])
def test_tokens_chosen_on_the_device_are_those_that_the_host_would_choose(kind: DraftKind, drafts: int) -> None:
    """On the CPU, bit for bit the same forwards; in graphs, single forwards of the same bucket."""
    for device in (None, FakeDevice()):
        runner, drafter = make(kind, device, drafts=drafts, plan="cuda")
        drafter.observe(committed(kind, PROMPT))
        for spans in (PROMPT, {2: PROMPT[2]}):
            greedy, host = drafter.propose(anchors(spans), None), drafter.propose(anchors(spans), greedy_choice)
            assert greedy.tokens == host.tokens
            assert greedy.logits is None
            assert host.logits is not None
            assert host.logits.shape == (len(spans), drafts, MODEL.vocab_size)
            assert np.array_equal(np.argmax(host.logits, 2), np.array(host.tokens))
        if device is not None:
            assert gpu_of(runner).drafts.eager == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [{"graphs": False}, {"graph_max_bs": 2}])
def test_without_a_bucket_drafts_run_eagerly_and_are_counted(kind: DraftKind, changes: dict[str, Any]) -> None:
    device, eager = make(kind, FakeDevice(), plan="cuda", **changes), make(kind)
    for each in (device, eager):
        each[1].observe(committed(kind, PROMPT))
        each[1].observe(committed(kind, STEPS[0]))
    drafts = gpu_of(device[0]).drafts
    assert (drafts.eager, drafts.captures) == (1, 0), "a prompt's observation is a prefill"
    assert device[1].propose(anchors(STEPS[0]), None).tokens == eager[1].propose(anchors(STEPS[0]), None).tokens
    assert same(state(*device), state(*eager)), "eager runs are the CPU's bit for bit"
    assert (drafts.eager, drafts.captures) == (2, 0)
    device[1].propose(anchors(STEPS[2]), None)
    assert (drafts.eager, drafts.captures) == ((2, 1) if changes.get("graph_max_bs") else (3, 0))


@pytest.mark.parametrize(("kind", "what"), [("mtp", "extend"), ("dspark", "inject")])
def test_what_cannot_be_captured_is_an_error_that_names_it_and_changes_nothing_else(kind: DraftKind, what: str) -> None:
    device = FakeDevice()
    _, drafter = make(kind, device, plan="moe")
    _, serial = make(kind, padded=batch_buckets(3))
    for each in (drafter, serial):
        each.observe(committed(kind, PROMPT))
    device.fail_at = 1
    named = (
        rf"drafter's {what}, bucket of 3: decode of 12 tokens under plan moe cannot be captured in op .*graphs=False"
    )
    with pytest.raises(EngineError, match=named):
        drafter.observe(committed(kind, STEPS[0]))
    device.fail_at = None
    for each in (drafter, serial):
        each.observe(committed(kind, STEPS[0]))
    device.fail_at = 4
    with pytest.raises(EngineError, match=r"drafter's chain, bucket of 3: \w+ of \d+ tokens under plan moe .* in op "):
        drafter.propose(anchors(STEPS[0]), None)
    device.fail_at = None
    assert drafter.propose(anchors(STEPS[0]), None).tokens == serial.propose(anchors(STEPS[0]), None).tokens


@pytest.mark.parametrize("kind", KINDS)
def test_auto_measures_each_kind_of_draft_forward(kind: DraftKind) -> None:
    device = FakeDevice()
    device.price = lambda graph: 50.0 if graph.streams == 2 else 100.0 + graph.streams
    runner, drafter = make(kind, device, plan="auto", graph_buckets=(3,))
    serial = make(kind, padded=(3,))
    for found, expected in each_step(kind, (runner, drafter), serial):
        assert found[0] == expected[0]
        assert same(found[1], expected[1]), "measuring leaves what one run leaves"
    taken = {entry["kind"]: entry for entry in gpu_of(runner).status()["drafts"]["auto"]}
    assert set(taken) == {"extend" if kind == "mtp" else "inject", "chain"}
    assert all(entry["requests"] == 3 and "off" in entry["us"] for entry in taken.values())
    assert all(
        entry["plan"] != "off" and entry["us"][entry["plan"]] == 50.0
        for entry in taken.values()
        if entry["kind"] != "inject"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_ops_of_drafts_touch_what_they_declare(kind: DraftKind) -> None:
    runner, drafter = make(kind, padded=(2,))
    spans = {1: STEPS[0][1], 3: STEPS[0][3]}
    drafter.observe(committed(kind, PROMPT))
    drafter.observe(committed(kind, spans))
    drafter.propose(anchors(spans), None)
    resources = {**drafter.pool.resources(), **{n: (t,) for n, t in drafter._arena.buffers.items()}}
    if isinstance(drafter, MtpDrafter):
        programs = [(drafter._extend, Shape("decode", 8, 2)), (drafter._chain, Shape("decode", 2, 2))]
        resources |= drafter.last.resources()
    else:
        block = 2 * MODEL.dspark.block_size  # type: ignore[union-attr]
        programs = [(drafter._inject, Shape("decode", 8, 2)), (drafter._chain, Shape("prefill", block, block))]
    with torch.inference_mode():
        for forwards, shape in programs:
            audit(forwards._programs.ops(shape), resources, drafter._arena)
    assert runner.gpu is None


def test_what_does_not_fit_a_bucket_is_refused() -> None:
    runner, drafter = make("mtp")
    geometry = drafter._geometry
    items = [BatchItem(1, PAGES[1], 4, (5, 6)), BatchItem(2, PAGES[2], 9, (7,))]
    meta = build_metadata(geometry, 1, items, "decode")
    padded = pad_draft(meta, geometry, 3, 4)
    assert (padded.T, padded.n_items, padded.last_rows.tolist()) == (12, 3, [1, 2, 11])
    assert padded.slots.tolist() == [1, 1, 2, *[0] * 9]
    assert padded.window.indptr.diff().tolist() == [5, 6, 10, *[1] * 9]
    with pytest.raises(PoolError, match="3 tokens of 2 requests do not fit 4 of 1"):
        pad_draft(meta, geometry, 1, 4)
    with pytest.raises(PoolError, match="bucket takes prefill forwards of sliding-window layers, got one of decode"):
        pad_block(meta, geometry, 3, 4)
    with pytest.raises(PoolError, match="bucket takes decode forwards of sliding-window layers"):
        pad_draft(build_metadata(runner.geometry, 64, items, "decode"), geometry, 3, 4)
    with pytest.raises(PoolError, match="2 blocks of 4 tokens have 8, got 3"):
        pad_block(build_metadata(geometry, 1, items, "prefill"), geometry, 3, 4)
    with pytest.raises(EngineError, match="drafter's chain of 3 requests: the CPU device has no graphs"):
        draft_runs(runner).replay(DraftShape("chain", 3), 3, lambda plan: pytest.fail("asked for"), drafter._arena)
