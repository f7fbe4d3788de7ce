"""Tiles of the bf16 product, by tokens, and up to how many of them each is a matrix-vector product of its own."""

from __future__ import annotations

from dsv4_kernels.launch import PDL, LaunchTable, config, row

VECTOR_TOKENS = 2
"""Up to this many tokens the weights are read once for each, mostly out of the cache, without the matrix units."""

BF16_GEMV = LaunchTable(
    "bf16_gemv",
    {
        "nvidia": (row(config(4, 1, PDL, BLOCK_N=2, BLOCK_K=1024)),),
        "amd": (row(config(4, 1, BLOCK_N=4, BLOCK_K=1024)),),
    },
    tuple(
        config(warps, 1, PDL, BLOCK_N=n, BLOCK_K=k)
        for warps, n, k in ((8, 4, 2048), (4, 4, 1024), (4, 4, 2048), (8, 8, 1024), (8, 2, 2048), (8, 2, 4096))
    ),
)

BF16_GEMM = LaunchTable(
    "bf16_gemm",
    {
        "nvidia": (
            row(config(4, 3, PDL, CHAINS=4, BLOCK_T=16, BLOCK_N=16, BLOCK_K=128), tokens=16),
            row(config(4, 3, PDL, CHAINS=1, BLOCK_T=64, BLOCK_N=64, BLOCK_K=128), tokens=64),
            row(config(8, 3, PDL, CHAINS=1, BLOCK_T=128, BLOCK_N=128, BLOCK_K=64)),
        ),
        "amd": (
            row(config(4, 2, CHAINS=1, BLOCK_T=16, BLOCK_N=16, BLOCK_K=256), tokens=16),
            row(config(4, 2, CHAINS=1, BLOCK_T=64, BLOCK_N=32, BLOCK_K=128), tokens=64),
            row(config(8, 2, CHAINS=1, BLOCK_T=128, BLOCK_N=128, BLOCK_K=64)),
        ),
    },
    tuple(
        config(warps, stages, PDL, CHAINS=chains, BLOCK_T=16, BLOCK_N=n, BLOCK_K=k)
        for warps, stages, chains, n, k in (
            (4, 3, 4, 16, 64), (4, 4, 4, 16, 64), (4, 6, 4, 16, 64), (8, 3, 8, 16, 64), (8, 4, 8, 16, 64),
            (8, 4, 8, 16, 32), (4, 4, 8, 16, 32), (4, 6, 1, 16, 128),
        )
    ),
)  # fmt: skip
