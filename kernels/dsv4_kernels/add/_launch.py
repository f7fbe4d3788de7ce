"""Columns of a program and warps: 4 to 8 values a lane, in 16-byte accesses."""

from __future__ import annotations

from dsv4_kernels.launch import PDL, LaunchTable, config, row

ADD = LaunchTable(
    "add",
    {
        "nvidia": (row(config(4, 1, PDL, BLOCK=512), tokens=64), row(config(8, 1, PDL, BLOCK=2048))),
        "amd": (row(config(2, BLOCK=512), tokens=64), row(config(4, BLOCK=2048))),
    },
)
