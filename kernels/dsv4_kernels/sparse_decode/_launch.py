"""Launch choices of ``sparse_decode``: blocks by number of heads, and the number of splits from capture-time facts."""

from __future__ import annotations

from dataclasses import dataclass

from dsv4_kernels.launch import PDL, LaunchTable, config, row
from dsv4_kernels.target import Target

DECODE = LaunchTable(
    "sparse_decode",
    {
        "sm_90": (
            row(config(4, 4, PDL, BLOCK_H=16, BLOCK_K=16, KEYS_ON_ROWS=0), heads=16, keys=1024),
            row(config(4, 3, PDL, BLOCK_H=16, BLOCK_K=32, KEYS_ON_ROWS=0), heads=16),
            row(config(4, 4, PDL, BLOCK_H=16, BLOCK_K=16, KEYS_ON_ROWS=0), heads=64, keys=512),
            row(config(4, 3, PDL, BLOCK_H=16, BLOCK_K=32, KEYS_ON_ROWS=0), heads=64, keys=1100),
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
            row(config(8, 2, BLOCK_H=64, BLOCK_K=16, KEYS_ON_ROWS=0)),
        ),
    },
)

DECODE_FP8 = LaunchTable(
    "sparse_decode_fp8",
    {
        "sm_90": (
            row(config(4, 2, PDL, BLOCK_H=16, BLOCK_K=16, KEYS_ON_ROWS=0), heads=16),
            row(config(8, 3, PDL, BLOCK_H=16, BLOCK_K=32, KEYS_ON_ROWS=0)),
        ),
        "nvidia": (row(config(8, 3, PDL, BLOCK_H=16, BLOCK_K=32, KEYS_ON_ROWS=0)),),
        "amd": (
            row(config(4, 1, BLOCK_H=16, BLOCK_K=16, KEYS_ON_ROWS=0), heads=16),
            row(config(8, 1, BLOCK_H=32, BLOCK_K=16, KEYS_ON_ROWS=0)),
        ),
    },
)

REDUCE = LaunchTable(
    "sparse_decode.reduce",
    {
        "nvidia": (
            row(config(1, 1, PDL, BLOCK_D=512), splits=4),
            row(config(4, 1, PDL, BLOCK_D=256), splits=16),
            row(config(4, 1, PDL, BLOCK_D=128)),
        ),
        "amd": (row(config(1, BLOCK_D=512), splits=4), row(config(4, BLOCK_D=128))),
    },
)


@dataclass(frozen=True)
class SplitPolicy:
    """Splits by estimated time, from facts that are known when a graph is captured.

    Microseconds: ``block_us`` of one block of keys in a program, ``reduce_us`` of a reduction, ``part_us`` of writing
    and reading back the partial result of 64 heads. ``programs_per_unit`` run at once on a compute unit.
    """

    block_us: float
    reduce_us: float
    part_us: float
    programs_per_unit: int
    most: int = 64

    def splits(self, target: Target, programs: int, capacity: int, block_k: int, heads: int) -> int:
        """Splits of each of ``programs`` lists of at most ``capacity`` keys, ``heads`` heads to a program."""
        blocks = max(1, -(-capacity // block_k))
        part_us = self.part_us * min(heads, 64) / 64

        def us(splits: int) -> float:
            waves = -(-programs * splits // (target.units * self.programs_per_unit))
            attend = waves * -(-blocks // splits) * self.block_us
            return attend if splits == 1 else attend + self.reduce_us + programs * splits * part_us

        return min(range(1, min(blocks, self.most) + 1), key=lambda n: (us(n), n))


SPLITS = {
    "portable": SplitPolicy(block_us=1.4, reduce_us=0.5, part_us=0.04, programs_per_unit=2),
    "hopper": SplitPolicy(block_us=1.8, reduce_us=0.5, part_us=0.04, programs_per_unit=1),
}
"""By kernel, fitted on an H200: 0.8 % from the best splits over the grid of ``kernels/bench/attention.py``.

Where batches must not differ, all have the splits of ``dsv4_kernels.invariant`` instead.
"""

HOPPER = LaunchTable("sparse_decode.hopper", {"sm_90": (row(config(4, 1, PDL, STAGES=2)),)})

HOPPER_FP8 = LaunchTable("sparse_decode.hopper_fp8", {"sm_90": (row(config(4, 1, PDL, STAGES=2)),)})
