"""Launch choices of the index streams."""

from __future__ import annotations

from dsv4_kernels.launch import PDL, LaunchTable, config, row

STREAMS = LaunchTable(
    "index_streams",
    {
        "nvidia": (
            row(config(1, 1, PDL, BLOCK_T=128, BLOCK=128), tokens=128),
            row(config(4, 1, PDL, BLOCK_T=1024, BLOCK=256)),
        ),
        "amd": (row(config(1, BLOCK_T=128, BLOCK=128), tokens=128), row(config(4, BLOCK_T=1024, BLOCK=256))),
    },
)

CSA_STREAM = LaunchTable(
    "csa_stream",
    {"nvidia": (row(config(4, 1, PDL, BLOCK=128)),), "amd": (row(config(4, BLOCK=128)),)},
)
