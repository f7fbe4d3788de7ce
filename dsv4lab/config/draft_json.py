"""Draft layers in a ``config.json`` (dsv4-spec 1.1, 7.3). Which drafter the weights really hold, their names tell."""

from __future__ import annotations

from typing import Any

from dsv4lab.config.fields import Fields
from dsv4lab.config.model import DsparkConfig, ModelConfig

_STAGES = 3
_FIELDS = ("dspark_block_size", "dspark_markov_rank", "dspark_noise_token_id", "dspark_target_layer_ids")


def read_mtp_layers(config: Fields) -> int:
    """Serial draft layers, 0 or 1."""
    return config.integer("num_nextn_predict_layers", 0, 1, default=0)


def read_dspark(config: Fields, layers: int, vocab: int) -> DsparkConfig | None:
    """The block drafter, if the file has any of its fields. Its stages are the tail of ``compress_ratios``, else 3."""
    if not any(config.has(name) for name in _FIELDS):
        return None
    targets = config.integers("dspark_target_layer_ids", 0, layers - 1)
    if not targets:
        raise config.error("dspark_target_layer_ids", "at least one layer")
    tail = len(config.integers("compress_ratios")) - layers if config.has("compress_ratios") else 0
    return DsparkConfig(
        target_layer_ids=targets,
        stages=tail or config.integer("dspark_num_stages", 1, 64, default=_STAGES),
        block_size=config.integer("dspark_block_size", 1, 64),
        markov_rank=config.integer("dspark_markov_rank", 1),
        noise_token_id=config.integer("dspark_noise_token_id", 0, vocab - 1),
    )


def draft_fields(config: ModelConfig) -> dict[str, Any]:
    """The fields that :func:`read_mtp_layers` and :func:`read_dspark` read."""
    fields: dict[str, Any] = {"num_nextn_predict_layers": config.mtp_layers}
    if config.dspark is not None:
        fields |= {
            "dspark_block_size": config.dspark.block_size,
            "dspark_markov_rank": config.dspark.markov_rank,
            "dspark_noise_token_id": config.dspark.noise_token_id,
            "dspark_target_layer_ids": list(config.dspark.target_layer_ids),
            "dspark_num_stages": config.dspark.stages,
        }
    return fields
