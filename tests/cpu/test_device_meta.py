"""The model on the Triton backend with tensors that have a device and no values: nothing waits for the host, nothing
mixes devices. Launches are noted instead of made, and the device is a recorded one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from dsv4_kernels.launch import Launch, recorded

from dsv4lab.backends.triton_ops import triton_ops
from dsv4lab.checkpoint.draft import DraftKind, random_draft_weights
from dsv4lab.checkpoint.source import synthetic_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.model import DsparkConfig
from dsv4lab.config.presets import preset
from dsv4lab.engine.drafters import make_drafter, target_taps
from dsv4lab.engine.runner import Runner
from dsv4lab.errors import ConfigError
from dsv4lab.kv.metadata import BatchItem, Mode
from dsv4lab.model.programs import Placement
from dsv4lab.spec.draft import Anchor, Committed
from tests.cpu.fake_device import FakeDevice

META = torch.device("meta")
MODEL = replace(preset("demo"), hidden_size=256, vocab_size=512, compress_ratios=(4, 128), num_hash_layers=1)
PAGES = 3


@pytest.fixture
def on_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runners of this test are on the Triton backend, on ``meta``."""
    pytest.importorskip("triton", reason="triton is not installed")
    place = Placement(triton_ops(), META, torch.bfloat16)
    monkeypatch.setattr("dsv4lab.engine.runner.place_of", lambda config: place)
    monkeypatch.setattr("dsv4lab.engine.runner.room_for", lambda tensors, place: None)


def devices_of(launches: list[Launch]) -> set[torch.device]:
    values = (value for launch in launches for value in launch.arguments.values())
    return {value.device for value in values if isinstance(value, torch.Tensor)}


def demo(rows: str, keys: str, **more: Any) -> EngineConfig:
    return EngineConfig(
        "demo",
        device="cuda",
        dtype="bfloat16",
        weights="stored",
        max_running_requests=4,
        max_total_tokens=4 * PAGES * 256,
        kv_cache_dtype=rows,
        index_cache_dtype=keys,
        verify_tokens=3,
        **more,
    )


def items(count: int, start: int, tokens: int) -> list[BatchItem]:
    pages = [tuple(range(1 + s * PAGES, 1 + (s + 1) * PAGES)) for s in range(count)]
    return [BatchItem(s + 1, pages[s], start, (5,) * tokens) for s in range(count)]


@pytest.mark.parametrize(("rows", "keys"), [("bf16", "bf16"), ("fp8", "fp8"), ("bf16", "fp4")])
@pytest.mark.usefixtures("on_meta")
def test_forwards_and_captures_wait_for_nothing(rows: str, keys: str) -> None:
    config = demo(rows, keys, plan="cuda+moe")
    with recorded() as launches, torch.inference_mode():
        runner = Runner(MODEL, synthetic_weights(MODEL, 0, torch.bfloat16), config, device=FakeDevice())
        gpu = runner.gpu
        assert gpu is not None
        for batch, mode in ((items(2, 0, 130), "prefill"), (items(1, 511, 1), "decode"), (items(3, 600, 1), "decode")):
            shape = runner.prepare(batch, mode)  # type: ignore[arg-type]
            gpu.launch(shape, runner.plan, lambda compiled: compiled)
        shape = runner.prepare(items(2, 603, 3), "decode", all_rows=True)
        gpu.launch(shape, runner.plan, lambda compiled: compiled)
    assert gpu.graphs.captures == 3
    kernels = {launch.kernel.__name__ for launch in launches}
    assert len(kernels) > 15, kernels
    assert devices_of(launches) == {META}


