"""Tiles of the expert kernels, and from how many tokens on matrix tiles pay."""

from __future__ import annotations

from dsv4_kernels.launch import BESIDE, CARVEOUT, PDL, Config, LaunchTable, config, row

VECTOR_TOKENS = 16
"""Up to this many tokens each (token, expert) pair is a matrix-vector product."""

LANES_TOKENS = 64
"""As ``VECTOR_TOKENS``, for fp4 on NVIDIA."""


def _lanes(warps: int, rows: int, groups: int, registers: int) -> Config:
    options = {**PDL, "maxnreg": registers, CARVEOUT: BESIDE}
    return config(warps, 1, options, WARP_ROWS=rows, BLOCK_G=groups, STAGES=0)


def _ring(warps: int, rows: int, stages: int, registers: int, share: int = 100) -> Config:
    options = {**PDL, "maxnreg": registers, CARVEOUT: share}
    return config(warps, 1, options, WARP_ROWS=rows, BLOCK_G=4 * warps, STAGES=stages)


GATE_UP_LANES = LaunchTable(
    "moe_gate_up_lanes",
    {
        "nvidia": (
            row(_lanes(8, 1, 32, 128), tokens=2, inter=512),  # one wave of programs: more warps share a row
            row(_ring(4, 1, 4, 112), rest=0),
            row(_lanes(4, 1, 16, 128)),
        )
    },
    (
        *(
            _lanes(warps, rows, groups, registers)
            for registers in (80, 96, 128)
            for warps, rows, groups in ((2, 1, 8), (4, 1, 16), (8, 1, 32), (4, 2, 8))
        ),
        *(
            _ring(warps, 1, stages, r)
            for warps, stages, r in ((4, 4, 96), (4, 4, 112), (4, 6, 112), (8, 4, 96), (2, 8, 112))
        ),
    ),
)

DOWN_LANES = LaunchTable(
    "moe_down_lanes",
    {
        "nvidia": (
            row(_lanes(4, 1, 32, 128), groups=8),
            row(_lanes(4, 1, 16, 80), groups=16, tokens=4),
            row(_ring(2, 2, 6, 112), groups=16, rest=0),
            row(_lanes(4, 1, 16, 80), groups=16),
            row(_lanes(8, 1, 64, 128), groups=64, tokens=4),  # programs of 32 rows would be too few
            row(_lanes(4, 1, 32, 128), tokens=4),
            row(_ring(4, 2, 4, 112), rest=0),
            row(_lanes(4, 1, 32, 128)),
        )
    },
    (
        *(
            _lanes(warps, rows, groups, registers)
            for registers in (64, 80, 96, 128)
            for warps, rows, groups in ((4, 1, 16), (8, 1, 32), (4, 1, 32), (8, 1, 64))
        ),
        *(
            _ring(warps, rows, stages, r)
            for warps, rows, stages, r in ((4, 1, 4, 96), (4, 1, 8, 96), (4, 2, 4, 112), (8, 1, 6, 80), (2, 1, 8, 96))
        ),
    ),
)
"""fp4 on NVIDIA: ``WARP_ROWS`` times 16 rows of a program; ``BLOCK_G`` groups of 32 codes at a step, four a warp.
``STAGES`` of 0: weights in flight lie in registers. With those it is given (``maxnreg``) the compiler keeps loads a
step ahead; left alone it saves them. Others: so many steps of shared memory (``_ring.py``), for rows of whole words of
scales (``rest``: groups of 32 codes beyond a multiple of four)."""

GATE_UP = LaunchTable(
    "moe_gate_up",
    {
        # A whole row at once where one wave of programs is all: each step of a loop waits for its loads.
        "nvidia": (
            row(config(4, 1, PDL, BLOCK_N=4, BLOCK_G=128), tokens=2, inter=512),
            row(config(4, 1, PDL, BLOCK_N=4, BLOCK_G=64)),
        ),
        "amd": (row(config(2, 1, BLOCK_N=4, BLOCK_G=64)),),
    },
    tuple(
        config(warps, 1, PDL, BLOCK_N=n, BLOCK_G=g)
        for warps, n, g in ((2, 4, 32), (4, 8, 64), (4, 2, 128), (2, 2, 128), (4, 1, 128), (8, 4, 128), (8, 8, 128))
    ),
)

