"""Tokens of a program of the verify kernels."""

from __future__ import annotations

from dsv4_kernels.launch import PDL, LaunchTable, config, row

VERIFY = LaunchTable(
    "verify",
    {
        "nvidia": (
            row(config(8, 1, PDL, BLOCK=2048), requests=2),
            row(config(4, 1, PDL, BLOCK=2048), requests=8),
            row(config(8, 1, PDL, BLOCK=4096)),
        ),
        "amd": (row(config(4, BLOCK=2048), requests=8), row(config(8, BLOCK=4096))),
    },
    tuple(config(w, 1, PDL, BLOCK=n) for w, n in ((4, 1024), (8, 1024), (8, 2048), (16, 2048), (8, 4096))),
)
