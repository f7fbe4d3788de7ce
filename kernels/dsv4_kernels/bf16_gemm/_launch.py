"""Tiles of the bf16 product, by tokens, and up to how many of them each is a matrix-vector product of its own."""

from __future__ import annotations

from dsv4_kernels.launch import CARVEOUT, PDL, WHOLE, Config, LaunchTable, config, row

_WHOLE = {**PDL, CARVEOUT: WHOLE}

VECTOR_TOKENS = 2
"""Up to this many tokens the weights are read once for each, mostly out of the cache, without the matrix units. (Two
tokens of NVIDIA's: only where its own kernel cannot.)"""

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

LANES_TOKENS = 16
"""From 2 up to this many tokens NVIDIA has a kernel of its own."""


def _lanes(rows: int, ahead: int, soon: int, twice: int = 0) -> Config:
    """Rows of a program, steps of weights and of activations on their way, whether the operand has each row twice.

    All warps share a row. Without a preference for shared memory: what is loaded lands in the first cache.
    """
    return config(8, ahead, PDL, TWICE=twice, SOON=soon, BLOCK_N=rows, BLOCK_K=1024)


BF16_LANES = LaunchTable(
    "bf16_lanes",
    {
        "nvidia": (
            row(_lanes(8, 4, 4, twice=1), tokens=4, n=512, k=4096),
            row(_lanes(16, 4, 4), tokens=8, n=2048, k=4096),
            row(_lanes(24, 2, 4, twice=1), tokens=4, n=4096, k=4096),
            row(_lanes(32, 2, 1), tokens=8, k=4096),
            row(_lanes(8, 7, 7, twice=1), tokens=4, n=1024),
            row(_lanes(16, 4, 2), tokens=4, n=2048),
            row(_lanes(24, 2, 4, twice=1), tokens=4),
            row(_lanes(16, 3, 2), tokens=8, n=2048),
            row(_lanes(32, 2, 1), tokens=8),
            row(_lanes(16, 2, 2), n=2048, k=4096),
            row(_lanes(32, 1, 1), k=4096),
            row(_lanes(16, 3, 1), n=2048),
            row(_lanes(32, 2, 1)),
        ),
    },
)
"""``n``: rows of all groups. It may choose how rows are dealt to programs, but not ``BLOCK_K``: that is how they are
summed, which has to be the same for the rows of a weight and for a part of them."""

BF16_GEMM = LaunchTable(
    "bf16_gemm",
    {
        "nvidia": (
            row(config(4, 3, _WHOLE, CHAINS=4, BLOCK_T=16, BLOCK_N=16, BLOCK_K=128), tokens=16),
            row(config(4, 3, _WHOLE, CHAINS=1, BLOCK_T=64, BLOCK_N=64, BLOCK_K=128), tokens=64),
            row(config(8, 3, _WHOLE, CHAINS=1, BLOCK_T=128, BLOCK_N=128, BLOCK_K=64)),
        ),
        "amd": (
            row(config(4, 2, CHAINS=1, BLOCK_T=16, BLOCK_N=16, BLOCK_K=256), tokens=16),
            row(config(4, 2, CHAINS=1, BLOCK_T=64, BLOCK_N=32, BLOCK_K=128), tokens=64),
            row(config(8, 2, CHAINS=1, BLOCK_T=128, BLOCK_N=128, BLOCK_K=64)),
        ),
    },
    tuple(
        config(warps, stages, _WHOLE, CHAINS=chains, BLOCK_T=16, BLOCK_N=n, BLOCK_K=k)
        for warps, stages, chains, n, k in (
            (4, 3, 4, 16, 64), (4, 4, 4, 16, 64), (4, 6, 4, 16, 64), (8, 3, 8, 16, 64), (8, 4, 8, 16, 64),
            (8, 4, 8, 16, 32), (4, 4, 8, 16, 32), (4, 6, 1, 16, 128),
        )
    ),
)  # fmt: skip
