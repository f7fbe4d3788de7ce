"""Tiles of the hyper-connection kernels. ``SPLITS`` spreads the hidden dim: many for few tokens, few for many."""

from __future__ import annotations

from dsv4_kernels.launch import PDL, Config, LaunchTable, config, row

MIX = LaunchTable(
    "mhc_mix",
    {
        "nvidia": (
            row(config(4, 1, BLOCK_T=16, BLOCK_D=32, SPLITS=128, UNROLL=4), tokens=32),
            row(config(4, 1, BLOCK_T=16, BLOCK_D=32, SPLITS=32, UNROLL=1), tokens=256),
            row(config(4, 2, BLOCK_T=64, BLOCK_D=32, SPLITS=8, UNROLL=1)),
        ),
        "amd": (
            row(config(4, 1, BLOCK_T=16, BLOCK_D=32, SPLITS=128, UNROLL=1), tokens=32),
            row(config(4, 1, BLOCK_T=16, BLOCK_D=32, SPLITS=32, UNROLL=1), tokens=256),
            row(config(4, 1, BLOCK_T=64, BLOCK_D=32, SPLITS=8, UNROLL=1)),
        ),
    },
    (
        config(2, 1, BLOCK_T=16, BLOCK_D=32, SPLITS=128, UNROLL=4),
        config(4, 1, BLOCK_T=16, BLOCK_D=64, SPLITS=64, UNROLL=4),
        config(8, 2, BLOCK_T=128, BLOCK_D=32, SPLITS=8, UNROLL=1),
        config(8, 2, BLOCK_T=64, BLOCK_D=64, SPLITS=8, UNROLL=1),
        config(4, 2, BLOCK_T=64, BLOCK_D=64, SPLITS=4, UNROLL=1),
        config(4, 3, BLOCK_T=64, BLOCK_D=32, SPLITS=4, UNROLL=1),
        config(8, 3, BLOCK_T=128, BLOCK_D=64, SPLITS=8, UNROLL=1),
    ),
)

SPREAD = LaunchTable(
    "mhc_spread",
    {
        vendor: (
            row(config(4, 1, BLOCK_T=1, BLOCK_D=512, SPLITS=64, UNROLL=1), tokens=64),
            row(config(4, 1, BLOCK_T=4, BLOCK_D=512, SPLITS=64, UNROLL=1)),
        )
        for vendor in ("nvidia", "amd")
    },
    (
        config(4, 1, BLOCK_T=2, BLOCK_D=512, SPLITS=64, UNROLL=1),
        config(4, 1, BLOCK_T=1, BLOCK_D=1024, SPLITS=64, UNROLL=1),
        config(8, 1, BLOCK_T=1, BLOCK_D=2048, SPLITS=64, UNROLL=1),
        config(8, 1, BLOCK_T=1, BLOCK_D=4096, SPLITS=64, UNROLL=1),
    ),
)

COLLAPSE = LaunchTable(
    "mhc_collapse",
    {
        "nvidia": (row(config(4, BLOCK_T=1, BLOCK_D=512), tokens=64), row(config(4, BLOCK_T=8, BLOCK_D=512))),
        "amd": (row(config(2, BLOCK_T=1, BLOCK_D=512), tokens=64), row(config(4, BLOCK_T=8, BLOCK_D=512))),
    },
    (
        config(2, BLOCK_T=1, BLOCK_D=256),
        config(8, BLOCK_T=1, BLOCK_D=1024),
        config(4, BLOCK_T=4, BLOCK_D=512),
        config(8, BLOCK_T=16, BLOCK_D=256),
        config(4, BLOCK_T=2, BLOCK_D=1024),
    ),
)

MANY_TOKENS, MANY_TOKENS_SPREAD = 256, 512
"""From so many tokens of bf16 on, the table below serves (on targets that it has); with a spread from the second on."""