_SHORT = (
    row(config(2, 1, PDL, BLOCK_N=8, BLOCK_G=8, BLOCK_S=8), groups=8, tokens=4),
    row(config(4, 1, PDL, BLOCK_N=8, BLOCK_G=8, BLOCK_S=8), groups=16),
)

DOWN = LaunchTable(
    "moe_down",
    {
        "sm_100": (*_SHORT, row(config(4, 1, PDL, BLOCK_N=4, BLOCK_G=64, BLOCK_S=1))),  # the row below spills there
        "nvidia": (*_SHORT, row(config(4, 1, PDL, BLOCK_N=8, BLOCK_G=32, BLOCK_S=2))),
        "amd": (
            row(config(2, 1, BLOCK_N=4, BLOCK_G=8, BLOCK_S=8), groups=8),
            row(config(2, 1, BLOCK_N=4, BLOCK_G=16, BLOCK_S=8), groups=16),
            row(config(2, 1, BLOCK_N=4, BLOCK_G=64, BLOCK_S=1)),
        ),
    },
    tuple(
        config(warps, 1, PDL, BLOCK_N=n, BLOCK_G=g, BLOCK_S=s)
        for warps, n, g, s in (
            (2, 8, 8, 8),
            (4, 16, 8, 8),
            (4, 4, 16, 8),
            (2, 4, 64, 2),
            (4, 4, 64, 2),
            (4, 2, 64, 8),
            (4, 1, 64, 8),
            (8, 4, 64, 8),
            (4, 4, 128, 1),
            (8, 4, 128, 2),
            (8, 2, 128, 8),
        )
    ),
)
"""``groups``: groups of four words in a row of ``w2``; short rows lie side by side, those of all slots."""

TILES = LaunchTable(
    "moe_tiles",
    {
        "nvidia": (
            row(config(4, 3, BLOCK_M=16, BLOCK_N=64, BLOCK_K=128), tokens=256),
            row(config(8, 3, BLOCK_M=128, BLOCK_N=128, BLOCK_K=64)),
        ),
        "amd": (
            row(config(4, 2, BLOCK_M=16, BLOCK_N=64, BLOCK_K=128), tokens=256),
            row(config(4, 2, BLOCK_M=64, BLOCK_N=64, BLOCK_K=64)),
        ),
    },
    (
        config(4, 4, BLOCK_M=16, BLOCK_N=64, BLOCK_K=64),
        config(8, 3, BLOCK_M=128, BLOCK_N=64, BLOCK_K=64),
        config(8, 3, BLOCK_M=64, BLOCK_N=128, BLOCK_K=64),
        config(8, 3, BLOCK_M=128, BLOCK_N=128, BLOCK_K=64),
        config(4, 3, BLOCK_M=64, BLOCK_N=64, BLOCK_K=128),
    ),
)

TILES_FP8 = LaunchTable(
    "moe_tiles_fp8",
    {
        "nvidia": (
            row(config(4, 3, BLOCK_M=16, BLOCK_N=64, BLOCK_K=128), tokens=256),
            row(config(8, 3, BLOCK_M=64, BLOCK_N=64, BLOCK_K=64)),
        ),
        "amd": (
            row(config(4, 2, BLOCK_M=16, BLOCK_N=64, BLOCK_K=128), tokens=256),
            row(config(4, 2, BLOCK_M=64, BLOCK_N=64, BLOCK_K=64)),
        ),
    },
)
"""As ``TILES``; fp8 keeps one more tile of sums in registers, for the scales."""

COMBINE = LaunchTable(
    "moe_combine",
    {"nvidia": (row(config(4, BLOCK=1024)),), "amd": (row(config(2, BLOCK=1024)),)},
)
