"""Rows of a program, by the number of head rows (or of tokens)."""

from __future__ import annotations

from dsv4_kernels.launch import PDL, LaunchTable, config, row

ROTATE = LaunchTable(
    "inverse_rope",
    {
        "nvidia": (
            row(config(1, 1, PDL, ROWS=8), rows=4096),
            row(config(4, 1, PDL, ROWS=64), rows=1 << 18),
            row(config(4, 1, PDL, ROWS=32)),
        ),
        "amd": (row(config(1, ROWS=8), rows=4096), row(config(4, ROWS=64))),
    },
    tuple(config(warps, 1, PDL, ROWS=rows) for warps, rows in ((1, 8), (1, 16), (2, 16), (2, 32), (4, 32), (8, 64))),
)

ROTATE_QUANT = LaunchTable(
    "inverse_rope_quant",
    {
        "nvidia": (row(config(1, 1, PDL, ROWS=1), rows=512), row(config(4, 1, PDL, ROWS=8))),
        "amd": (row(config(1, ROWS=1), rows=512), row(config(4, ROWS=8))),
    },
    tuple(config(warps, 1, PDL, ROWS=rows) for warps, rows in ((1, 4), (2, 8), (4, 16), (4, 32), (8, 16))),
)

ROPE_TABLE = LaunchTable(
    "rope_table",
    {
        "nvidia": (row(config(1, 1, PDL, ROWS=1), rows=512), row(config(4, 1, PDL, ROWS=8))),
        "amd": (row(config(1, ROWS=2), rows=512), row(config(4, ROWS=8))),
    },
)
