"""Weights of the drafters as their ops take them (dsv4-spec 7.1, 7.3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dsv4lab.config.model import LayerKind, ModelConfig
from dsv4lab.model.weights import (
    ALL_EXPERTS,
    Experts,
    HyperConnectionWeights,
    LayerWeights,
    ModelWeights,
    Named,
    build_hyper_connection,
    build_layer,
    take_tensor,
)

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class MtpWeights:
    """One serial draft layer; ``embed`` and ``head`` are the model's."""

    embed: Tensor
    e_norm: Tensor
    h_norm: Tensor
    e_proj: Tensor
    h_proj: Tensor
    layers: tuple[LayerWeights, ...]
    hc_head: HyperConnectionWeights
    norm: Tensor
    head: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class DsparkWeights:
    """The block drafter; ``markov_in [V, r]`` is looked up, ``markov_out [V, r]`` projects back."""

    embed: Tensor
    main_proj: Tensor
    main_norm: Tensor
    layers: tuple[LayerWeights, ...]
    hc_head: HyperConnectionWeights
    norm: Tensor
    head: Tensor
    markov_in: Tensor
    markov_out: Tensor
    confidence: Tensor


def build_mtp(config: ModelConfig, tensors: Named, model: ModelWeights, experts: Experts = ALL_EXPERTS) -> MtpWeights:
    """``config`` is the drafter's (:func:`dsv4lab.checkpoint.draft.draft_layers_config`); ``tensors`` are consumed."""
    return MtpWeights(
        embed=model.embed,
        e_norm=take_tensor(tensors, "mtp.0.enorm.weight"),
        h_norm=take_tensor(tensors, "mtp.0.hnorm.weight"),
        e_proj=take_tensor(tensors, "mtp.0.e_proj.weight"),
        h_proj=take_tensor(tensors, "mtp.0.h_proj.weight"),
        layers=(build_layer(config, tensors, "mtp.0", LayerKind.SWA, experts),),
        hc_head=build_hyper_connection(tensors, "mtp.0.hc_head"),
        norm=take_tensor(tensors, "mtp.0.norm.weight"),
        head=model.head,
    )


def build_dspark(
    config: ModelConfig, tensors: Named, model: ModelWeights, experts: Experts = ALL_EXPERTS
) -> DsparkWeights:
    """See :func:`build_mtp`."""
    stages = config.num_hidden_layers
    last = f"mtp.{stages - 1}"
    return DsparkWeights(
        embed=model.embed,
        main_proj=take_tensor(tensors, "mtp.0.main_proj.weight"),
        main_norm=take_tensor(tensors, "mtp.0.main_norm.weight"),
        layers=tuple(build_layer(config, tensors, f"mtp.{s}", LayerKind.SWA, experts) for s in range(stages)),
        hc_head=build_hyper_connection(tensors, f"{last}.hc_head"),
        norm=take_tensor(tensors, f"{last}.norm.weight"),
        head=model.head,
        markov_in=take_tensor(tensors, f"{last}.markov_head.markov_w1.weight").float(),
        markov_out=take_tensor(tensors, f"{last}.markov_head.markov_w2.weight").float(),
        confidence=take_tensor(tensors, f"{last}.confidence_head.proj.weight").float(),
    )
