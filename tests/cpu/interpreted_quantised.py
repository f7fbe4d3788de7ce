"""Run under ``TRITON_INTERPRET=1``: a small model with fp8 weights on the Triton kernels, twice: with the activations
of its queries made in fp8, and quantised by each product. Prints the two runs' largest difference and largest logit.
"""

from __future__ import annotations

import json
from dataclasses import replace

import torch
from dsv4_kernels.testing.interpreter import repair

from dsv4lab.backends.base import QuantRows
from dsv4lab.backends.triton_ops import TritonOps
from dsv4lab.checkpoint.source import synthetic_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.presets import preset
from dsv4lab.engine.runner import Runner
from dsv4lab.kv.metadata import BatchItem

MODEL = replace(
    preset("tiny"),
    hidden_size=128,
    head_dim=128,
    q_lora_rank=256,
    o_lora_rank=64,
    index_n_heads=4,
    moe_intermediate_size=128,
    compress_ratios=(4,),
    num_hash_layers=0,
    dspark=None,
    mtp_layers=0,
)
PROMPT = tuple(torch.randint(2, 512, (70,), generator=torch.Generator().manual_seed(0)).tolist())


def logits() -> tuple[torch.Tensor, int]:
    """Of a prefill and a decode step, and how many products took activations in fp8."""
    config = EngineConfig(
        "tiny",
        backend="triton",
        dtype="bfloat16",
        streams="serial",
        max_running_requests=1,
        max_total_tokens=256,
        chunked_prefill_size=80,
    )
    runner = Runner(MODEL, synthetic_weights(MODEL, 0, torch.bfloat16), config)
    given = 0
    linear = TritonOps.linear

    def noting(self: TritonOps, x: torch.Tensor | QuantRows, *rest: object) -> None:
        nonlocal given
        given += isinstance(x, QuantRows)
        linear(self, x, *rest)  # type: ignore[arg-type]

    TritonOps.linear = noting  # type: ignore[method-assign]
    first = runner.forward([BatchItem(1, (1, 2), 0, PROMPT)], "prefill").logits
    second = runner.forward([BatchItem(1, (1, 2), len(PROMPT), (5,))], "decode").logits
    TritonOps.linear = linear  # type: ignore[method-assign]
    return torch.cat([first, second]), given


def main() -> None:
    repair()
    mine, given = logits()
    TritonOps.quantises = lambda self, weight: False  # type: ignore[method-assign]
    other, fewer = logits()
    assert given == fewer + 8, "of both steps: queries and the indexer's, qkv_a, and the shared expert"
    print(json.dumps({"difference": (mine - other).abs().max().item(), "largest": other.abs().max().item()}))


if __name__ == "__main__":
    main()
