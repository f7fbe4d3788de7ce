"""Tokens of a program: few rows are split finely, so that all units take part."""

from __future__ import annotations

from dsv4_kernels.launch import LaunchTable, config, row

SAMPLE = LaunchTable(
    "sample",
    {
        "nvidia": (row(config(4, BLOCK=1024), rows=4), row(config(4, BLOCK=2048), rows=32), row(config(8, BLOCK=8192))),
        "amd": (row(config(4, BLOCK=1024), rows=4), row(config(4, BLOCK=2048), rows=32), row(config(8, BLOCK=8192))),
    },
    (config(2, BLOCK=512), config(4, BLOCK=512), config(8, BLOCK=1024), config(8, BLOCK=2048), config(4, BLOCK=4096)),
)

NARROW = LaunchTable(
    "sample_narrow",
    {"nvidia": (row(config(8, BLOCK=512)),), "amd": (row(config(4, BLOCK=512)),)},
)
