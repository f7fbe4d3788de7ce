"""Run under ``TRITON_INTERPRET=1``: a small bf16 model on batch-invariant Triton kernels, in batches and alone.

Prints one JSON object: whether logits are the same bits in a prefill of two requests and of each alone, in a decode of
both and of each alone, and in a verify step of three tokens and of each token alone.
"""

from __future__ import annotations

import json
from dataclasses import replace

import torch
from dsv4_kernels.testing.interpreter import repair

from dsv4lab.checkpoint.synthetic import random_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.presets import preset
from dsv4lab.engine.runner import Runner
from dsv4lab.kv.metadata import BatchItem

MODEL = replace(
    preset("tiny"),
    hidden_size=128,  # what the tiled expert kernel takes
    moe_intermediate_size=128,
    compress_ratios=(4,),
    num_hash_layers=0,
    dspark=None,
    mtp_layers=0,
)
TEXTS = {1: (7, 400, 3, 9, 11, 90, 17), 2: (5, 5, 301, 8)}
NEXT = (33, 2, 480)


def open_runner() -> Runner:
    config = EngineConfig(
        "tiny",
        backend="triton",
        dtype="bfloat16",
        streams="serial",
        max_running_requests=2,
        max_total_tokens=512,
        chunked_prefill_size=16,
        verify_tokens=3,
        batch_invariant=True,
    )
    return Runner(MODEL, random_weights(MODEL, 0, torch.bfloat16), config)


def item(slot: int, start: int, tokens: tuple[int, ...]) -> BatchItem:
    return BatchItem(slot, (slot,), start, tokens)


def prefill(runner: Runner, *slots: int) -> torch.Tensor:
    return runner.forward([item(s, 0, TEXTS[s]) for s in slots], "prefill").logits


def decode(runner: Runner, *slots: int) -> torch.Tensor:
    return runner.forward([item(s, len(TEXTS[s]), NEXT[:1]) for s in slots], "decode").logits


def verify_equals_decode() -> bool:
    at = len(TEXTS[1])
    wide, narrow = open_runner(), open_runner()
    prefill(wide, 1)
    prefill(narrow, 1)
    together = wide.all_logits([item(1, at, NEXT)], "decode")
    apart = [narrow.forward([item(1, at + i, (token,))], "decode").logits for i, token in enumerate(NEXT)]
    return torch.equal(together, torch.cat(apart))


def main() -> None:
    repair()
    both, alone = open_runner(), open_runner()
    found = {
        "prefill": torch.equal(prefill(both, 1, 2), torch.cat([prefill(alone, 1), prefill(alone, 2)])),
        "decode": torch.equal(decode(both, 1, 2), torch.cat([decode(alone, 1), decode(alone, 2)])),
        "verify": verify_equals_decode(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