@pytest.mark.parametrize("kind", ["mtp", "dspark"])
@pytest.mark.usefixtures("on_meta")
def test_drafters_wait_for_nothing_but_their_tokens(kind: DraftKind) -> None:
    config = EngineConfig(
        "demo",
        device="cuda",
        dtype="bfloat16",
        max_running_requests=4,
        max_total_tokens=4 * PAGES * 256,
        plan="cuda+moe",
        verify_tokens=4,
    )
    dspark = DsparkConfig(target_layer_ids=(0, 1), stages=2, block_size=4, markov_rank=64, noise_token_id=511)
    model = replace(MODEL, mtp_layers=1, dspark=dspark)
    with recorded() as launches, torch.inference_mode():
        weights = synthetic_weights(model, 0, torch.bfloat16)
        runner = Runner(model, weights, config, target_taps(model, kind), device=FakeDevice())
        drafter = make_drafter(model, kind, random_draft_weights(model, kind, 1, torch.bfloat16), 3, runner)
        gpu = runner.gpu
        assert gpu is not None
        for batch in (items(2, 0, 130), [items(3, 600, n)[n - 1] for n in (1, 2, 3)]):
            rows = sum(len(item.tokens) for item in batch)
            hidden = torch.empty(rows, 4 if kind == "mtp" else 2, model.hidden_size, dtype=torch.bfloat16, device=META)
            committed, first = [], 0
            for i in batch:
                committed.append(Committed(i.slot, i.pages, i.start, i.tokens, hidden[first : first + len(i.tokens)]))
                first += len(i.tokens)
            drafter.observe(committed)
        assert (gpu.drafts.captures, gpu.drafts.eager) == (1, 0), "a prefill, and an observation of a bucket of 4"
        anchors = [Anchor(i.slot, i.pages, 603, 7) for i in batch]
        with pytest.raises((NotImplementedError, RuntimeError), match="meta"):  # reading the tokens, at the end
            drafter.propose(anchors, None)
    assert (gpu.drafts.captures, gpu.drafts.replays) == (2, 2), "the chain was captured and replayed before that"
    assert devices_of(launches) == {META}


@pytest.mark.parametrize(("rows", "keys"), [("bf16", "bf16"), ("fp8", "fp8")])
def test_batch_invariant_forwards_launch_the_same_for_any_batch(
    rows: str, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What shapes a row's sums, op by op through a whole model: of one request, of three, of a verify step."""
    pytest.importorskip("triton", reason="triton is not installed")
    from dsv4lab.backends.invariant_ops import invariant_ops

    place = Placement(invariant_ops(), META, torch.bfloat16)
    monkeypatch.setattr("dsv4lab.engine.runner.place_of", lambda config: place)
    monkeypatch.setattr("dsv4lab.engine.runner.room_for", lambda tensors, place: None)
    config = demo(rows, keys, graphs=False, batch_invariant=True)

    def shaped(batch: list[BatchItem], mode: Mode) -> list[object]:
        with recorded() as launches, torch.inference_mode():
            gpu.launch(runner.prepare(batch, mode, all_rows=True), runner.plan, lambda compiled: compiled)
        return [(x.kernel.__name__, dict(x.constants), x.config, x.arguments.get("splits")) for x in launches]

    runner = Runner(MODEL, synthetic_weights(MODEL, 0, torch.bfloat16), config, device=FakeDevice())
    gpu = runner.gpu
    assert gpu is not None
    decode = shaped(items(1, 511, 1), "decode")
    assert len({launch[0] for launch in decode}) > 12  # type: ignore[index]
    assert shaped(items(3, 511, 1), "decode") == decode
    assert shaped(items(4, 509, 3), "decode") == decode
    prefill = shaped(items(1, 0, 9), "prefill")
    assert shaped(items(4, 256, 100), "prefill") == prefill


def test_a_model_that_the_kernels_do_not_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    place = Placement(triton_ops(), META, torch.bfloat16)
    monkeypatch.setattr("dsv4lab.engine.runner.place_of", lambda config: place)
    with pytest.raises(
        ConfigError, match="model tiny: moe_intermediate_size is 32: kernels of a GPU take multiples of 64"
    ):
        Runner(preset("tiny"), {}, EngineConfig("tiny", device="cuda", dtype="bfloat16"), device=FakeDevice())
