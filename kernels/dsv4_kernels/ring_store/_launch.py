"""Rows of a program, by the number of rows: one while there are too few to fill the units; ``rope`` 0: plain rows.

``WHOLE``: rows of the fp8 layout are written with their padding. With it few rows would take 0.1 us longer.
"""

from __future__ import annotations

from dsv4_kernels.launch import PDL, LaunchTable, config, row

RING_STORE = LaunchTable(
    "ring_store",
    {
        "nvidia": (
            row(config(1, 1, PDL, ROWS=1, WHOLE=0), rows=256),
            row(config(4, 1, PDL, ROWS=8, WHOLE=0), rope=0),
            row(config(2, 1, PDL, ROWS=4, WHOLE=1)),
        ),
        "amd": (row(config(1, ROWS=1, WHOLE=0), rows=256), row(config(4, ROWS=8, WHOLE=0))),
    },
    tuple(
        config(warps, 1, PDL, ROWS=rows, WHOLE=1)
        for warps, rows in ((1, 1), (1, 2), (2, 4), (4, 4), (4, 8), (4, 16), (8, 16))
    ),
)
