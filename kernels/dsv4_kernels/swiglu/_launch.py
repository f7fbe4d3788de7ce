"""Columns of a program and warps: 8 to 16 values a lane, in 16-byte accesses."""

from __future__ import annotations

from dsv4_kernels.launch import PDL, LaunchTable, config, row

SWIGLU = LaunchTable(
    "swiglu",
    {
        "nvidia": (row(config(4, 1, PDL, BLOCK=1024), tokens=64), row(config(8, 1, PDL, BLOCK=2048))),
        "amd": (row(config(2, BLOCK=1024), tokens=64), row(config(4, BLOCK=2048))),
    },
)
