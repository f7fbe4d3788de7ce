"""Which kernels and configs an H200 gets for the sizes of a decode step: launches recorded on ``meta`` tensors."""

from __future__ import annotations

import pytest
import torch
from dsv4_kernels.block_fp8_gemm import cases as gemm
from dsv4_kernels.index_topk import cases as topk
from dsv4_kernels.launch import Launch, recorded
from dsv4_kernels.moe_route import cases as route
from dsv4_kernels.registry import Arguments, spec
from dsv4_kernels.target import forced_target
from dsv4_kernels.testing.inputs import Inputs


def launches_of(kernel: str, arguments: Arguments, arch: str = "sm_90") -> list[Launch]:
    with forced_target(arch), recorded() as launches:
        spec(kernel).wrapper()(**arguments)
    return launches


@pytest.mark.parametrize(
    ("entries", "tokens", "blocks"),
    [(1024, 1, 1), (4096, 16, 1), (8192, 1, 4), (8192, 17, 1), (16384, 16, 8), (16384, 2048, 1)],
)
def test_long_rows_of_few_tokens_are_shared_by_a_cluster(entries: int, tokens: int, blocks: int) -> None:
    arguments = topk._topk(Inputs("meta", 0), (entries,) * tokens, entries, 512)
    (launch,) = launches_of("index_topk", arguments)
    assert launch.kernel.__name__ == "_index_topk_tail_kernel"
    assert launch.config["CTAS"] == dict(launch.config.options).get("num_ctas", 1) == blocks
    threads = blocks * launch.config.num_warps * 32
    assert launch.config["BLOCK"] >= entries
    assert 1 <= launch.config["BLOCK"] // threads <= 32  # a thread's marks are one word


@pytest.mark.parametrize(("entries", "arch"), [(16385, "sm_90"), (4096, "gfx950")])
def test_longer_rows_and_other_vendors_take_the_portable_top_k(entries: int, arch: str) -> None:
    launches = launches_of("index_topk", topk._topk(Inputs("meta", 0), (entries,), entries, 512), arch)
    assert "_index_topk_tail_kernel" not in {launch.kernel.__name__ for launch in launches}


@pytest.mark.parametrize(
    ("tokens", "experts", "width", "words"),
    [
        (1, 256, 4096, True),
        (16, 256, 4096, True),
        (1, 384, 7168, True),
        (16, 384, 7168, True),
        (17, 256, 4096, False),  # more than words are for
        (1, 260, 4096, False),  # a share of 4 experts, fewer than are chosen
        (1, 24, 4096, False),
        (1, 2, 4096, False),
    ],
)
def test_the_router_by_messages_takes_what_it_can(tokens: int, experts: int, width: int, words: bool) -> None:
    arguments = route._route(Inputs("meta", 0), tokens, (width, experts, 1.5), top_k=min(6, experts))
    names = {launch.kernel.__name__ for launch in launches_of("moe_route", arguments)}
    assert ("_route_words_kernel" in names) == words


def test_products_of_one_token_differ_by_where_their_activations_are_made_fp8() -> None:
    inputs = Inputs("meta", 0)
    (codes,) = launches_of("block_fp8_gemm", gemm._product(inputs, 1, 1536, 4096))
    (quantising,) = launches_of("block_fp8_gemm_quant", gemm._quantising(inputs, 1, 1536, 4096))
    assert codes.kernel is quantising.kernel
    assert (codes.config["BLOCK_K"], quantising.config["BLOCK_K"]) == (4096, 2048)


@pytest.mark.parametrize(("arch", "tokens", "pdl"), [("sm_90", 8, 2), ("sm_90", 9, 1), ("gfx950", 1, 0)])
def test_the_next_kernel_is_placed_before_this_one_has_waited_for_up_to_eight_tokens(
    arch: str, tokens: int, pdl: int
) -> None:
    a = torch.empty(tokens, 256, dtype=torch.bfloat16, device="meta")
    (launch,) = launches_of("add", {"a": a, "b": a, "out": a}, arch)
    assert launch.constants["PDL"] == pdl
