"""Decode and prefill of ``tiny`` against transformers: same weights and prompts, one thread, time and peak memory."""

from __future__ import annotations

import subprocess
import sys
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


@pytest.mark.parametrize(("batch", "floor"), [(1, 2.0), (4, 3.0), (16, 3.0)])
def test_decode_steps(pair: tuple[object, Runner], batch: int, floor: float) -> None:
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
    assert reference_ms / mine >= floor


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


LOOP = """
import sys, torch
from dsv4lab.checkpoint.synthetic import random_weights
from dsv4lab.config.presets import preset
torch.set_num_threads(1)
model, side, path = preset("tiny"), sys.argv[1], sys.argv[2]
prompt = torch.randint(2, model.vocab_size, (2048,), generator=torch.Generator().manual_seed(0)).tolist()
with torch.inference_mode():
    if side == "transformers":
        from transformers import DeepseekV4ForCausalLM
        reference = DeepseekV4ForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        cache = reference(torch.tensor([prompt]), use_cache=True).past_key_values
        for _ in range(8):
            reference(torch.tensor([[5]]), past_key_values=cache, use_cache=True)
    else:
        from dsv4lab.config.engine import EngineConfig
        from dsv4lab.engine.runner import Runner
        from dsv4lab.kv.metadata import BatchItem
        config = EngineConfig("tiny", streams="serial", max_running_requests=1, max_total_tokens=2304,
                              chunked_prefill_size=2048)
        runner, pages = Runner(model, random_weights(model, 0), config), tuple(range(1, 10))
        runner.forward([BatchItem(1, pages, 0, tuple(prompt))], "prefill")
        for position in range(2048, 2056):
            runner.forward([BatchItem(1, pages, position, (5,))], "decode")
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def test_peak_memory(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, MODEL, random_weights(MODEL, 0), layout="hf")
    mine, reference = (
        int(subprocess.run([sys.executable, "-c", LOOP, side, str(tmp_path)], capture_output=True, check=True).stdout)
        for side in ("dsv4lab", "transformers")
    )
    print(f"\npeak memory of 2048 tokens and 8 steps: {mine >> 10} MiB, transformers {reference >> 10} MiB")
    assert mine <= reference
