"""Tiles of the fp8 product. Few tokens: narrow tiles and splits of K, so that all units read weights."""

from __future__ import annotations

from dsv4_kernels.launch import LaunchTable, config, row

BLOCK_FP8_GEMM = LaunchTable(
    "block_fp8_gemm",
    {
        "nvidia": (
            row(config(4, 4, BLOCK_T=16, BLOCK_N=128, GROUP_T=1, SPLITS=8), tokens=16, n=8192),
            row(config(4, 4, BLOCK_T=16, BLOCK_N=64, GROUP_T=1, SPLITS=1), tokens=16),
            row(config(4, 4, BLOCK_T=64, BLOCK_N=64, GROUP_T=4, SPLITS=1), tokens=128),
            row(config(8, 4, BLOCK_T=128, BLOCK_N=128, GROUP_T=8, SPLITS=1)),
        ),
        "amd": (
            row(config(4, 2, BLOCK_T=16, BLOCK_N=32, GROUP_T=1, SPLITS=4), tokens=16, n=8192),
            row(config(4, 2, BLOCK_T=16, BLOCK_N=64, GROUP_T=1, SPLITS=1), tokens=16),
            row(config(4, 2, BLOCK_T=64, BLOCK_N=64, GROUP_T=4, SPLITS=1), tokens=128),
            row(config(8, 2, BLOCK_T=128, BLOCK_N=128, GROUP_T=8, SPLITS=1)),
        ),
    },
    (
        config(4, 4, BLOCK_T=16, BLOCK_N=32, GROUP_T=1, SPLITS=8),
        config(4, 6, BLOCK_T=16, BLOCK_N=64, GROUP_T=1, SPLITS=8),
        config(4, 4, BLOCK_T=16, BLOCK_N=128, GROUP_T=1, SPLITS=8),
        config(4, 6, BLOCK_T=16, BLOCK_N=32, GROUP_T=1, SPLITS=1),
        config(4, 4, BLOCK_T=16, BLOCK_N=128, GROUP_T=1, SPLITS=1),
        config(4, 4, BLOCK_T=64, BLOCK_N=128, GROUP_T=8, SPLITS=1),
        config(8, 4, BLOCK_T=128, BLOCK_N=128, GROUP_T=8, SPLITS=1),
        config(8, 4, BLOCK_T=128, BLOCK_N=64, GROUP_T=8, SPLITS=1),
    ),
)
