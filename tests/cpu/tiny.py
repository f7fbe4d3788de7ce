"""What tests of pitfalls and acceptance share: the tiny model on serial streams, texts, and plain ways to run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch

from dsv4lab.checkpoint.synthetic import random_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.model import ModelConfig
from dsv4lab.config.presets import preset
from dsv4lab.engine.runner import Runner
from dsv4lab.kv.metadata import BatchItem

SELECTING = preset("tiny")
"""The preset itself, whose indexer selects 16 entries."""

MODEL = replace(SELECTING, index_topk=256)
"""As the preset, but every entry is taken: a near tie in a selection is a jump that no tolerance covers."""


def runner_of(model: ModelConfig = MODEL, **fields: Any) -> Runner:
    """Three slots (1 to 3) and eight pages (1 to 8), poisoned unless said otherwise."""
    torch.set_num_threads(1)
    small = {"streams": "serial", "max_running_requests": 3, "max_total_tokens": 2048, "debug_poison": True}
    return Runner(model, random_weights(model, 0), EngineConfig("tiny", **{**small, **fields}))


def text(seed: int, n: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(2, MODEL.vocab_size, n).tolist())


def prefill(
    runner: Runner,
    tokens: Sequence[int],
    start: int = 0,
    stop: int | None = None,
    *,
    slot: int = 1,
    pages: tuple[int, ...] = (1, 2, 3),
) -> torch.Tensor:
    """Logits of ``tokens[start:stop]``, ``[n, vocab]``; a slot is cleared where a text begins."""
    if start == 0:
        runner.reset_slot(slot)
    return runner.all_logits([BatchItem(slot, pages, start, tuple(tokens[start:stop]))], "prefill")


def decode(
    runner: Runner, tokens: Sequence[int], at: int, *, slot: int = 1, pages: tuple[int, ...] = (1, 2, 3)
) -> torch.Tensor:
    """Logits ``[vocab]`` after ``tokens[at]``, decoded."""
    return runner.forward([BatchItem(slot, pages, at, (tokens[at],))], "decode").logits[0]


@cache
def token_by_token(seed: int, n: int) -> torch.Tensor:
    """Logits ``[n, vocab]`` of ``text(seed, n)``, one decode step each."""
    runner, tokens = runner_of(), text(seed, n)
    runner.reset_slot(1)
    return torch.stack([decode(runner, tokens, p) for p in range(n)])


def gap(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest difference; NaN counts as infinite."""
    return float((a - b).abs().nan_to_num(nan=torch.inf).max())
