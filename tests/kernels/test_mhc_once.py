"""Which hyper-connections of many tokens are one launch that reads the streams once, and how it is launched."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from dsv4_kernels.launch import Launch, recorded
from dsv4_kernels.mhc_pre_post.cases import FLASH, PRO, _post_pre, _pre
from dsv4_kernels.mhc_pre_post.once import is_once
from dsv4_kernels.mhc_pre_post.triton_op import mhc_post_pre, mhc_post_pre_once, mhc_pre
from dsv4_kernels.target import TARGETS, forced_target
from dsv4_kernels.testing.inputs import Inputs


def _launched(tokens: int, d: int, spread: bool, target: str = "sm_90") -> list[Launch]:
    build, call = (_post_pre, mhc_post_pre_once) if spread else (_pre, mhc_pre)
    with forced_target(target), recorded() as launches:
        call(**build(Inputs("meta", 0), tokens, d))
    return launches


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize(
    ("tokens", "d", "target", "kernels"),
    [
        (512, FLASH, "sm_90", ["mhc_once_kernel"]),
        (511, PRO, "sm_90", None),
        (512, PRO, "sm_90", ["_many_kernel"]),
        (512, FLASH, "sm_100", ["_mix_kernel", "_collapse_kernel"]),
        (512, FLASH, "gfx950", ["_mix_kernel", "_collapse_kernel"]),
        (255, FLASH, "sm_90", ["_mix_kernel", "_collapse_kernel"]),
    ],
)
def test_the_kernel_follows_from_tokens_width_and_target(
    tokens: int, d: int, target: str, kernels: list[str] | None, spread: bool
) -> None:
    if kernels is None:
        kernels = ["_mix_kernel", "_collapse_kernel"] if spread else ["_many_kernel"]
    assert [launch.kernel.__name__ for launch in _launched(tokens, d, spread, target)] == kernels


def test_a_spread_reads_streams_once_only_where_asked_to() -> None:
    with forced_target("sm_90"), recorded() as launches:
        mhc_post_pre(**_post_pre(Inputs("meta", 0), 512, FLASH))
    assert [launch.kernel.__name__ for launch in launches] == ["_many_kernel"]


def test_scratch_and_descriptors_cover_a_ragged_last_tile() -> None:
    tokens = 600
    (launch,) = _launched(tokens, FLASH, spread=True)
    tiles, slices = -(-tokens // 16), FLASH // 256
    groups = TARGETS["sm_90"].units // slices
    assert launch.constants["SLICES"] == slices
    assert launch.arguments["partial_ptr"].shape == (tiles, slices, 32, 16)
    assert launch.arguments["counter_ptr"].shape == (tiles + groups,)
    x, y = launch.arguments["x_desc"], launch.arguments["y_desc"]
    assert (x.shape, x.strides, x.block_shape) == ([4, tokens, FLASH], [FLASH, 4 * FLASH, 1], [4, 16, 256])
    assert (y.shape, y.strides, y.block_shape) == ([tokens, FLASH], [FLASH, 1], [16, 256])
    post, comb = launch.arguments["post_desc"], launch.arguments["comb_desc"]
    assert (post.shape, post.block_shape) == ([tokens, 4], [16, 4])
    assert (comb.shape, comb.block_shape) == ([tokens, 16], [16, 16])


def test_what_does_not_begin_on_16_bytes_is_not_read_by_descriptors() -> None:
    x = torch.zeros(512 * 4 * FLASH, dtype=torch.bfloat16).view(512, 4, FLASH)
    post = torch.zeros(512 * 4 + 1)[1:].view(512, 4)
    with forced_target("sm_90"):
        assert is_once(x)
        assert not is_once(x, post)