def _many(warps: int, tokens: int, columns: int, width: int, stages: int, lag: int, block: int = 1024) -> Config:
    return config(
        warps, 1, BLOCK_T=tokens, BLOCK_K=columns, WIDTH=width, STAGES=stages, LAG=lag, OUT_T=4, BLOCK_D=block, PARTS=2
    )  # fmt: skip


MANY = LaunchTable(
    "mhc_many",
    {
        "sm_90": (
            row(_many(4, 64, 64, 512, 4, 1, 512), spread=0, tokens=256),
            row(_many(4, 64, 64, 512, 4, 12, 512), spread=0),
            row(_many(4, 64, 64, 1024, 4, 12, 512)),
        )
    },
    (
        _many(8, 128, 64, 1024, 3, 12),
        _many(8, 128, 64, 512, 4, 8),
        _many(8, 128, 128, 1024, 3, 4),
        _many(8, 128, 128, 1024, 3, 6),
        _many(4, 64, 64, 1024, 4, 12, 512),
        _many(8, 128, 64, 1024, 4, 8),
        _many(8, 64, 128, 1024, 2, 12),
        _many(8, 64, 128, 512, 3, 8),
        _many(8, 64, 128, 1024, 3, 6),
        _many(8, 64, 128, 2048, 3, 12),
        _many(8, 64, 128, 1024, 3, 12),
    ),
)

ONCE_TOKENS = 512
ONCE_WIDTHS = (4096, 7168)
"""From so many tokens of bf16 on, of streams so wide (what has been timed), the tables below serve on their targets."""


def _once(stages: int, product: int, other: int, at_once: tuple[int, int], early: int) -> Config:
    return config(
        4, 1, PDL, STAGES=stages, PRODUCT_REGS=product, OTHER_REGS=other, AT_ONCE=at_once[0], MIXES_AT_ONCE=at_once[1],
        EARLY=early,
    )  # fmt: skip


ONCE = LaunchTable("mhc_once", {"sm_90": (row(_once(6, 160, 88, (8, 2), 1)),)}, (_once(6, 160, 112, (16, 4), 0),))
"""Registers of a lane: of the products' warps, and of those that have a role each (what both leave is the collapse's).
Slices whose records a warp reads at once, for the weights of the collapse and for the mixes; the second number divides
what slices there are. ``EARLY``: a tile's place is free when the collapse has read it, which takes 100 registers."""

ONCE_SPREAD = LaunchTable(
    "mhc_once_spread", {"sm_90": (row(_once(5, 176, 88, (8, 2), 0)),)}, (_once(4, 176, 88, (8, 2), 0),)
)
"""The same where a sublayer's output is spread first."""

QUANT_WIDTH = 4096
"""Rows up to so long are quantised in the collapse's launch; with longer ones its registers spill."""

FEW_TOKENS = 16
"""Up to so many tokens the two tables below serve, and a norm of the collapsed streams is part of the launch."""

MIX_FEW = LaunchTable(
    "mhc_mix_few",
    {
        "nvidia": (
            row(config(8, 1, PDL, BLOCK_T=1, BLOCK_D=64), tokens=2),
            row(config(2, 1, PDL, BLOCK_T=1, BLOCK_D=32)),
        ),
        "amd": (row(config(2, 1, BLOCK_T=1, BLOCK_D=32), tokens=2), row(config(2, 1, BLOCK_T=4, BLOCK_D=32))),
    },
    tuple(
        config(warps, 1, PDL, BLOCK_T=t, BLOCK_D=d)
        for warps, t, d in (
            (4, 1, 32),
            (2, 1, 32),
            (8, 1, 32),
            (4, 1, 64),
            (8, 1, 64),
            (4, 2, 32),
            (4, 4, 32),
            (8, 4, 32),
            (4, 4, 64),
            (8, 4, 64),
            (4, 8, 32),
            (8, 8, 64),
        )
    ),
)

COLLAPSE_FEW = LaunchTable(
    "mhc_collapse_few",
    {"nvidia": (row(config(4, 1, PDL)),), "amd": (row(config(8)),)},
    (config(4, 1, PDL), config(8, 1, PDL), config(16, 1, PDL)),
)
