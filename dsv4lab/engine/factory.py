"""The worker's model: configuration, weights and runner of an engine configuration."""

from __future__ import annotations

from collections.abc import Callable

from dsv4lab.checkpoint.source import model_config, model_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.model import ModelConfig
from dsv4lab.config.presets import PRESETS
from dsv4lab.engine.protocol import ModelRunner
from dsv4lab.engine.runner import DTYPES, Runner


def make_runner(config: EngineConfig, stage: Callable[[str], None]) -> tuple[ModelRunner, ModelConfig]:
    """Build what ``config`` names, telling ``stage`` what takes time. Raises ``LabError`` for what cannot be built."""
    model = model_config(config.model)
    stage("making synthetic weights" if config.model in PRESETS else f"reading {config.model}")
    weights = model_weights(config.model, model, config.seed, DTYPES[config.dtype])
    stage("building the model")
    return Runner(model, weights, config), model
