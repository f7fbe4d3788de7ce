"""NVIDIA's fp4 experts without a GPU: how codes are decoded, and which kernels the tables choose."""

from __future__ import annotations

import random
import re

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from dsv4_kernels.formats import decode_e2m1
from dsv4_kernels.launch import pinned, recorded
from dsv4_kernels.moe_gemm import cases
from dsv4_kernels.moe_gemm._launch import DOWN_LANES, GATE_UP_LANES
from dsv4_kernels.moe_gemm._nvidia import _decode
from dsv4_kernels.registry import spec
from dsv4_kernels.target import forced_target
from dsv4_kernels.testing.inputs import Inputs


def run_ptx(text: str, registers: dict[str, int]) -> dict[str, int]:
    """The registers after the ``and``, ``shr`` and ``mul.lo`` of ``text``."""
    held = dict(registers)
    for op, to, left, right in re.findall(r"([a-z.0-9]+) (\w+), (\w+), (\w+);", text):
        a, b = (held[name] if name in held else int(name, 0) for name in (left, right))
        held[to] = {"and.b32": a & b, "shr.u32": a >> b, "mul.lo.u32": a * b & 0xFFFFFFFF}[op]
    return held


def test_a_word_decodes_to_pairs_of_codes_four_apart() -> None:
    source = random.Random(7)
    for word in [0, 0xFFFFFFFF, *(source.getrandbits(32) for _ in range(500))]:
        held = run_ptx(_decode("w", "p"), {"w": word})
        pairs = torch.tensor([[held[f"p{k}"] & 0xFFFF, held[f"p{k}"] >> 16] for k in range(4)], dtype=torch.int32)
        values = (pairs << 16).view(torch.float32).double() * 2.0**126
        codes = torch.tensor([word >> (8 * byte) & 0xFF for byte in range(4)], dtype=torch.uint8)
        wanted = decode_e2m1(codes).double()
        assert values.t().flatten().tolist() == wanted.tolist(), hex(word)


def kernels_of(tokens: int, d: int, inter: int) -> list[str]:
    with forced_target("sm_90"), recorded() as launches:
        spec("moe_gemm_quant").wrapper()(**cases._fp4(Inputs("meta", 0), tokens, (3, d, inter), 2))
    assert launches[0].constants["LIFTED"] == ("ring" in launches[1].kernel.__name__)
    return [launch.kernel.__name__.split("_")[-2] for launch in launches]


def test_rows_without_whole_words_of_scales_keep_their_weights_in_registers() -> None:
    assert kernels_of(8, 4096, 2048) == ["ring", "ring"]
    assert kernels_of(8, 96, 2048) == ["lanes", "ring"]
    assert kernels_of(8, 4096, 544) == ["ring", "lanes"]


def test_few_tokens_have_too_few_programs_of_32_rows() -> None:
    assert kernels_of(4, 4096, 2048) == ["ring", "lanes"]
    assert kernels_of(1, 4096, 256) == ["lanes", "lanes"]
    assert kernels_of(5, 7168, 384) == ["ring", "ring"]


@pytest.mark.parametrize("table", [GATE_UP_LANES, DOWN_LANES], ids=lambda table: table.name)
def test_a_ring_pinned_for_such_rows_is_an_error(table: object) -> None:
    ring = next(c for c in table.candidates if c["STAGES"])  # type: ignore[attr-defined]
    with pinned({table.name: ring}), pytest.raises(ValueError, match="multiple of 128 codes, not of 96"):  # type: ignore[attr-defined]
        kernels_of(8, 96, 96)
