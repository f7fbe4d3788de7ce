"""Run under ``TRITON_INTERPRET=1``: logits of a small bf16 model on the Triton kernels against the torch backend.

Arguments: formats of KV rows and of index keys. Prints one JSON object: the largest differences of prefill and decode,
that of decode where the third request is padding against one where it is real (in the rows of the other two), and the
largest logit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace

import torch
from dsv4_kernels.testing.interpreter import repair

from dsv4lab.checkpoint.synthetic import random_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.presets import preset
from dsv4lab.engine.runner import Runner
from dsv4lab.kv.metadata import BatchItem, StepMetadata, build_metadata
from dsv4lab.kv.padding import Bucket, pad_decode
from dsv4lab.model.builder import Shape
from dsv4lab.model.transformer import logits_view

MODEL = replace(
    preset("tiny"),
    hidden_size=128,  # what the tiled expert kernel takes
    moe_intermediate_size=128,
    compress_ratios=(4, 128),
    num_hash_layers=1,
    dspark=None,
    mtp_layers=0,
)
PROMPT = torch.randint(2, 512, (127,), generator=torch.Generator().manual_seed(0)).tolist()


def open_runner(backend: str) -> Runner:
    config = EngineConfig(
        "tiny",
        backend=backend,
        dtype="bfloat16",
        streams="serial",
        max_running_requests=3,
        max_total_tokens=1024,
        chunked_prefill_size=144,
        kv_cache_dtype=sys.argv[1],
        index_cache_dtype=sys.argv[2],
    )
    return Runner(MODEL, random_weights(MODEL, 0, torch.bfloat16), config)


def prefill(runner: Runner) -> torch.Tensor:
    return runner.forward([BatchItem(1, (1,), 0, tuple(PROMPT)), BatchItem(2, (2,), 0, (5,) * 5)], "prefill").logits


def items() -> Sequence[BatchItem]:
    """The first request completes an entry of either ratio, and has more entries than top-k takes."""
    return [BatchItem(1, (1,), 127, (5,)), BatchItem(2, (2,), 5, (7,))]


def padded_decode(runner: Runner) -> torch.Tensor:
    meta: StepMetadata = build_metadata(runner.geometry, MODEL.index_topk, items(), "decode")
    meta = pad_decode(meta, runner.geometry, MODEL.index_topk, Bucket(3, 1, 2))
    shape = Shape("decode", 3, 3)
    with torch.inference_mode():
        runner._programs.inputs.set(meta, meta.last_rows)
        runner.launch(shape)
        return logits_view(runner._programs.builder(shape))[:2].clone()


def main() -> None:
    repair()
    torch_runner, triton_runner, padded_runner = (open_runner(b) for b in ("torch", "triton", "triton"))
    first = prefill(torch_runner), prefill(triton_runner)
    for mine, other in zip(
        padded_runner.pool.resources().values(), triton_runner.pool.resources().values(), strict=True
    ):
        for target, source in zip(mine, other, strict=True):
            target.copy_(source)
    three = [*items(), BatchItem(3, (3,), 0, (9,))]
    second = torch_runner.forward(three, "decode").logits, triton_runner.forward(three, "decode").logits
    third = padded_decode(padded_runner)
    distance = {
        "prefill": (first[0] - first[1]).abs().max().item(),
        "decode": (second[0] - second[1]).abs().max().item(),
        "padding": (third - second[1][:2]).abs().max().item(),
        "largest": second[0].abs().max().item(),
    }
    print(json.dumps(distance))


if __name__ == "__main__":
    main()
