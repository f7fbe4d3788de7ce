"""Tokens of a program: few rows are split finely, so that all units take part."""

from __future__ import annotations

from dsv4_kernels.launch import PDL, LaunchTable, config, row

SAMPLE = LaunchTable(
    "sample",
    {
        "nvidia": (
            row(config(8, 1, PDL, BLOCK=1024), rows=4),
            row(config(8, 1, PDL, BLOCK=2048), rows=32),
            row(config(8, 1, PDL, BLOCK=4096)),
        ),
        "amd": (row(config(4, BLOCK=1024), rows=4), row(config(4, BLOCK=2048), rows=32), row(config(8, BLOCK=8192))),
    },
    tuple(
        config(warps, 1, PDL, BLOCK=n)
        for warps, n in ((4, 512), (4, 1024), (16, 1024), (4, 2048), (4, 4096), (8, 8192))
    ),
)

NARROW = LaunchTable(
    "sample_narrow",
    {"nvidia": (row(config(8, BLOCK=512)),), "amd": (row(config(4, BLOCK=512)),)},
)
