"""Chunk of a row and warps, by capacity of the rows. A row that fits one chunk takes one launch."""

from __future__ import annotations

from dsv4_kernels.launch import PDL, Config, LaunchTable, config, row

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


def _tail(warps: int, entries: int, share: int = 0, blocks: int = 1) -> Config:
    options = {**PDL, "num_ctas": blocks} if blocks > 1 else PDL
    return config(warps, 1, options, BLOCK=entries, SHARE=share, CTAS=blocks)


TAIL = LaunchTable(
    "index_topk.tail",
    {
        "nvidia": (
            row(_tail(4, 1024), entries=1024, tokens=1),
            row(_tail(8, 1024), entries=1024, tokens=128),
            row(_tail(4, 1024), entries=1024),
            row(_tail(8, 2048), entries=2048, tokens=2),
            row(_tail(16, 2048), entries=2048, tokens=128),
            row(_tail(8, 2048), entries=2048),
            row(_tail(16, 4096), entries=4096, tokens=128),
            row(_tail(8, 4096), entries=4096),
            row(_tail(8, 8192, blocks=4), entries=8192, tokens=16),
            row(_tail(16, 8192), entries=8192, tokens=128),
            row(_tail(8, 8192, share=1), entries=8192),
            row(_tail(4, 16384, blocks=8), tokens=16),
            row(_tail(16, 16384, share=1)),
        ),
    },
    (
        *(_tail(warps, 1024) for warps in (4, 8)),
        *(_tail(warps, 2048) for warps in (4, 8, 16)),
        *(_tail(warps, 4096) for warps in (8, 16)),
        *(_tail(warps, 8192, share) for warps, share in ((16, 0), (8, 1), (16, 1))),
        _tail(16, 16384, share=1),
        _tail(4, 4096, blocks=4),
        _tail(8, 8192, blocks=4),
        _tail(8, 8192, share=1, blocks=2),
        _tail(4, 16384, blocks=8),
        _tail(8, 16384, share=1, blocks=4),
    ),
)
"""Of NVIDIA's sibling, for rows that fit one ``BLOCK``; longer ones take the tables above. ``SHARE``: a row comes
through shared memory. ``CTAS``: blocks of a cluster that share a row. Timed on an H200 at 1, 16 and 2048 tokens; up to
128 each row has an SM to itself. No other arch has been timed."""
