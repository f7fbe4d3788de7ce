"""Rows of a window that a program takes at once, by window."""

from __future__ import annotations

from dsv4_kernels.launch import PDL, LaunchTable, config, row

COMPRESS = LaunchTable(
    "compress",
    {
        "nvidia": (row(config(4, 1, PDL, BLOCK_W=8), window=8), row(config(8, 2, PDL, BLOCK_W=16))),
        "amd": (row(config(4, BLOCK_W=8), window=8), row(config(8, 2, BLOCK_W=8))),
    },
)
