"""Every config that a launch table can choose compiles for its target: no spill, LDS within the budget."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="triton is not installed")

from dsv4_kernels.compile import compile_all, jobs, occupancy_of
from dsv4_kernels.registry import specs
from dsv4_kernels.target import TARGETS

QUICK = ("gfx950", "sm_90")  # in `make test`; `make test-all` compiles for the others too


@pytest.mark.timeout(900)  # some 170 configs a target, a second each on a quiet machine
@pytest.mark.parametrize("arch", [a if a in QUICK else pytest.param(a, marks=pytest.mark.slow) for a in TARGETS])
def test_every_config_of_every_launch_table_compiles(arch: str) -> None:
    work = [job for spec in specs().values() for job in jobs(spec, TARGETS[arch])]
    bad = [f"{r.name} ({r.config}): {r.trouble}" for r in compile_all(work, processes=2) if r.trouble]
    assert bad == []


def test_occupancy_is_limited_by_what_runs_out_first() -> None:
    hopper = TARGETS["sm_90"]
    assert occupancy_of(hopper, registers=32, lds=0, num_warps=4) == (1.0, "registers")
    assert occupancy_of(hopper, registers=255, lds=0, num_warps=8) == (8 / 64, "registers")
    assert occupancy_of(hopper, registers=16, lds=100 * 1024, num_warps=4) == (8 / 64, "lds")
    assert occupancy_of(TARGETS["gfx942"], registers=128, lds=64 * 1024, num_warps=4) == (4 / 32, "lds")
