"""Snapshots of a slot at a page boundary: who goes on from one computes the very bits of who never stopped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dsv4lab.checkpoint.draft import DraftKind, random_draft_weights
from dsv4lab.checkpoint.synthetic import random_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.presets import preset
from dsv4lab.engine import messages as m
from dsv4lab.engine.drafters import make_drafter, target_taps
from dsv4lab.engine.factory import make_runner
from dsv4lab.engine.request import RequestSpec, SamplingParams
from dsv4lab.engine.runner import Runner
from dsv4lab.engine.scheduling import snapshot_bytes
from dsv4lab.engine.service import Service
from dsv4lab.engine.speculation import Speculator
from dsv4lab.engine.step import Resume
from dsv4lab.errors import EngineError, PoolError
from dsv4lab.kv.metadata import BatchItem
from dsv4lab.kv.slot_snapshot import restore_slot, save_slot
from dsv4lab.spec.draft import Anchor, greedy_choice

MODEL = preset("tiny")
GREEDY = SamplingParams()
FORMATS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bf16": {"kv_cache_dtype": "bf16", "index_cache_dtype": "bf16"},
    "fp8": {"kv_cache_dtype": "fp8", "index_cache_dtype": "fp8"},
    "fp8 and fp4": {"kv_cache_dtype": "fp8", "index_cache_dtype": "fp4"},
    "three pools": {"kv_layout": "three_pool", "index_cache_dtype": "fp8"},
}


def tokens(seed: int, n: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(2, MODEL.vocab_size, n).tolist())


TEXT = tokens(1, 700)


def config_of(**fields: Any) -> EngineConfig:
    return EngineConfig(
        "tiny",
        **{"streams": "serial", "max_running_requests": 3, "max_total_tokens": 2048, "debug_poison": True, **fields},
    )


def runner_of(**fields: Any) -> Runner:
    torch.set_num_threads(1)
    return Runner(MODEL, random_weights(MODEL, 0), config_of(**fields))


def prefill(runner: Runner, slot: int, pages: tuple[int, ...], start: int, stop: int) -> torch.Tensor:
    return runner.all_logits([BatchItem(slot, pages, start, TEXT[start:stop])], "prefill")


@pytest.mark.parametrize("form", FORMATS)
def test_going_on_from_a_snapshot_is_bit_exact(form: str) -> None:
    """Both pages shared, the slot another one, its rings NaN before."""
    runner = runner_of(**FORMATS[form])
    runner.reset_slot(1)
    for page in (0, 1):
        prefill(runner, 1, (4, 2, 7), page * 256, page * 256 + 256)
    snapshot = runner.save_slot(1, 512)
    assert snapshot.nbytes == snapshot_bytes(runner.config, MODEL, runner.geometry)
    expected = [prefill(runner, 1, (4, 2, 7), 512, 600)]
    expected += [runner.forward([BatchItem(1, (4, 2, 7), p, (TEXT[p],))], "decode").logits for p in range(600, 645)]
    runner.pool.release(1, (7,))
    runner.reset_slot(3)
    runner.restore_slot(Resume(3, (4, 2), 512, TEXT[512], snapshot))
    got = [prefill(runner, 3, (4, 2, 5), 512, 600)]
    got += [runner.forward([BatchItem(3, (4, 2, 5), p, (TEXT[p],))], "decode").logits for p in range(600, 645)]
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("lost", ["ring", "state"])
def test_pages_alone_do_not_continue_a_request(lost: str) -> None:
    """Pitfall of every cache that keeps compressed rows only: window rows and the overlap state are the slot's."""
    runner = runner_of(debug_poison=False)
    prefill(runner, 1, (1, 2), 0, 256)
    snapshot = runner.save_slot(1, 256)
    expected = prefill(runner, 1, (1, 2), 256, 300)
    runner.reset_slot(3)
    parts = snapshot.target.rings if lost == "ring" else snapshot.target.states
    for tensor in parts:
        tensor.zero_()
    runner.restore_slot(Resume(3, (1,), 256, TEXT[256], snapshot))
    got = prefill(runner, 3, (1, 5), 256, 300)
    assert (got - expected).abs().max() > 1e-3


