"""The worker's model: configuration, weights and runner of an engine configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

from dsv4lab.checkpoint.draft import DraftKind, draft_stages
from dsv4lab.checkpoint.load import Progress
from dsv4lab.checkpoint.source import draft_weights, model_config, model_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.model import ModelConfig
from dsv4lab.config.presets import PRESETS
from dsv4lab.engine.drafters import draft_tokens, make_drafter, target_taps
from dsv4lab.engine.protocol import ModelRunner
from dsv4lab.engine.runner import DTYPES, Runner
from dsv4lab.engine.speculation import Speculator
from dsv4lab.engine.warm import warm_cpu_loops


def make_runner(config: EngineConfig, stage: Callable[[str], None]) -> tuple[ModelRunner, ModelConfig]:
    """Build what ``config`` names, telling ``stage`` what takes time. Raises ``LabError`` for what cannot be built."""
    model = model_config(config.model)
    kind = None if config.speculative == "off" else cast(DraftKind, config.speculative)
    if kind is not None:
        draft_stages(model, kind)
        config = replace(config, verify_tokens=draft_tokens(model, kind, config.draft_tokens) + 1)
    stage("making synthetic weights" if config.model in PRESETS else f"reading {config.model}")
    weights = model_weights(config.model, model, config.seed, DTYPES[config.dtype], _percent(config.model, stage))
    if config.device == "cpu" and config.dtype == "float32":
        stage("loading compiled loops")
        warm_cpu_loops()
    stage("building the model")
    runner = Runner(model, weights, config, target_taps(model, kind))
    if kind is not None:
        stage(f"building the {kind} drafter")
        seed = config.seed + 1 if config.draft_seed is None else config.draft_seed
        tensors = draft_weights(config.model, model, kind, seed, DTYPES[config.dtype])
        drafter = make_drafter(model, kind, tensors, config.verify_tokens - 1, runner)
        runner.speculator = Speculator(runner, drafter, config.verification)
    return runner, model


def _percent(model: str, stage: Callable[[str], None]) -> Progress:
    """Tell ``stage`` how far a checkpoint has been read, at every whole percent."""
    told = 0

    def tell(done: int, total: int) -> None:
        nonlocal told
        percent = 100 * done // total
        if percent > told:
            told = percent
            stage(f"reading {model}: {percent} %")

    return tell
