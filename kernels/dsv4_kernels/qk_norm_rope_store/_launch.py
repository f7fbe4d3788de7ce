"""Rows of a program, by the number of head rows: few while there are too few programs to fill the units."""

from __future__ import annotations

from dsv4_kernels.launch import PDL, LaunchTable, config, row

QK_NORM_ROPE = LaunchTable(
    "qk_norm_rope_store",
    {
        "nvidia": (
            row(config(1, 1, PDL, Q_ROWS=1, KV_ROWS=1), rows=512),
            row(config(4, 1, PDL, Q_ROWS=4, KV_ROWS=1), rows=4096),
            row(config(4, 1, PDL, Q_ROWS=8, KV_ROWS=4)),
        ),
        "amd": (
            row(config(1, Q_ROWS=1, KV_ROWS=1), rows=512),
            row(config(4, Q_ROWS=8, KV_ROWS=4)),
        ),
    },
)
