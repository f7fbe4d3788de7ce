"""Which hyper-connections of many tokens are one launch that reads the streams once, and how it is launched."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from dsv4_kernels.launch import Launch, LaunchTable, recorded
from dsv4_kernels.mhc_pre_post._launch import ONCE, ONCE_SPREAD, ONCE_WIDTHS
from dsv4_kernels.mhc_pre_post.cases import FLASH, PRO, _post_pre, _pre
from dsv4_kernels.mhc_pre_post.once import HEAD, RECORD, SLICE, is_once
from dsv4_kernels.mhc_pre_post.triton_op import mhc_post_pre, mhc_pre
from dsv4_kernels.target import TARGETS, forced_target
from dsv4_kernels.testing.inputs import Inputs


def _launched(tokens: int, d: int, spread: bool, target: str = "sm_90") -> list[Launch]:
    build, call = (_post_pre, mhc_post_pre) if spread else (_pre, mhc_pre)
    with forced_target(target), recorded() as launches:
        call(**build(Inputs("meta", 0), tokens, d))
    return launches


@pytest.mark.parametrize(
    ("tokens", "d", "target", "pre", "post_pre"),
    [
        (512, FLASH, "sm_90", ["mhc_once_kernel"], ["mhc_once_kernel"]),
        (511, FLASH, "sm_90", ["_many_kernel"], ["_mix_kernel", "_collapse_kernel"]),
        (512, PRO, "sm_90", ["mhc_once_kernel"], ["mhc_once_kernel"]),
        (512, 320, "sm_90", ["_many_kernel"], ["_many_kernel"]),
        (512, FLASH, "sm_100", ["_mix_kernel", "_collapse_kernel"], ["_mix_kernel", "_collapse_kernel"]),
        (512, FLASH, "gfx950", ["_mix_kernel", "_collapse_kernel"], ["_mix_kernel", "_collapse_kernel"]),
        (255, FLASH, "sm_90", ["_mix_kernel", "_collapse_kernel"], ["_mix_kernel", "_collapse_kernel"]),
    ],
)
def test_the_kernel_follows_from_tokens_width_and_target(
    tokens: int, d: int, target: str, pre: list[str], post_pre: list[str]
) -> None:
    for spread, kernels in ((False, pre), (True, post_pre)):
        assert [launch.kernel.__name__ for launch in _launched(tokens, d, spread, target)] == kernels


def test_scratch_and_descriptors_cover_a_ragged_last_tile() -> None:
    tokens = 600
    (launch,) = _launched(tokens, FLASH, spread=True)
    tiles, slices = -(-tokens // 16), FLASH // 256
    assert launch.constants["SLICES"] == launch.arguments["n_slices"] == slices
    assert launch.arguments["record_ptr"].shape == (HEAD + tiles * slices * RECORD,)
    x, y = launch.arguments["x_desc"], launch.arguments["y_desc"]
    assert (x.shape, x.strides, x.block_shape) == ([4, tokens, FLASH], [FLASH, 4 * FLASH, 1], [1, 16, 256])
    assert (y.shape, y.strides, y.block_shape) == ([tokens, FLASH], [FLASH, 1], [16, 256])
    post, comb = launch.arguments["post_desc"], launch.arguments["comb_desc"]
    assert (post.shape, post.block_shape) == ([tokens, 4], [16, 4])
    assert (comb.shape, comb.block_shape) == ([tokens, 16], [16, 16])


@pytest.mark.parametrize("table", [ONCE, ONCE_SPREAD])
def test_registers_of_a_program_are_those_of_an_sm_and_slices_are_read_in_whole_steps(table: LaunchTable) -> None:
    for chosen in (*table.configs(TARGETS["sm_90"]), *table.candidates):
        left = 65536 // 128 - 2 * chosen["PRODUCT_REGS"] - chosen["OTHER_REGS"]
        assert left >= (104 if chosen["EARLY"] else 72)
        assert all(d // SLICE % chosen["MIXES_AT_ONCE"] == 0 for d in ONCE_WIDTHS)


def test_what_does_not_begin_on_16_bytes_is_not_read_by_descriptors() -> None:
    x = torch.zeros(512 * 4 * FLASH, dtype=torch.bfloat16).view(512, 4, FLASH)
    post = torch.zeros(512 * 4 + 1)[1:].view(512, 4)
    with forced_target("sm_90"):
        assert is_once(x)
        assert not is_once(x, post)
