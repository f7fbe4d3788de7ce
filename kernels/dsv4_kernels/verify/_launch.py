"""Tokens of a program of the verify kernels."""

from __future__ import annotations

from dsv4_kernels.launch import LaunchTable, config, row

VERIFY = LaunchTable(
    "verify",
    {
        "nvidia": (row(config(4, BLOCK=2048), requests=8), row(config(8, BLOCK=4096))),
        "amd": (row(config(4, BLOCK=2048), requests=8), row(config(8, BLOCK=4096))),
    },
)
