"""Which rank does what: integers only (dsv4-spec 8.3).

Ranks form a grid of ``dp_size`` groups of ``tp_size``. A group shares the heads of its requests' attention; the ranks
at one place of every group are *peers*, and gather tokens for the experts, which all ranks share: ``ep_size`` parts of
whole experts, each expert of a part split over the ranks of that part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dsv4lab.config.model import ModelConfig
from dsv4lab.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Layout:
    """The grid, and the place of ``rank`` in it."""

    tp_size: int = 1
    dp_size: int = 1
    ep_size: int = 1
    rank: int = 0

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.tp_size * self.dp_size

    @property
    def tp_rank(self) -> int:
        """Place in the attention group; 0 leads it."""
        return self.rank % self.tp_size

    @property
    def dp_rank(self) -> int:
        """Number of the attention group."""
        return self.rank // self.tp_size

    @property
    def moe_tp_size(self) -> int:
        """Ranks that share one routed expert."""
        return self.world_size // self.ep_size

    @property
    def moe_tp_rank(self) -> int:
        """Place among them."""
        return self.rank % self.moe_tp_size

    @property
    def ep_rank(self) -> int:
        """Number of the part of experts."""
        return self.rank // self.moe_tp_size

    @property
    def leader(self) -> int:
        """First rank of this rank's attention group."""
        return self.dp_rank * self.tp_size

    def at(self, rank: int) -> Layout:
        """The same grid, seen from another rank."""
        return replace(self, rank=rank)

    def of_drafter(self) -> Layout:
        """The grid of a drafter: within one attention group, so that groups draft independently of one another."""
        return self if self.dp_size == 1 else Layout(self.tp_size, rank=self.tp_rank)

    def experts(self, config: ModelConfig) -> range:
        """Routed experts of which this rank holds a part."""
        count = config.n_routed_experts // self.ep_size
        return range(self.ep_rank * count, (self.ep_rank + 1) * count)

    def local(self, config: ModelConfig) -> ModelConfig:
        """``config`` with this rank's heads and output groups; all else is whole."""
        if self.tp_size == 1:
            return config
        return replace(
            config,
            num_attention_heads=config.num_attention_heads // self.tp_size,
            o_groups=config.o_groups // self.tp_size,
        )

    def check(self, config: ModelConfig) -> None:
        """Raise :class:`ConfigError`, naming field and what would fit, unless every split comes out even."""
        for size, value, counts in self._splits(config):
            wrong = next(((field, n) for field, n in counts if n % value), None)
            if wrong is not None:
                fit = [str(v) for v in range(1, 65) if not any(n % v for _, n in counts)]
                raise ConfigError(
                    f"{size} = {value}: {config.name} has {wrong[0]} = {wrong[1]}, which {value} ranks cannot share "
                    f"evenly; it takes {', '.join(fit[:-1])}{' or ' if len(fit) > 1 else ''}{fit[-1]}"
                )

    def _splits(self, config: ModelConfig) -> list[tuple[str, int, list[tuple[str, int]]]]:
        """Name of a size, its value, and the fields that must divide by it."""
        groups = [("num_attention_heads", config.num_attention_heads), ("o_groups", config.o_groups)]
        inner = ("moe_intermediate_size", config.moe_intermediate_size)
        return [
            ("tp_size", self.tp_size, [*groups, ("vocab_size", config.vocab_size)]),
            ("ep_size", self.ep_size, [("n_routed_experts", config.n_routed_experts)]),
            ("tp_size x dp_size / ep_size", self.moe_tp_size, [inner]),
            (
                "tp_size x dp_size",
                self.world_size,
                [("n_shared_experts x moe_intermediate_size", config.n_shared_experts * inner[1])],
            ),
        ]


def led_by(layout: Layout) -> list[int]:
    """Ranks that this one starts: its followers, and rank 0 the leaders of the other groups."""
    if layout.tp_rank:
        return []
    others = range(layout.tp_size, layout.world_size, layout.tp_size) if layout.rank == 0 else ()
    return [*range(layout.rank + 1, layout.rank + layout.tp_size), *others]
