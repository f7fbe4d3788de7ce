"""Launch choices of the indexer scores, by number of tokens, and of the sibling for long contexts."""

from __future__ import annotations

from dsv4_kernels.launch import PDL, Config, LaunchTable, Row, config, row

INDEX_SCORE = LaunchTable(
    "index_score",
    {
        "nvidia": (
            row(config(4, 1, PDL, BLOCK_E=64, TOKENS=1), tokens=4),
            row(config(4, 2, PDL, BLOCK_E=128, TOKENS=1), tokens=256),
            row(config(4, 3, PDL, BLOCK_E=128, TOKENS=16)),
        ),
        "amd": (
            row(config(4, 1, BLOCK_E=64, TOKENS=1), tokens=256),
            row(config(4, 2, BLOCK_E=128, TOKENS=16)),
        ),
    },
)


def _hopper(kind: str, chosen: tuple[Row, ...], *others: tuple[int, int]) -> LaunchTable:
    return LaunchTable(f"index_score.hopper_{kind}", {"sm_90": chosen}, tuple(_ring(*other) for other in others))


def _ring(programs: int, stages: int) -> Config:
    """Programs that a unit holds, and tiles of their rings."""
    return config(4, 1, PDL, PER_UNIT=programs, STAGES=stages)


HOPPER = (
    _hopper("bf16", (row(_ring(3, 3)),), (2, 5), (2, 4)),
    _hopper("fp8", (row(_ring(4, 4), scores=1 << 19), row(_ring(4, 3))), (3, 5)),
    _hopper("fp4", (row(_ring(4, 4)),), (4, 5)),
)
"""Where each token's keys are many and read for itself, by the kind of keys."""

HOPPER_TOKENS = 256
"""It serves up to so many tokens: more of one request share keys."""

HOPPER_FROM = ((8192, 1 << 15), (8192, 1 << 15), (2048, 1 << 11))
"""From so many entries a token on, or so many scores of all, by the kind of keys."""
