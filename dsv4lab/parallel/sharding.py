"""Which part of which tensor a rank holds, by canonical name (dsv4-spec 8.3).

Compressors, the indexer, norms, hyper-connections, the router and ``wq_a``, ``wkv`` are replicated: whole everywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dsv4lab.config.model import ModelConfig
from dsv4lab.errors import ConfigError
from dsv4lab.parallel.layout import Layout

_EXPERT = re.compile(r"\.ffn\.experts\.(\d+)\.(w[123])\.")
_SHARED = re.compile(r"\.ffn\.shared_experts\.(w[123])\.")
_TP_ROWS = re.compile(r"^(embed|head)\.weight$|\.attn\.(wq_b\.weight|attn_sink|wo_a\.weight)$")
_TP_COLUMNS = re.compile(r"\.attn\.wo_b\.weight$")


@dataclass(frozen=True, slots=True)
class Part:
    """Indices ``start`` to ``stop`` of dimension ``axis``."""

    axis: int
    start: int
    stop: int

    def of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the part of a tensor of ``shape``."""
        return (*shape[: self.axis], self.stop - self.start, *shape[self.axis + 1 :])


@dataclass(frozen=True, slots=True)
class Sharding:
    """The parts of one rank."""

    layout: Layout
    config: ModelConfig

    def holds(self, name: str) -> bool:
        """Whether this rank holds any of tensor ``name``: others' experts it does not."""
        found = _EXPERT.search(name)
        return found is None or int(found[1]) in self.layout.experts(self.config)

    def part(self, name: str, shape: tuple[int, ...]) -> Part | None:
        """The part that this rank holds of a tensor of ``shape``; None: all of it.

        Raises :class:`ConfigError` if it cannot be split evenly.
        """
        split = self._split(name)
        if split is None or split[2] == 1:
            return None
        axis, place, count = split
        size, rest = divmod(shape[axis], count)
        if rest:
            raise ConfigError(f"{name}: dimension {axis} of {list(shape)} does not split evenly over {count} ranks")
        return Part(axis, place * size, (place + 1) * size)

    def _split(self, name: str) -> tuple[int, int, int] | None:
        """Dimension, place and number of parts."""
        at = self.layout
        if _TP_ROWS.search(name):
            return 0, at.tp_rank, at.tp_size
        if _TP_COLUMNS.search(name):
            return 1, at.tp_rank, at.tp_size
        if found := _EXPERT.search(name):
            return int(found[2] == "w2"), at.moe_tp_rank, at.moe_tp_size
        if found := _SHARED.search(name):
            return int(found[1] == "w2"), at.rank, at.world_size
        return None