def test_a_snapshot_after_a_verify_step_past_the_boundary_is_the_boundarys() -> None:
    """The step brought rejected tokens too; what they overwrote is older than anything that is still read."""
    runner = runner_of(verify_tokens=7, debug_poison=False)
    prefill(runner, 1, (1, 2), 0, 253)
    wrong = tuple((t + 1) % MODEL.vocab_size for t in TEXT[258:260])
    runner.forward([BatchItem(1, (1, 2), 253, (*TEXT[253:258], *wrong))], "decode")
    runner.pool.forget_rejected(1, 258, 260)
    late = save_slot(runner.pool, 1, 256)
    reference = runner_of(verify_tokens=7, debug_poison=False)
    prefill(reference, 1, (1, 2), 0, 253)
    for p in range(253, 256):
        reference.forward([BatchItem(1, (1, 2), p, (TEXT[p],))], "decode")
    expected = prefill(reference, 1, (1, 2), 256, 300)
    runner.reset_slot(2)
    restore_slot(runner.pool, 2, late)
    assert (prefill(runner, 2, (1, 6), 256, 300) - expected).abs().max() < 1e-5


def test_a_snapshot_takes_whole_pages() -> None:
    runner = runner_of()
    with pytest.raises(PoolError, match="slot 1: a snapshot at 300 tokens; it takes whole pages of 256"):
        runner.save_slot(1, 300)


@pytest.mark.parametrize("kind", ["mtp", "dspark"])
def test_a_drafter_goes_on_from_a_snapshot_with_the_same_drafts(kind: DraftKind) -> None:
    """For other followers too: the row before the boundary depends on the token after it."""
    config = config_of(verify_tokens=4)
    runner = Runner(MODEL, random_weights(MODEL, 0), config, target_taps(MODEL, kind))
    drafter = make_drafter(MODEL, kind, random_draft_weights(MODEL, kind, 7), 3, runner)
    runner.speculator = Speculator(runner, drafter)

    def step(slot: int, pages: tuple[int, ...], text: tuple[int, ...], start: int, stop: int, after: int) -> None:
        item = BatchItem(slot, pages, start, text[start:stop])
        runner.forward([item], "prefill")
        assert runner.speculator is not None
        runner.speculator.observe_prefill([item], [after])

    other = (*TEXT[:256], *tokens(9, 100))
    runner.reset_slot(1)
    step(1, (1, 2), TEXT, 0, 256, TEXT[256])
    snapshot = runner.save_slot(1, 256)
    runner.reset_slot(2)
    step(2, (3, 4), other, 0, 256, other[256])
    runner.reset_slot(3)
    runner.restore_slot(Resume(3, (1,), 256, other[256], snapshot))
    answers = []
    for slot, pages in ((2, (3, 4)), (3, (1, 5))):
        step(slot, pages, other, 256, 300, other[300])
        answers.append(drafter.propose([Anchor(slot, pages, 300, other[300])], greedy_choice))
    assert answers[0].tokens == answers[1].tokens
    assert np.abs(answers[0].logits - answers[1].logits).max() < 1e-5, "that row's product has one row instead of 256"
    with pytest.raises(EngineError, match="slot 3: a draft snapshot at 512 tokens, the last full page ends at 256"):
        runner.save_slot(3, 512)


def serve(config: EngineConfig, batches: list[list[RequestSpec]]) -> tuple[dict[int, tuple[int, ...]], dict[str, Any]]:
    """Fingerprints of the logits behind every token, by request, and the last status."""
    runner, model = make_runner(config, lambda _: None)
    sent: list[m.Message] = []
    service = Service(config, model, runner, sent.append)
    for batch in batches:
        service.handle(m.Submit(batch))
        while not service.idle:
            service.step()
    service.handle(m.GetStatus(1))
    marks = {end.request_id: end.fingerprints for p in sent if isinstance(p, m.Progress) for end in p.finished}
    (info,) = [x for x in sent if isinstance(x, m.Info)]
    return marks, info.value


@pytest.mark.parametrize("speculative", ["off", "mtp", "dspark"])
def test_a_hit_gives_the_bits_of_a_miss(speculative: str) -> None:
    """Through the whole engine: the second request alone, and after one that left it two pages."""
    config = config_of(enable_prefix_cache=True, chunked_prefill_size=300, speculative=speculative)
    first = RequestSpec(1, TEXT[:530], 4, GREEDY, fingerprints=True)
    second = RequestSpec(2, (*TEXT[:520], *tokens(5, 30)), 24, GREEDY, fingerprints=True)
    alone, cold = serve(config, [[second]])
    after, warm = serve(config, [[first], [second]])
    assert (cold["prefix_cache"]["hits"], warm["prefix_cache"]["tokens_saved"]) == (0, 512)
    assert len(alone[2]) == 24
    assert after[2] == alone[2]
