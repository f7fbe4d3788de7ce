"""What the roofline says about products against the kernels that it speaks of."""

from __future__ import annotations

import pytest
from dsv4_kernels.block_fp8_gemm._launch import BLOCK_FP8_GEMM
from dsv4_kernels.target import TARGETS, target

from dsv4lab.predict.layer_ops import TILE_STAGES, TILES, tile_kib
from dsv4lab.queues.devices import DEVICES


@pytest.mark.parametrize("tokens", [1, 16, 17, 128, 129, 4096])
def test_tiles_are_those_of_the_fp8_product(tokens: int) -> None:
    chosen = BLOCK_FP8_GEMM.choose(target("gfx950"), tokens=tokens, n=1 << 14)
    constants = dict(chosen.constants)
    tile = next((t, n) for most, t, n in TILES if tokens <= most)
    assert (constants["BLOCK_T"], constants["BLOCK_N"], chosen.num_stages) == (*tile, TILE_STAGES)


def test_local_memory_and_units_are_those_of_the_targets() -> None:
    for device, arch in (("mi300x", "gfx942"), ("mi355x", "gfx950"), ("h200", "sm_90")):
        values = DEVICES[device].values
        assert values["lds_kib"].value * 1024 == TARGETS[arch].lds_unit_bytes
        assert values["cus"].value == TARGETS[arch].units
    assert tile_kib(24, 1) == 32  # 64 + 64 rows of 128 bytes, two stages
