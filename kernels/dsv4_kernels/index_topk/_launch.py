"""Chunk of a row and warps, by capacity of the rows. A row that fits one chunk takes one launch."""

from __future__ import annotations

from dsv4_kernels.launch import PDL, LaunchTable, config, row

INDEX_TOPK = LaunchTable(
    "index_topk",
    {
        "sm_100": (
            row(config(4, 1, PDL, BLOCK=1024), entries=1024),
            row(config(8, 1, PDL, BLOCK=2048)),
        ),
        "nvidia": (
            row(config(4, 1, PDL, BLOCK=1024), entries=1024),
            row(config(16, 1, PDL, BLOCK=4096), entries=4096),
            row(config(16, 1, PDL, BLOCK=8192), entries=8192),
            row(config(16, 1, PDL, BLOCK=4096)),
        ),
        "amd": (
            row(config(4, BLOCK=1024), entries=1024),
            row(config(8, BLOCK=4096)),
        ),
    },
)

MERGE = LaunchTable(
    "index_topk.merge",
    {
        "nvidia": (
            row(config(4, 1, PDL, BLOCK=2048), candidates=2048),
            row(config(16, 1, PDL, BLOCK=4096), candidates=4096),
            row(config(16, 1, PDL, BLOCK=8192)),
        ),
        "amd": (row(config(8, BLOCK=4096)),),
    },
)

ROW = LaunchTable(
    "index_topk.row",
    {
        "nvidia": (
            row(config(4, 1, PDL, BLOCK=1024), entries=1024),
            row(config(4, 1, PDL, BLOCK=2048), entries=2048),
            row(config(8, 1, PDL, BLOCK=4096), entries=4096),
            row(config(8, 1, PDL, BLOCK=8192), entries=8192),
            row(config(16, 1, PDL, BLOCK=16384)),
        ),
    },
    (
        config(2, 1, PDL, BLOCK=1024),
        config(8, 1, PDL, BLOCK=1024),
        config(8, 1, PDL, BLOCK=2048),
        config(16, 1, PDL, BLOCK=2048),
        config(4, 1, PDL, BLOCK=4096),
        config(16, 1, PDL, BLOCK=4096),
        config(16, 1, PDL, BLOCK=8192),
        config(32, 1, PDL, BLOCK=8192),
    ),
)
"""Of the sibling that NVIDIA runs for rows that fit one ``BLOCK``; longer ones take the tables above."""

_NO_TAIL = config(4, 1, PDL, BLOCK=0, BINS=0, SHARE=0)

TAIL = LaunchTable(
    "index_topk.tail",
    {
        "sm_90": (
            row(_NO_TAIL, entries=1024),
            row(config(8, 1, PDL, BLOCK=2048, BINS=1024, SHARE=0), entries=2048, tokens=128),
            row(config(16, 1, PDL, BLOCK=4096, BINS=2048, SHARE=0), entries=4096, tokens=128),
            row(config(16, 1, PDL, BLOCK=8192, BINS=2048, SHARE=0), entries=8192, tokens=128),
            row(_NO_TAIL),
        ),
        "nvidia": (row(_NO_TAIL),),
    },
    (
        config(4, 1, PDL, BLOCK=1024, BINS=512, SHARE=1),
        config(8, 1, PDL, BLOCK=2048, BINS=1024, SHARE=1),
        config(16, 1, PDL, BLOCK=4096, BINS=2048, SHARE=1),
        config(16, 1, PDL, BLOCK=8192, BINS=2048, SHARE=1),
        config(16, 1, PDL, BLOCK=16384, BINS=2048, SHARE=1),
        config(8, 1, PDL, BLOCK=1024, BINS=1024, SHARE=1),
        config(4, 1, PDL, BLOCK=2048, BINS=512, SHARE=1),
        config(8, 1, PDL, BLOCK=4096, BINS=1024, SHARE=1),
        config(8, 1, PDL, BLOCK=8192, BINS=1024, SHARE=1),
        config(4, 1, PDL, BLOCK=1024, BINS=512, SHARE=0),
    ),
)
"""Of the sibling that counts only scores which may be taken, for rows that fit one ``BLOCK``; others take :data:`ROW`.
Timed on an H200 at 1 to 128 tokens, where each row has an SM to itself. No other arch has been timed. ``SHARE``: a row
comes through shared memory, and few scores are settled where they are (has not run on a GPU)."""
