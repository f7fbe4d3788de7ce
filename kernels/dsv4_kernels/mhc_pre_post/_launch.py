"""Tiles of the hyper-connection kernels. ``SPLITS`` spreads the hidden dim: many for few tokens, one for many."""

from __future__ import annotations

from dsv4_kernels.launch import LaunchTable, config, row

MIX = LaunchTable(
    "mhc_mix",
    {
        "nvidia": (
            row(config(4, 1, BLOCK_T=16, BLOCK_D=32, SPLITS=64), tokens=16),
            row(config(4, 1, BLOCK_T=16, BLOCK_D=32, SPLITS=16), tokens=256),
            row(config(4, 2, BLOCK_T=32, BLOCK_D=64, SPLITS=4)),
        ),
        "amd": (
            row(config(4, 1, BLOCK_T=16, BLOCK_D=32, SPLITS=64), tokens=16),
            row(config(4, 1, BLOCK_T=16, BLOCK_D=32, SPLITS=16), tokens=256),
            row(config(4, 1, BLOCK_T=32, BLOCK_D=32, SPLITS=4)),
        ),
    },
    (
        config(2, 1, BLOCK_T=16, BLOCK_D=32, SPLITS=64),
        config(4, 1, BLOCK_T=16, BLOCK_D=32, SPLITS=128),
        config(2, 1, BLOCK_T=16, BLOCK_D=32, SPLITS=128),
        config(4, 2, BLOCK_T=16, BLOCK_D=64, SPLITS=4),
        config(4, 2, BLOCK_T=16, BLOCK_D=128, SPLITS=2),
        config(8, 2, BLOCK_T=64, BLOCK_D=64, SPLITS=4),
        config(8, 2, BLOCK_T=32, BLOCK_D=128, SPLITS=4),
        config(8, 2, BLOCK_T=64, BLOCK_D=32, SPLITS=8),
        config(4, 3, BLOCK_T=32, BLOCK_D=32, SPLITS=8),
    ),
)

COLLAPSE = LaunchTable(
    "mhc_collapse",
    {
        "nvidia": (
            row(config(4, BLOCK_T=1, BLOCK_D=512), tokens=64),
            row(config(4, BLOCK_T=8, BLOCK_D=512)),
        ),
        "amd": (
            row(config(2, BLOCK_T=1, BLOCK_D=512), tokens=64),
            row(config(4, BLOCK_T=8, BLOCK_D=512)),
        ),
    },
    (
        config(2, BLOCK_T=1, BLOCK_D=256),
        config(4, BLOCK_T=1, BLOCK_D=1024),
        config(4, BLOCK_T=4, BLOCK_D=512),
        config(8, BLOCK_T=16, BLOCK_D=256),
        config(8, BLOCK_T=32, BLOCK_D=128),
    ),
)
