"""NVIDIA's bf16 product of few tokens, compiled for an H200, in the emulator of ``ptx.py`` against the reference."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from dsv4_kernels.bf16_gemm import cases
from dsv4_kernels.compile import _nvidia_registers
from dsv4_kernels.launch import PDL, Config, Launch, config, pinned, recorded
from dsv4_kernels.registry import Arguments, spec
from dsv4_kernels.target import TARGETS, forced_target
from dsv4_kernels.testing.compare import distance
from dsv4_kernels.testing.inputs import Inputs

sys.path.insert(0, str(Path(__file__).parent))

from emulate import compiled, emulated


def lanes(warps: int, across: int, rows: int, ahead: int, soon: int, twice: int) -> Config:
    return config(warps, ahead, PDL, TWICE=twice, SOON=soon, BLOCK_N=rows, BLOCK_K=128 * across)


def recorded_launch(given: Arguments, chosen: Config | None = None, arch: str = "sm_90") -> Launch:
    """The one launch of the product of ``given``."""
    meta = {name: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for name, t in given.items()}
    pins = {} if chosen is None else {"bf16_lanes": chosen}
    with forced_target(arch), recorded() as launches, pinned(pins):
        spec("bf16_gemm").wrapper()(**meta)
    (launch,) = launches
    return launch


def results(given: Arguments, chosen: Config) -> torch.Tensor:
    """What the product of ``given`` is in the emulator."""
    launch, weight = recorded_launch(given, chosen), given["weight"]
    assert launch.kernel.__name__ == "_bf16_lanes_kernel"
    groups, n = weight.shape[0] if weight.dim() == 3 else 1, weight.shape[-2]
    tensors = {"x_ptr": given["x"], "w_ptr": weight, "out_ptr": given["out"].fill_(float("nan"))}
    return emulated(launch, tensors, (-(-n // chosen["BLOCK_N"]), groups))


@pytest.mark.parametrize(
    ("tokens", "groups", "n", "k", "chosen"),
    [
        (4, 1, 16, 1024, lanes(4, 4, 8, 2, 1, 1)),
        (7, 2, 20, 640, lanes(4, 2, 16, 2, 2, 1)),  # rows of two warps and past the last, a step not whole
        (11, 1, 33, 640, lanes(4, 2, 32, 2, 3, 0)),
        (16, 2, 16, 384, lanes(4, 4, 16, 1, 1, 0)),
        (5, 1, 48, 512, lanes(2, 2, 48, 1, 2, 0)),  # three tiles a warp
        (3, 1, 5, 128, lanes(2, 2, 24, 1, 1, 1)),
    ],
    ids=["registers", "twice", "ragged", "many", "tiles", "few"],
)
def test_the_compiled_product_is_the_reference(tokens: int, groups: int, n: int, k: int, chosen: Config) -> None:
    given = cases._grouped(Inputs("cpu", 5), tokens, groups, n, k)
    got = results(given, chosen)
    spec("bf16_gemm").reference(**given)
    assert distance(got, given["out"]) < 2.0**-8  # both are rounded to bf16


def test_rows_are_summed_alike_however_they_are_dealt() -> None:
    """So a launch table may choose the tiles by the number of rows."""
    given = cases._product(Inputs("cpu", 5), 6, 48, 640)
    first, *others = (
        results(given, lanes(4, 4, rows, ahead, soon, twice))
        for rows, ahead, soon, twice in ((16, 2, 2, 0), (48, 1, 1, 0), (8, 2, 1, 1), (24, 1, 2, 1))
    )
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_tables_choose_how_rows_are_summed_by_tokens_and_columns_alone(arch: str) -> None:
    for tokens in range(2, 17):
        for k in (512, 4096, 7168, 8192):
            launches = [
                recorded_launch(cases._product(Inputs("meta", 0), tokens, n, k), arch=arch)
                for n in (5, 64, 512, 1024, 2048, 2624, 4096, 8192, 16384)
            ]
            assert {launch.kernel.__name__ for launch in launches} == {"_bf16_lanes_kernel"}
            assert len({(launch.config["BLOCK_K"], launch.config.num_warps) for launch in launches}) == 1


@pytest.mark.parametrize("arch", ["sm_90", "gfx950"])
@pytest.mark.parametrize(("tokens", "k", "skipped"), [(17, 256, 0), (4, 192, 0), (4, 256, 4), (1, 256, 0)])
def test_other_sizes_are_the_portable_kernels(arch: str, tokens: int, k: int, skipped: int) -> None:
    """More tokens, columns that are no multiple of a step's, rows that do not begin at 16 bytes; one token."""
    given = cases._product(Inputs("meta", 0), tokens, 32, k + skipped)
    given = {"x": given["x"][:, skipped:], "weight": given["weight"][:, :k], "out": given["out"]}
    assert recorded_launch(given, arch=arch).kernel.__name__ in ("_bf16_gemm_kernel", "_bf16_gemv_kernel")


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@pytest.mark.parametrize("tokens", [4, 8, 16])
def test_the_longest_rows_spill_nothing(arch: str, tokens: int) -> None:
    """Pro's rows, which no compiled case has; ``make check`` compiles the configs for Flash's."""
    bad = []
    for n in (1024, 2048, 2624):
        launch = recorded_launch(cases._product(Inputs("meta", 0), tokens, n, 7168), arch=arch)
        _, spilled = _nvidia_registers(compiled(launch, arch), TARGETS[arch])
        bad += [(n, str(launch.config), spilled)] if spilled else []
    assert bad == []
