"""Rows of a window that a program takes at once, and its channels (0: all, so that one launch does the rest too).

Windows of one half that are taken whole by channels have a kernel of their own; ``ENTRIES`` programs at most share the
entries of a group of channels (0: a program an entry). 33 of them for 16 groups of channels are all that an H200 holds
at once: a step of many requests that finish no window starts no more. Longer prefills take twice as many, which end
more evenly.
"""

from __future__ import annotations

from dsv4_kernels.launch import PDL, LaunchTable, config, row

COMPRESS = LaunchTable(
    "compress",
    {
        "sm_90": (
            row(config(2, 1, PDL, BLOCK_W=8, CHANNELS=0, ENTRIES=0), window=8, d=128, rows=16),
            row(config(4, 1, PDL, BLOCK_W=8, CHANNELS=0, ENTRIES=0), window=8),
            row(config(4, 1, PDL, BLOCK_W=128, CHANNELS=32, ENTRIES=33), rows=128),
            row(config(4, 1, PDL, BLOCK_W=128, CHANNELS=32, ENTRIES=66)),
        ),
        "nvidia": (
            row(config(4, 1, PDL, BLOCK_W=8, CHANNELS=0, ENTRIES=0), window=8),
            row(config(4, 1, PDL, BLOCK_W=128, CHANNELS=32, ENTRIES=33), rows=128),
            row(config(4, 1, PDL, BLOCK_W=128, CHANNELS=32, ENTRIES=66)),
        ),
        "amd": (
            row(config(4, BLOCK_W=8, CHANNELS=0, ENTRIES=0), window=8),
            row(config(4, BLOCK_W=32, CHANNELS=64, ENTRIES=0)),
        ),
    },
    tuple(config(w, 1, PDL, BLOCK_W=b, CHANNELS=c, ENTRIES=0) for w, b, c in ((4, 128, 16), (2, 128, 32), (2, 64, 32))),
)

FINISH = LaunchTable("compress.finish", {"nvidia": (row(config(8, 1, PDL)),), "amd": (row(config(4)),)})
