"""Decode and prefill of ``tiny`` against transformers on the same weights and prompts, one thread, one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dsv4lab.checkpoint.synthetic import random_weights, write_checkpoint
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.presets import preset
from dsv4lab.engine.runner import Runner
from dsv4lab.kv.metadata import BatchItem

transformers = pytest.importorskip("transformers", minversion="5.17")
pytestmark = pytest.mark.bench

MODEL = preset("tiny")
CONTEXT, ROUNDS = 256, 15


def fastest(*calls: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Milliseconds of the fastest of ``rounds`` calls of each, taken in turn."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for i, call in enumerate(calls):
            begin = time.perf_counter()
            call()
            best[i] = min(best[i], (time.perf_counter() - begin) * 1e3)
    return best


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, Runner]:
    path: Path = tmp_path_factory.mktemp("tiny")
    write_checkpoint(path, MODEL, random_weights(MODEL, 0), layout="hf")
    reference = transformers.DeepseekV4ForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    config = EngineConfig(
        "tiny", streams="serial", max_running_requests=16, max_total_tokens=32768, chunked_prefill_size=2048
    )
    torch.set_num_threads(1)
    return reference, Runner(MODEL, random_weights(MODEL, 0), config)


def tokens(n: int) -> tuple[int, ...]:
    return tuple(torch.randint(2, MODEL.vocab_size, (n,), generator=torch.Generator().manual_seed(n)).tolist())


@pytest.mark.parametrize("batch", [1, 4, 16])
def test_decode_steps(pair: tuple[object, Runner], batch: int) -> None:
    reference, runner = pair
    prompt = tokens(CONTEXT)
    with torch.inference_mode():
        cache = reference(torch.tensor([prompt] * batch), use_cache=True).past_key_values  # type: ignore[operator]
        for s in range(1, batch + 1):
            runner.reset_slot(s)
            runner.forward([BatchItem(s, (2 * s - 1, 2 * s), 0, prompt)], "prefill")
        position = iter(range(CONTEXT, CONTEXT + 200))

        def ours() -> None:
            p = next(position)
            runner.forward([BatchItem(s, (2 * s - 1, 2 * s), p, (5,)) for s in range(1, batch + 1)], "decode")

        def theirs() -> None:
            reference(torch.full((batch, 1), 5), past_key_values=cache, use_cache=True)  # type: ignore[operator]

        mine, reference_ms = fastest(ours, theirs)
    print(f"\ndecode, batch {batch}: {mine:.2f} ms, transformers {reference_ms:.2f} ms: {reference_ms / mine:.2f}x")
    assert mine < reference_ms


def test_prefill(pair: tuple[object, Runner]) -> None:
    reference, runner = pair
    prompt = tokens(2048)
    ids = torch.tensor([prompt])
    item = BatchItem(1, tuple(range(1, 9)), 0, prompt)
    with torch.inference_mode():
        mine, reference_ms = fastest(
            lambda: runner.forward([item], "prefill"),
            lambda: reference(ids, use_cache=True),  # type: ignore[operator]
            rounds=3,
        )
    print(f"\nprefill, 2048 tokens: {mine:.0f} ms, transformers {reference_ms:.0f} ms: {reference_ms / mine:.2f}x")
    assert reference_ms / mine >= 2.0
