"""Launch choices of ``sparse_decode``: blocks by number of heads, and the number of splits from capture-time facts."""

from __future__ import annotations

from dataclasses import dataclass

from dsv4_kernels.launch import PDL, LaunchTable, config, row
from dsv4_kernels.target import Target

DECODE = LaunchTable(
    "sparse_decode",
    {
        "sm_90": (
            row(config(4, 3, PDL, BLOCK_H=16, BLOCK_K=32, KEYS_ON_ROWS=0), heads=16),
            row(config(8, 3, PDL, BLOCK_H=32, BLOCK_K=64, KEYS_ON_ROWS=1), heads=32),
            row(config(8, 2, PDL, BLOCK_H=64, BLOCK_K=64, KEYS_ON_ROWS=0)),
        ),
        "sm_100": (
            row(config(4, 3, PDL, BLOCK_H=16, BLOCK_K=32, KEYS_ON_ROWS=0), heads=16),
            row(config(8, 2, PDL, BLOCK_H=32, BLOCK_K=32, KEYS_ON_ROWS=0), heads=32),
            row(config(8, 2, PDL, BLOCK_H=64, BLOCK_K=32, KEYS_ON_ROWS=0)),
        ),
        "gfx942": (
            row(config(4, 2, BLOCK_H=16, BLOCK_K=32, KEYS_ON_ROWS=0), heads=16),
            row(config(4, 2, BLOCK_H=32, BLOCK_K=16, KEYS_ON_ROWS=0), heads=32),
            row(config(8, 2, BLOCK_H=64, BLOCK_K=16, KEYS_ON_ROWS=0)),
        ),
        "gfx950": (
            row(config(4, 2, BLOCK_H=16, BLOCK_K=32, KEYS_ON_ROWS=0), heads=16),
            row(config(4, 2, BLOCK_H=32, BLOCK_K=32, KEYS_ON_ROWS=0), heads=32),
            row(config(8, 2, BLOCK_H=64, BLOCK_K=32, KEYS_ON_ROWS=0)),
        ),
    },
)

DECODE_FP8 = LaunchTable(
    "sparse_decode_fp8",
    {
        "sm_90": (
            row(config(4, 3, PDL, BLOCK_H=16, BLOCK_K=32, KEYS_ON_ROWS=0), heads=16),
            row(config(8, 2, PDL, BLOCK_H=64, BLOCK_K=32, KEYS_ON_ROWS=0)),
        ),
        "sm_100": DECODE.rows["sm_100"],
        "amd": (
            row(config(4, 1, BLOCK_H=16, BLOCK_K=16, KEYS_ON_ROWS=0), heads=16),
            row(config(8, 1, BLOCK_H=32, BLOCK_K=16, KEYS_ON_ROWS=0)),
        ),
    },
)

REDUCE = LaunchTable(
    "sparse_decode.reduce",
    {
        "nvidia": (row(config(4, 1, PDL, BLOCK_D=256)),),
        "amd": (row(config(4, BLOCK_D=256)),),
    },
)


@dataclass(frozen=True)
class SplitPolicy:
    """How many splits a launch gets: enough programs for ``waves`` full waves, at most ``most``, at least
    ``blocks`` blocks of keys each, if every token had a list of the length that its buffer allows.
    """

    waves: float
    most: int
    blocks: int

    def splits(self, target: Target, programs: int, capacity: int, block_k: int) -> int:
        """Splits of each of ``programs`` lists of at most ``capacity`` keys."""
        by_length = -(-capacity // (self.blocks * block_k))
        by_units = int(self.waves * target.units) // max(programs, 1)
        return max(1, min(by_length, by_units, self.most))


SPLITS = {
    "portable": SplitPolicy(1.0, 32, 1),
    "hopper": SplitPolicy(1.0, 32, 1),
}
"""By kernel. The functions of length, not of load: a batch's splits may be pinned to get the same bits in any batch."""

HOPPER = LaunchTable("sparse_decode.hopper", {"sm_90": (row(config(4, 1, PDL, STAGES=2)),)})
