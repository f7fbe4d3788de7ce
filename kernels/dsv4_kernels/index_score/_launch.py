"""Launch choices of the indexer scores, by number of tokens."""

from __future__ import annotations

from dsv4_kernels.launch import PDL, LaunchTable, config, row

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
