"""Tiles of the router. Few tokens: many programs with a few experts each; many tokens: matrix units."""

from __future__ import annotations

from dsv4_kernels.launch import PDL, LaunchTable, config, row

ROUTE = LaunchTable(
    "moe_route",
    {
        "nvidia": (
            row(config(4, 1, PDL, BLOCK_T=1, BLOCK_E=4, BLOCK_D=2048, SPLITS=2, DOT=0), tokens=16, d=4096),
            row(config(4, 1, PDL, BLOCK_T=1, BLOCK_E=2, BLOCK_D=4096, SPLITS=1, DOT=0), tokens=16),
            row(config(4, 3, PDL, BLOCK_T=16, BLOCK_E=64, BLOCK_D=128, SPLITS=4, DOT=1), tokens=512),
            row(config(4, 3, PDL, BLOCK_T=32, BLOCK_E=128, BLOCK_D=64, SPLITS=1, DOT=1)),
        ),
        "amd": (
            row(config(4, 1, BLOCK_T=1, BLOCK_E=2, BLOCK_D=1024, SPLITS=1, DOT=0), tokens=2),
            row(config(4, 2, BLOCK_T=16, BLOCK_E=32, BLOCK_D=128, SPLITS=4, DOT=1), tokens=16),
            row(config(4, 2, BLOCK_T=16, BLOCK_E=64, BLOCK_D=64, SPLITS=4, DOT=1), tokens=512),
            row(config(4, 2, BLOCK_T=32, BLOCK_E=128, BLOCK_D=32, SPLITS=1, DOT=1)),
        ),
    },
    (
        config(8, 1, PDL, BLOCK_T=1, BLOCK_E=2, BLOCK_D=4096, SPLITS=1, DOT=0),
        config(4, 1, PDL, BLOCK_T=16, BLOCK_E=32, BLOCK_D=256, SPLITS=8, DOT=1),
        config(2, 1, PDL, BLOCK_T=1, BLOCK_E=8, BLOCK_D=512, SPLITS=8, DOT=0),
        config(4, 1, PDL, BLOCK_T=16, BLOCK_E=16, BLOCK_D=256, SPLITS=8, DOT=1),
        config(2, 1, PDL, BLOCK_T=16, BLOCK_E=32, BLOCK_D=256, SPLITS=8, DOT=1),
        config(4, 3, PDL, BLOCK_T=64, BLOCK_E=128, BLOCK_D=64, SPLITS=2, DOT=1),
        config(8, 3, PDL, BLOCK_T=128, BLOCK_E=128, BLOCK_D=64, SPLITS=1, DOT=1),
        config(8, 3, PDL, BLOCK_T=64, BLOCK_E=256, BLOCK_D=64, SPLITS=1, DOT=1),
    ),
)

FEW = LaunchTable(
    "moe_route.few",
    {
        "nvidia": (
            row(config(1, 1, PDL, BLOCK_E=1, BLOCK_D=4096), d=4096),
            row(config(4, 1, PDL, BLOCK_E=2, BLOCK_D=8192)),
        ),
        "amd": (row(config(1, 1, BLOCK_E=1, BLOCK_D=1024)),),
    },
    (
        config(1, 1, PDL, BLOCK_E=1, BLOCK_D=2048),
        config(1, 1, PDL, BLOCK_E=2, BLOCK_D=2048),
        config(1, 1, PDL, BLOCK_E=2, BLOCK_D=1024),
        config(2, 1, PDL, BLOCK_E=2, BLOCK_D=4096),
        config(2, 1, PDL, BLOCK_E=1, BLOCK_D=8192),
        config(1, 1, PDL, BLOCK_E=1, BLOCK_D=1024),
    ),
)
"""Of few tokens that choose by score."""

FEW_TOKENS = 4
"""The most tokens that ``FEW`` serves."""

NO_WORDS = config(4, 1, PDL, PAIRS=0, GROUP=1, VEC=8)

WORDS = LaunchTable(
    "moe_route.words",
    {
        "sm_90": (
            row(config(4, 1, PDL, PAIRS=2, GROUP=1, VEC=8), tokens=2, d=4096),
            row(config(4, 1, PDL, PAIRS=2, GROUP=4, VEC=8), tokens=4, d=4096),
            row(config(8, 1, PDL, PAIRS=2, GROUP=8, VEC=4), tokens=16, d=4096),
            row(config(4, 1, PDL, PAIRS=2, GROUP=1, VEC=8), tokens=1, d=7168),
            row(config(4, 1, PDL, PAIRS=2, GROUP=4, VEC=8), tokens=16, d=7168),
            row(NO_WORDS),
        ),
        "nvidia": (row(NO_WORDS),),
    },
    tuple(
        config(warps, 1, PDL, PAIRS=pairs, GROUP=group, VEC=vec)
        for group in (1, 4, 8)
        for pairs, warps, vec in ((1, 4, 8), (2, 8, 4), (2, 4, 8), (2, 8, 8))
    ),
)
"""Of NVIDIA's sibling for few tokens of bf16, with ``2 PAIRS`` experts a program; ``PAIRS`` 0 is: not it. Timed on an
H200 at 1, 2, 4, 8 and 16 tokens. No other arch has been timed."""

WORDS_TOKENS = 16
"""The most tokens that ``WORDS`` serves."""

HASH_ROUTE = LaunchTable(
    "hash_route",
    {"nvidia": (row(config(16, 1, PDL, BLOCK_D=4096)),), "amd": (row(config(4, BLOCK_D=1024)),)},
    (config(8, 1, PDL, BLOCK_D=2048), config(16, 1, PDL, BLOCK_D=2048), config(32, 1, PDL, BLOCK_D=4096)),
)

HASH_TOKENS = 64
"""Up to this many tokens the scores of a hash layer are computed for the chosen experts alone."""
