"""The drafter that an engine configuration asks for."""

from __future__ import annotations

from dataclasses import replace

from dsv4lab.checkpoint.draft import DraftKind, draft_layers_config
from dsv4lab.config.model import ModelConfig
from dsv4lab.engine.draft_runs import draft_runs
from dsv4lab.engine.placement import take_there
from dsv4lab.engine.runner import Runner
from dsv4lab.errors import ConfigError
from dsv4lab.model.draft_weights import build_dspark, build_mtp
from dsv4lab.model.weights import Experts, Named
from dsv4lab.spec.draft import Drafter
from dsv4lab.spec.dspark import DsparkDrafter
from dsv4lab.spec.mtp import MtpDrafter

DEFAULT_MTP_DRAFTS = 3


def draft_tokens(model: ModelConfig, kind: DraftKind, wanted: int | None) -> int:
    """Drafts per step: as asked for, else 3 for MTP and the block size for DSpark.

    Raises :class:`ConfigError` for more DSpark drafts than a block holds.
    """
    if kind == "mtp":
        return DEFAULT_MTP_DRAFTS if wanted is None else wanted
    assert model.dspark is not None
    size = model.dspark.block_size
    if wanted is not None and wanted > size:
        raise ConfigError(f"draft_tokens = {wanted}: a DSpark block of {model.name} holds {size}")
    return size if wanted is None else wanted


def with_block(model: ModelConfig, size: int | None) -> ModelConfig:
    """``model`` with DSpark blocks of ``size`` tokens; None: as it has them. Weights do not depend on it."""
    if size is None or model.dspark is None:
        return model
    return replace(model, dspark=replace(model.dspark, block_size=size))


def target_taps(model: ModelConfig, kind: DraftKind | None) -> tuple[int, ...]:
    """Layers of the target whose output the drafter reads."""
    return model.dspark.target_layer_ids if kind == "dspark" and model.dspark is not None else ()


def make_drafter(model: ModelConfig, kind: DraftKind, tensors: Named, drafts: int, runner: Runner) -> Drafter:
    """A drafter beside ``runner``, on its streams and slots; ``tensors`` (canonical ``mtp.*``) are consumed."""
    take_there(tensors, runner.place)
    parallel = runner.parallel.of_drafter()
    layers = parallel.layout.local(draft_layers_config(model, kind))
    held = parallel.layout.experts(model) if parallel.layout.ep_size > 1 else None
    experts = Experts(held, runner.config.shared_expert_fusion)
    config = runner.config
    capacity = max(config.chunked_prefill_size, config.max_running_requests * (drafts + 1))
    runs = draft_runs(runner)
    if kind == "mtp":
        weights = build_mtp(layers, tensors, runner.weights, experts)
        return MtpDrafter(layers, weights, runner.geometry, drafts, capacity, runs, runner.place, parallel)
    assert model.dspark is not None
    block = build_dspark(layers, tensors, runner.weights, experts)
    return DsparkDrafter(layers, model.dspark, block, runner.geometry, drafts, capacity, runs, runner.place, parallel)
