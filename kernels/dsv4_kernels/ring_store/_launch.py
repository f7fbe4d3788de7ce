"""Rows of a program, by the number of rows: one while there are too few to fill the units."""

from __future__ import annotations

from dsv4_kernels.launch import PDL, LaunchTable, config, row

RING_STORE = LaunchTable(
    "ring_store",
    {
        "nvidia": (row(config(1, 1, PDL, ROWS=1), rows=256), row(config(4, 1, PDL, ROWS=8))),
        "amd": (row(config(1, ROWS=1), rows=256), row(config(4, ROWS=8))),
    },
    tuple(config(warps, 1, PDL, ROWS=rows) for warps, rows in ((1, 1), (1, 2), (2, 4), (4, 4), (4, 16), (8, 16))),
)
