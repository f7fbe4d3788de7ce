"""Which fp8 products of few tokens are NVIDIA's own kernel's, on `meta` tensors; those compile without spills."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from dsv4_kernels.block_fp8_gemm import cases
from dsv4_kernels.compile import Job, compile_all
from dsv4_kernels.launch import Launch, config, pinned, recorded
from dsv4_kernels.registry import Arguments, spec
from dsv4_kernels.target import TARGETS, forced_target
from dsv4_kernels.testing.inputs import Inputs

META = Inputs("meta", 0)
CODES, VALUES, GATES = "block_fp8_gemm", "block_fp8_gemm_quant", "block_fp8_gemm_swiglu"
BUILD: dict[str, Any] = {CODES: cases._product, VALUES: cases._quantising, GATES: cases._swiglu}

PRODUCTS = (
    (CODES, 1536, 4096), (CODES, 32768, 1024), (CODES, 8192, 1024), (CODES, 4096, 4096), (VALUES, 4096, 8192),
    (GATES, 4096, 2048), (CODES, 512, 4096), (CODES, 4096, 1024), (VALUES, 4096, 1024), (GATES, 4096, 256),
    (VALUES, 2048, 7168), (VALUES, 768, 7168), (VALUES, 7168, 2048), (CODES, 8192, 1536), (GATES, 7168, 384),
    (VALUES, 6144, 7168), (CODES, 65536, 1536), (VALUES, 7168, 16384), (GATES, 7168, 3072),
)  # fmt: skip
"""Rows and columns of the models' products and of those of their shards."""


def launches_of(kernel: str, arguments: Arguments, arch: str = "sm_90") -> list[Launch]:
    with forced_target(arch), recorded() as launches:
        spec(kernel).wrapper()(**arguments)
    return launches


def names(kernel: str, tokens: int, n: int, k: int, arch: str = "sm_90") -> list[str]:
    return [launch.kernel.__name__ for launch in launches_of(kernel, BUILD[kernel](META, tokens, n, k), arch)]


@pytest.mark.parametrize("tokens", [3, 8])
@pytest.mark.parametrize(("kernel", "n", "k"), PRODUCTS)
def test_three_to_eight_tokens_of_every_product_are_lanes(kernel: str, n: int, k: int, tokens: int) -> None:
    *before, last = names(kernel, tokens, n, k)
    assert last == "_few_lanes_kernel"
    assert len(before) == (kernel == GATES)  # what SwiGLU makes is quantised once, by a launch of its own


def test_few_rows_of_one_token_many_tokens_and_amd_keep_their_kernels() -> None:
    assert names(CODES, 1, 1536, 4096) == ["_few_vector_kernel"]
    assert names(CODES, 17, 1536, 4096) == ["_block_fp8_gemm_kernel"]
    assert names(VALUES, 16, 7168, 16384)[-1] == "_block_fp8_gemm_kernel"
    assert "_few_lanes_kernel" not in names(CODES, 8, 1536, 4096, "gfx950")


def test_a_step_has_no_more_blocks_on_their_way_than_there_are() -> None:
    (launch,) = launches_of(CODES, cases._product(META, 8, 1536, 1152))
    assert launch.constants["AHEAD"] * launch.config["BLOCK_K"] < 1152 + launch.config["BLOCK_K"]
    assert [launches_of(CODES, cases._product(META, t, 1536, 4096))[0].constants["GROUPS"] for t in (8, 9)] == [1, 2]


@pytest.mark.parametrize("pad", [2, 1])
def test_rows_that_are_not_whole_words_are_quantised_apart(pad: int) -> None:
    arguments = cases._quantising(META, 4, 1536, 4096)
    arguments["x"] = torch.empty(4, 4096 + pad, dtype=torch.bfloat16, device="meta")[:, :4096]
    lanes = [launch.kernel.__name__ == "_few_lanes_kernel" for launch in launches_of(VALUES, arguments)]
    assert lanes == ([True] if pad == 2 else [False, True])


def test_other_dtypes_are_quantised_apart() -> None:
    arguments = cases._quantising(META, 4, 1536, 4096)
    arguments["x"] = arguments["x"].half()
    assert [launch.kernel.__name__ for launch in launches_of(VALUES, arguments)][-1] == "_few_lanes_kernel"
    assert len(launches_of(VALUES, arguments)) == 2


def test_lanes_do_not_make_a_swiglu() -> None:
    pin = {"block_fp8_few_swiglu": config(4, 1, BLOCK_N=32, BLOCK_K=256, KIND=4)}
    with pinned(pin), pytest.raises(ValueError, match="does not make its activations"):
        launches_of(GATES, cases._swiglu(META, 4, 4096, 256))


@pytest.mark.slow
def test_what_the_tables_choose_compiles_without_spills() -> None:
    jobs: dict[Any, Job] = {}
    for kernel, n, k in PRODUCTS:
        for tokens in (1, 8, 16):
            for launch in launches_of(kernel, BUILD[kernel](META, tokens, n, k)):
                job = Job(kernel, f"{n}x{k} {tokens}", TARGETS["sm_90"], launch, "memory")
                if launch.kernel.__name__ == "_few_lanes_kernel":
                    jobs.setdefault(job.key, job)
    assert len(jobs) > 30
    assert [f"{r.config}: {r.trouble}" for r in compile_all(jobs.values(), processes=2) if r.trouble] == []
