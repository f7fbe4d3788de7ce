"""The two rope tables: plain for sliding-window layers, YaRN for compressed ones (dsv4-spec 2.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dsv4lab.backends.rope import rope_frequencies
from dsv4lab.config.model import LayerKind, ModelConfig

if TYPE_CHECKING:
    from dsv4lab.model.builder import OpListBuilder

MAIN_TABLE = "rope.main"
COMPRESS_TABLE = "rope.compress"


class RopeFrequencies:
    """Angular frequencies ``float64 [rope_dim / 2]`` of both tables."""

    def __init__(self, config: ModelConfig, device: torch.device | str = "cpu") -> None:
        self.main = rope_frequencies(config.qk_rope_head_dim, config.rope_theta).to(device)
        yarn = config.yarn
        compress = (
            rope_frequencies(config.qk_rope_head_dim, config.compress_rope_theta)
            if yarn is None
            else rope_frequencies(
                config.qk_rope_head_dim,
                config.compress_rope_theta,
                factor=yarn.factor,
                beta_fast=yarn.beta_fast,
                beta_slow=yarn.beta_slow,
                original_max_position=yarn.original_max_position,
            )
        )
        self.compress = compress.to(device)


def table_of(kind: LayerKind) -> str:
    """Resource name of the table that layers of ``kind`` rotate with."""
    return MAIN_TABLE if kind is LayerKind.SWA else COMPRESS_TABLE


def rope_view(b: OpListBuilder, table: str) -> torch.Tensor:
    """Cosines and sines of this forward's tokens: float32 ``[T, 2, rope_dim / 2]``."""
    return b.buffer(table, 2, b.config.qk_rope_head_dim // 2, dtype=torch.float32)


def list_rope_ops(b: OpListBuilder) -> None:
    """One op that fills the tables for this forward's positions."""
    kinds = {b.config.kind(i) for i in range(b.config.num_hidden_layers)}
    tables = sorted({table_of(kind) for kind in kinds})
    views = [(rope_view(b, t), b.frequencies.main if t == MAIN_TABLE else b.frequencies.compress) for t in tables]

    def run(_: object) -> None:
        for view, frequencies in views:
            b.ops.rope_table(b.inputs.meta.positions, frequencies, view)

    b.add("rope_table", run, (), tables)
