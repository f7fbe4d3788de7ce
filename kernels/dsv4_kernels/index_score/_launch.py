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

INDEX_SCORE_LONG = LaunchTable(
    "index_score.long",
    {
        "sm_90": (
            row(config(4, 1, PDL, BLOCK_E=64, STAGES=6), run=512),
            row(config(4, 1, PDL, BLOCK_E=128, STAGES=6)),
        )
    },
    tuple(config(w, 1, PDL, BLOCK_E=e, STAGES=s) for w, e, s in ((4, 64, 8), (8, 128, 6), (8, 128, 8), (4, 64, 11))),
)
"""Where each token's keys are many and read for itself, in runs of ``run`` entries: bf16 and fp8 keys."""

INDEX_SCORE_LONG_FP4 = LaunchTable(
    "index_score.long_fp4",
    {"sm_90": (row(config(4, 1, PDL, BLOCK_E=64, STAGES=6)),)},
    tuple(config(w, 1, PDL, BLOCK_E=e, STAGES=s) for w, e, s in ((4, 64, 8), (8, 128, 6), (4, 64, 11))),
)
"""As above: fp4 keys, whose tiles of 128 spill registers."""

LONG_TOKENS, LONG_PRODUCTS = 256, 1 << 17
"""It serves up to so many tokens (more of one request share keys), from so many scores on."""
