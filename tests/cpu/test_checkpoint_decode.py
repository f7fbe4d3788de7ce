"""Quantised weights: golden values of the specification, block grids, and whole checkpoints."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dsv4lab.checkpoint.decode import block_size, decode_fp4, decode_fp8, decode_scale, spread
from dsv4lab.checkpoint.load import load_weights
from dsv4lab.checkpoint.synthetic import random_weights, write_checkpoint
from dsv4lab.config.from_json import load_model_config
from dsv4lab.config.presets import preset
from dsv4lab.errors import CheckpointError

TINY = preset("tiny")


def e8m0(*codes: int) -> torch.Tensor:
    return torch.tensor([codes], dtype=torch.uint8).view(torch.float8_e8m0fnu)


@pytest.mark.parametrize(
    ("codes", "scale", "values"),
    [
        ([120, 106, 217], 119, [1.0, 0.3125, -0.0703125]),
        ([126, 68], 127, [448.0, 3.0]),
        ([118, 64], 128, [448.0, 4.0]),
        ([0], 105, [0.0]),
        ([72], 105, [4.0 * 2.0**-22]),
    ],
)
def test_fp8_golden(codes: list[int], scale: int, values: list[float]) -> None:
    weight = torch.tensor([codes], dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert decode_fp8(weight, e8m0(scale), "w").tolist() == [values]


def test_fp4_golden() -> None:
    packed = torch.tensor([[5 | 4 << 4, 0 | 9 << 4]], dtype=torch.uint8)  # low nibble is the even column
    assert decode_fp4(packed, e8m0(128), "w").tolist() == [[6.0, 4.0, 0.0, -1.0]]
    assert decode_fp4(packed.view(torch.int8), e8m0(128), "w").tolist() == [[6.0, 4.0, 0.0, -1.0]]


def test_fp4_every_code() -> None:
    packed = torch.tensor([[low | (low + 1) << 4 for low in range(0, 16, 2)]], dtype=torch.uint8)
    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    got = decode_fp4(packed, e8m0(127), "w")
    assert got.tolist() == [magnitudes + [-m for m in magnitudes]]
    assert torch.signbit(got[0, 8])


def test_e8m0_is_exact_over_its_range() -> None:
    scales = decode_scale(torch.arange(255, dtype=torch.uint8), "s")
    assert scales.double().tolist() == [2.0 ** (code - 127) for code in range(255)]


def test_scales_that_are_no_numbers() -> None:
    with pytest.raises(CheckpointError, match=r"the\.scale: holds an e8m0 scale of 255"):
        decode_scale(e8m0(127, 255), "the.scale")
    for bad in (float("nan"), float("inf"), 0.0, -1.0):
        with pytest.raises(CheckpointError, match="not a positive finite number"):
            decode_scale(torch.tensor([[bad]]), "the.scale")
    with pytest.raises(CheckpointError, match=r"stored as torch\.int64"):
        decode_scale(torch.ones(1, 1, dtype=torch.int64), "the.scale")


@pytest.mark.parametrize(
    ("length", "blocks", "size"),
    [
        (512, 4, 128),
        (512, 16, 32),
        (300, 3, 128),
        (64, 1, 64),
        (100, 1, 128),
        (7, 7, 1),
        (129, 2, 128),
        (4096, 32, 128),
    ],
)
def test_block_size(length: int, blocks: int, size: int) -> None:
    assert block_size(length, blocks, "s") == size


@pytest.mark.parametrize(("length", "blocks"), [(512, 3), (512, 0), (4, 5), (100, 60)])
def test_impossible_grid(length: int, blocks: int) -> None:
    with pytest.raises(CheckpointError, match=f"{blocks} scales cannot cover {length} weights"):
        block_size(length, blocks, "s")


def test_spread_places_each_block() -> None:
    grid = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    wide = spread(grid, torch.Size((300, 200)), "s")
    rows, columns = np.meshgrid(np.arange(300) // 128, np.arange(200) // 128, indexing="ij")
    assert torch.equal(wide, grid[rows, columns])
    with pytest.raises(CheckpointError, match="do not form a grid"):
        spread(grid[0], torch.Size((300, 200)), "s")


def _pow2_ceil(x: torch.Tensor) -> torch.Tensor:
    return torch.ceil(torch.log2(x)).to(torch.int32)


def _encode_fp8(weight: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Test encoder: one power-of-two scale per block, values rounded by torch."""
    rows, columns = (-(-n // block) for n in weight.shape)
    exponents = torch.zeros(rows, columns, dtype=torch.int32)
    for i in range(rows):
        for j in range(columns):
            part = weight[i * block : (i + 1) * block, j * block : (j + 1) * block]
            exponents[i, j] = _pow2_ceil(part.abs().max() / 448)
    scale = torch.exp2(exponents.float())
    spread_scale = scale.repeat_interleave(block, 0)[: weight.shape[0]]
    spread_scale = spread_scale.repeat_interleave(block, 1)[:, : weight.shape[1]]
    return (weight / spread_scale).to(torch.float8_e4m3fn), (exponents + 127).to(torch.uint8)


def _encode_fp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    blocks = weight.view(weight.shape[0], -1, 32)
    exponents = _pow2_ceil(blocks.abs().amax(-1) / 6)
    scaled = blocks / torch.exp2(exponents.float())[..., None]
    codes = (scaled.abs()[..., None] - table).abs().argmin(-1) + 8 * (scaled < 0)
    codes = codes.view(weight.shape).to(torch.uint8)
    return codes[:, 0::2] | codes[:, 1::2] << 4, (exponents + 127).to(torch.uint8)


@pytest.mark.parametrize("fp4", ["int8", "uint8", "float4_e2m1fn_x2"])
def test_quantised_checkpoint(tmp_path: Path, fp4: str) -> None:
    """Attention in fp8, experts in fp4, as released; scales as e8m0, bytes or floats, under either name."""
    weights = random_weights(TINY, 5)
    write_checkpoint(tmp_path, TINY, weights, "deepseek")
    tensors = load_file(tmp_path / "model.safetensors")
    for number, name in enumerate(list(tensors)):
        base = name.removesuffix(".weight")
        if ".experts." in name:
            packed, scale = _encode_fp4(tensors[name])
            tensors[name] = packed.view(getattr(torch, fp4))
            tensors[f"{base}.scale"] = scale.view(torch.float8_e8m0fnu)
        elif base.endswith(("wq_a", "wq_b", "wo_a", "wo_b", "attn.wkv")):
            tensors[name], scale = _encode_fp8(tensors[name], 32)
            if number % 2:
                tensors[f"{base}.weight_scale_inv"] = torch.exp2(scale.float() - 127)
            else:
                tensors[f"{base}.scale"] = scale
    save_file(tensors, tmp_path / "model.safetensors")
    data = json.loads((tmp_path / "config.json").read_text())
    data["quantization_config"] = {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [32, 32],
        "scale_fmt": "ue8m0", "expert_dtype": "fp4",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(data))
    loaded = load_weights(tmp_path, load_model_config(tmp_path))
    for name, weight in weights.items():
        assert loaded[name].shape == weight.shape
        error = (loaded[name] - weight).abs().max() / weight.abs().max() if weight.is_floating_point() else 0
        # Half a step against the largest value: 5 becomes 4 or 6 in e2m1, and e4m3 has steps of an eighth.
        limit = 1 / 5 if ".experts." in name else 1 / 16 if tensors[name].dtype == torch.float8_e4m3fn else 0
        assert error <= limit, name


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    write_checkpoint(tmp_path, TINY, random_weights(TINY, 5), "deepseek")
    return tmp_path, load_file(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"layers.0.attn.wq_a.weight": torch.zeros(32, 64).to(torch.float8_e4m3fn)}, "needs block scales"),
        ({"layers.0.attn.wq_a.scale": torch.ones(1, 1)}, "block scales beside weights of dtype F32"),
        ({"layers.0.attn.nothing.scale": torch.ones(1, 1)}, "no place for: layers.0.attn.nothing.scale"),
        (
            {"layers.0.attn.wq_a.weight": torch.zeros(32, 64).to(torch.float8_e5m2)},
            "got dtype F8_E5M2, expected one of",
        ),
        ({"layers.0.attn.wq_a.weight": torch.zeros(32, 32, dtype=torch.int8)}, "got dtype I8, expected one of"),
        ({"norm.weight": torch.zeros(64).to(torch.float8_e4m3fn)}, "norm.weight: got dtype F8_E4M3"),
        (
            {
                "layers.0.attn.wq_a.weight": torch.zeros(32, 64).to(torch.float8_e4m3fn),
                "layers.0.attn.wq_a.scale": torch.ones(3, 1),
            },
            "layers.0.attn.wq_a.scale: 3 scales cannot cover 32 weights",
        ),
    ],
)
def test_quantisation_that_does_not_add_up(written, change: dict[str, torch.Tensor], text: str) -> None:
    directory, tensors = written
    save_file({**tensors, **change}, directory / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        load_weights(directory, TINY)
    assert text in str(caught.value)
