"""Launch choices of ``sparse_prefill``, by number of heads and by the mean length of the prefix lists.

Few heads leave matrix units idle unless neighbouring tokens fill them (``TOKENS``), which pays while the window that
they share is most of what they read; with long prefix lists the keys go on the rows instead.
"""

from __future__ import annotations

from dsv4_kernels.launch import LaunchTable, config, row

PREFILL = LaunchTable(
    "sparse_prefill",
    {
        "sm_90": (
            row(config(8, 2, BLOCK_H=16, TOKENS=4, BLOCK_K=32, KEYS_ON_ROWS=0), heads=16, prefix=48),
            row(config(4, 3, BLOCK_H=16, TOKENS=1, BLOCK_K=32, KEYS_ON_ROWS=0), heads=16),
            row(config(8, 2, BLOCK_H=32, TOKENS=2, BLOCK_K=32, KEYS_ON_ROWS=0), heads=32, prefix=128),
            row(config(8, 2, BLOCK_H=32, TOKENS=1, BLOCK_K=32, KEYS_ON_ROWS=0), heads=32),
            row(config(8, 2, BLOCK_H=64, TOKENS=1, BLOCK_K=32, KEYS_ON_ROWS=0)),
        ),
        "sm_100": (
            row(config(8, 2, BLOCK_H=16, TOKENS=4, BLOCK_K=32, KEYS_ON_ROWS=0), heads=16, prefix=48),
            row(config(4, 3, BLOCK_H=16, TOKENS=1, BLOCK_K=32, KEYS_ON_ROWS=0), heads=16),
            row(config(8, 2, BLOCK_H=32, TOKENS=2, BLOCK_K=32, KEYS_ON_ROWS=0), heads=32),
            row(config(8, 2, BLOCK_H=64, TOKENS=1, BLOCK_K=32, KEYS_ON_ROWS=0)),
        ),
        "gfx942": (
            row(config(8, 2, BLOCK_H=16, TOKENS=4, BLOCK_K=16, KEYS_ON_ROWS=0), heads=16, prefix=48),
            row(config(4, 2, BLOCK_H=16, TOKENS=1, BLOCK_K=32, KEYS_ON_ROWS=0), heads=16),
            row(config(8, 2, BLOCK_H=32, TOKENS=2, BLOCK_K=16, KEYS_ON_ROWS=0), heads=32),
            row(config(8, 2, BLOCK_H=64, TOKENS=1, BLOCK_K=16, KEYS_ON_ROWS=0)),
        ),
        "gfx950": (
            row(config(8, 2, BLOCK_H=16, TOKENS=4, BLOCK_K=16, KEYS_ON_ROWS=0), heads=16, prefix=48),
            row(config(4, 2, BLOCK_H=16, TOKENS=1, BLOCK_K=32, KEYS_ON_ROWS=0), heads=16),
            row(config(8, 2, BLOCK_H=32, TOKENS=2, BLOCK_K=16, KEYS_ON_ROWS=0), heads=32),
            row(config(8, 2, BLOCK_H=64, TOKENS=1, BLOCK_K=16, KEYS_ON_ROWS=0)),
        ),
    },
)

PREFILL_FP8 = LaunchTable(
    "sparse_prefill_fp8",
    {
        "nvidia": (row(config(8, 3, BLOCK_H=16, TOKENS=1, BLOCK_K=32, KEYS_ON_ROWS=0)),),
        "amd": (
            row(config(4, 1, BLOCK_H=16, TOKENS=1, BLOCK_K=16, KEYS_ON_ROWS=0), heads=16),
            row(config(8, 1, BLOCK_H=32, TOKENS=1, BLOCK_K=16, KEYS_ON_ROWS=0)),
        ),
    },
)
