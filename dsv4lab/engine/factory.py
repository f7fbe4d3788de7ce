"""The worker's model: configuration, weights and runner of an engine configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from dsv4lab.checkpoint.draft import DraftKind, draft_stages
from dsv4lab.checkpoint.load import Progress
from dsv4lab.checkpoint.source import draft_weights, model_config, model_weights, stored_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.model import ModelConfig
from dsv4lab.config.presets import PRESETS, first_layers
from dsv4lab.engine.drafters import draft_tokens, make_drafter, target_taps, with_block
from dsv4lab.engine.mirror import LeadRunner, MirroredDrafter
from dsv4lab.engine.placement import DTYPES, place_of
from dsv4lab.engine.protocol import ModelRunner
from dsv4lab.engine.runner import Runner
from dsv4lab.engine.snapshots import DraftEdges
from dsv4lab.engine.speculation import Speculator
from dsv4lab.engine.warm import warm_cpu_loops
from dsv4lab.model.weights import Named
from dsv4lab.parallel.groups import ALONE
from dsv4lab.parallel.layout import Layout
from dsv4lab.parallel.sharding import Sharding
from dsv4lab.spec.draft import Drafter

if TYPE_CHECKING:
    from dsv4lab.engine.seat import Seat


def make_runner(
    config: EngineConfig, stage: Callable[[str], None], seat: Seat | None = None
) -> tuple[ModelRunner, ModelConfig]:
    """Build what ``config`` names, telling ``stage`` what takes time. Raises ``LabError`` for what cannot be built.

    With a ``seat``, the part of it that this rank, which leads an attention group, holds.
    """
    runner, model, drafter = build(config, stage, seat)
    if drafter is not None:
        steered = MirroredDrafter(drafter, runner) if isinstance(runner, LeadRunner) else drafter
        runner.speculator = Speculator(runner, steered, config.verification, DraftEdges(drafter))
    return runner, model


def build(
    config: EngineConfig, stage: Callable[[str], None], seat: Seat | None
) -> tuple[Runner, ModelConfig, Drafter | None]:
    """Runner and drafter of one rank."""
    model = first_layers(model_config(config.model), config.num_layers)
    parallel = ALONE if seat is None else seat.parallel
    layout = parallel.layout
    kind = None if config.speculative == "off" else cast(DraftKind, config.speculative)
    if kind is not None:
        draft_stages(model, kind)
        model = with_block(model, config.draft_block)
        config = replace(config, verify_tokens=draft_tokens(model, kind, config.draft_tokens) + 1)
    stage("making synthetic weights" if config.model in PRESETS else f"reading {config.model}")
    weights = _weights(config, model, _percent(config.model, stage), _parts(layout, model))
    if config.device == "cpu" and config.dtype == "float32":
        stage("loading compiled loops")
        warm_cpu_loops(stage)
    stage("building the model")
    taps = target_taps(model, kind)
    if seat is not None and layout.tp_rank == 0:
        runner: Runner = LeadRunner(model, weights, config, taps, parallel, seat.crew)
    else:
        runner = Runner(model, weights, config, taps, parallel)
    if kind is None:
        return runner, model, None
    stage(f"building the {kind} drafter")
    seed = config.seed + 1 if config.draft_seed is None else config.draft_seed
    parts = _parts(layout.of_drafter(), model)
    tensors = draft_weights(config.model, model, kind, seed, DTYPES[config.dtype], parts)
    return runner, model, make_drafter(model, kind, tensors, config.verify_tokens - 1, runner)


def _weights(config: EngineConfig, model: ModelConfig, progress: Progress, parts: Sharding | None) -> Named:
    """As stored, a preset's are made on the device that will hold them."""
    dtype = DTYPES[config.dtype]
    if config.weights != "stored":
        return model_weights(config.model, model, config.seed, dtype, progress, parts)
    return stored_weights(config.model, model, config.seed, dtype, progress, parts, place_of(config).device)


def _parts(layout: Layout, model: ModelConfig) -> Sharding | None:
    return None if layout.world_size == 1 else Sharding(layout, model)


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
