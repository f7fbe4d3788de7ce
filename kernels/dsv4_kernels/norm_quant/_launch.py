"""Rows of a program and warps, by row length: a lane holds 16 to 64 values of a row, or fewer where rows are few."""

from __future__ import annotations

from dsv4_kernels.launch import PDL, LaunchTable, config, row

RMS_NORM = LaunchTable(
    "rms_norm",
    {
        "nvidia": (
            row(config(1, 1, PDL, ROWS=4), d=128),
            row(config(1, 1, PDL, ROWS=1), d=512),
            row(config(8, 1, PDL, ROWS=1), d=2048, rows=16),
            row(config(2, 1, PDL, ROWS=1), d=2048),
            row(config(4, 1, PDL, ROWS=1), d=4096),
            row(config(16, 1, PDL, ROWS=1), rows=16),
            row(config(8, 1, PDL, ROWS=1)),
        ),
        "amd": (
            row(config(1, ROWS=4), d=128),
            row(config(1, ROWS=1), d=1024),
            row(config(2, ROWS=1), d=4096),
            row(config(4, ROWS=1)),
        ),
    },
    tuple(config(warps, 1, PDL, ROWS=1) for warps in (1, 2, 4, 8, 16)),
)

NORM_QUANT = LaunchTable(
    "norm_quant",
    {
        "nvidia": (
            row(config(1, 1, PDL, ROWS=1), d=512),
            row(config(8, 1, PDL, ROWS=1), d=2048, rows=16),
            row(config(2, 1, PDL, ROWS=1), d=2048),
            row(config(4, 1, PDL, ROWS=1), d=4096),
            row(config(8, 1, PDL, ROWS=1)),
        ),
        "amd": (
            row(config(1, ROWS=1), d=1024),
            row(config(2, ROWS=1), d=4096),
            row(config(4, ROWS=1)),
        ),
    },
    tuple(config(warps, 1, PDL, ROWS=1) for warps in (1, 2, 4, 8, 16)),
)
