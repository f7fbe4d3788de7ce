"""The whole model against transformers' DeepseekV4ForCausalLM on the same weights, fp32."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dsv4lab.checkpoint.load import load_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.from_json import load_model_config
from dsv4lab.engine.runner import Runner
from dsv4lab.kv.metadata import BatchItem

transformers = pytest.importorskip("transformers", minversion="5.17")

LENGTHS = [*range(1, 10), *range(126, 131), *range(254, 259), *range(383, 386)]
LIMIT = 1e-3
YARN = {
    "rope_type": "yarn",
    "factor": 16.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 64,
}


def _config(**changes: Any) -> Any:
    small = {
        "vocab_size": 160,
        "hidden_size": 48,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "head_dim": 64,
        "q_lora_rank": 24,
        "o_lora_rank": 16,
        "o_groups": 2,
        "qk_rope_head_dim": 16,
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
        "num_hash_layers": 2,
        "compress_ratios": [0, 4, 128, 4, 128],
        "index_n_heads": 16,  # with few heads, scores tie exactly at 0 and the choice is free
        "index_head_dim": 32,
        "index_topk": 24,
        "sliding_window": 128,
        "max_position_embeddings": 4096,
        "rope_scaling": YARN,
    }
    return transformers.DeepseekV4Config(**{**small, **changes})


def _reference(config: Any, seed: int) -> Any:
    torch.manual_seed(seed)
    model = transformers.DeepseekV4ForCausalLM(config).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() >= 2:
                p.normal_(0, 0.6 * p.shape[-1] ** -0.5)
            else:
                p.normal_(1.0 if "norm" in name or "scale" in name else 0.0, 0.3)
        for name, buffer in model.named_buffers():
            if "tid2eid" in name:
                rows = [torch.randperm(config.n_routed_experts)[: buffer.shape[1]] for _ in range(buffer.shape[0])]
                buffer.copy_(torch.stack(rows))
            elif "e_score_correction_bias" in name:
                buffer.normal_(0, 0.1)
    return model


def _runner(path: Path) -> Runner:
    config = load_model_config(path)
    engine = EngineConfig(str(path), streams="serial", max_running_requests=2, max_total_tokens=2048)
    return Runner(config, load_weights(path, config, torch.float32), engine)


def _logits(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        out: torch.Tensor = model(torch.tensor([tokens])).logits[0].float()
    return out


VARIANTS = {
    "yarn": {},
    "no yarn": {"rope_scaling": None},
    "all entries selected": {"index_topk": 128},
    "other dims": {
        "hidden_size": 80,
        "head_dim": 32,
        "qk_rope_head_dim": 8,
        "num_attention_heads": 8,
        "o_groups": 4,
        "index_head_dim": 16,
        "index_n_heads": 24,
        "compress_ratios": [128, 4, 0, 4, 128],
        "num_hash_layers": 1,
        "hc_mult": 4,
        "sliding_window": 32,
    },
}


@pytest.fixture(scope="module", params=list(VARIANTS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Runner]]:
    model = _reference(_config(**VARIANTS[request.param]), seed=len(request.param))
    path = tmp_path_factory.mktemp("hf")
    model.save_pretrained(path)
    runner = _runner(path)
    yield model, runner
    runner.close()


def _tokens(model: Any, n: int) -> list[int]:
    return torch.randint(0, model.config.vocab_size, (n,), generator=torch.Generator().manual_seed(n)).tolist()


@pytest.mark.parametrize("n", LENGTHS)
def test_one_shot(pair: tuple[Any, Runner], n: int) -> None:
    model, runner = pair
    tokens = _tokens(model, n)
    runner.reset_slot(1)
    ours = runner.all_logits([BatchItem(1, (3, 1), 0, tuple(tokens))], "prefill")
    assert (ours - _logits(model, tokens)).abs().max() <= LIMIT


def test_token_by_token(pair: tuple[Any, Runner]) -> None:
    model, runner = pair
    tokens = _tokens(model, LENGTHS[-1])
    runner.reset_slot(2)
    rows = [runner.forward([BatchItem(2, (2, 4), i, (t,))], "decode").logits for i, t in enumerate(tokens)]
    assert (torch.cat(rows) - _logits(model, tokens)).abs().max() <= LIMIT


@pytest.mark.parametrize("seed", range(6))
def test_random_chunks(pair: tuple[Any, Runner], seed: int) -> None:
    model, runner = pair
    rng = random.Random(seed)
    tokens = _tokens(model, LENGTHS[-1])
    runner.reset_slot(1)
    rows, start = [], 0
    while start < len(tokens):
        size = min(rng.choice([1, 2, 3, 5, 60, 129, 200]), len(tokens) - start)
        mode = "decode" if size == 1 and start and rng.random() < 0.5 else "prefill"
        rows.append(runner.all_logits([BatchItem(1, (2, 3), start, tuple(tokens[start : start + size]))], mode))
        start += size
    assert (torch.cat(rows) - _logits(model, tokens)).abs().max() <= LIMIT


def test_two_requests_in_one_forward(pair: tuple[Any, Runner]) -> None:
    model, runner = pair
    first, second = _tokens(model, 257), _tokens(model, 130)
    for slot in (1, 2):
        runner.reset_slot(slot)
    runner.forward([BatchItem(1, (1, 2), 0, tuple(first[:200]))], "prefill")
    items = [BatchItem(1, (1, 2), 200, tuple(first[200:-1])), BatchItem(2, (4,), 0, tuple(second[:-1]))]
    runner.forward(items, "prefill")
    last = [BatchItem(2, (4,), 129, (second[-1],)), BatchItem(1, (1, 2), 256, (first[-1],))]
    ours = runner.forward(last, "decode").logits
    assert (ours[0] - _logits(model, second)[-1]).abs().max() <= LIMIT
    assert (ours[1] - _logits(model, first)[-1]).abs().max() <= LIMIT
