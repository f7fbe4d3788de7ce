"""How released checkpoints store each tensor, and random tensors made directly in those formats (dsv4-spec 9.1, 5.6).

Codes and scales are drawn as bytes: no float copy of a quantised matrix ever exists, so shapes of any size can be made
on the device that will use them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import torch

from dsv4lab.checkpoint.hashing import CHUNK, fill_uniform, random_chunks, tensor_key
from dsv4lab.checkpoint.names import Role, TensorSpec
from dsv4lab.checkpoint.synthetic import mean_and_deviation
from dsv4lab.config.model import ModelConfig
from dsv4lab.errors import ConfigError
from dsv4lab.parallel.sharding import Part

FP8_BLOCK, FP4_BLOCK = 128, 32
WEIGHT_FORMATS = ("float32", "bfloat16", "fp8", "fp4")
"""Of a whole checkpoint: plain, fp8 with fp8 experts, or fp8 with fp4 experts as released."""

_FP8_FIRST = 0x28  # magnitudes 0.25 to 3.75 in 32 codes, log-uniform
_FP8_CODES = 32
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_QUANTISED = ("wq_a", "wq_b", "wo_a", "wo_b", "e_proj", "h_proj", "main_proj")
_KEPT_FP32 = (Role.HC_FN, Role.HC_BASE, Role.HC_SCALE, Role.APE, Role.SINK, Role.ROUTER_BIAS)


class Kind(StrEnum):
    """Format of one stored tensor."""

    FP8 = "fp8"
    FP4 = "fp4"
    BF16 = "bf16"
    FP32 = "fp32"
    INT64 = "int64"


@dataclass(frozen=True, slots=True, eq=False)
class StoredWeight:
    """A tensor as a checkpoint holds it.

    Fp8: e4m3 ``[N, K]``, e8m0 ``scale [ceil(N / 128), ceil(K / 128)]``. Fp4: packed e2m1 int8 ``[N, K / 2]``, low
    nibble first, ``scale [N, K / 32]``. Otherwise plain, without a scale.
    """

    values: torch.Tensor
    scale: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return self.values.nbytes + (0 if self.scale is None else self.scale.nbytes)


def stored_kind(name: str, spec: TensorSpec, weights: str) -> Kind:
    """Format of canonical tensor ``name`` in a checkpoint of ``weights`` (one of :data:`WEIGHT_FORMATS`)."""
    if spec.role is Role.HASH_TABLE:
        return Kind.INT64
    if weights == "float32" or spec.role in _KEPT_FP32:
        return Kind.FP32
    if weights == "bfloat16" or spec.role is not Role.LINEAR:
        return Kind.BF16
    parts = name.split(".")
    if "experts" in parts:
        return Kind.FP4 if weights == "fp4" else Kind.FP8
    quantised = parts[-2] in _QUANTISED or parts[-3:-1] == ["attn", "wkv"] or "shared_experts" in parts
    return Kind.FP8 if quantised else Kind.BF16


def stored_bytes(tensors: Mapping[str, TensorSpec], weights: str) -> int:
    """Bytes of ``tensors``, scales included, in a checkpoint of ``weights``."""
    return sum(_bytes_of(spec.shape, stored_kind(name, spec, weights)) for name, spec in tensors.items())


def _bytes_of(shape: tuple[int, ...], kind: Kind) -> int:
    count = math.prod(shape)
    if kind is Kind.FP8:
        return count + math.prod(scale_shape(shape, kind))
    if kind is Kind.FP4:
        return count // 2 + math.prod(scale_shape(shape, kind))
    return count * {Kind.BF16: 2, Kind.FP32: 4, Kind.INT64: 8}[kind]


def scale_shape(shape: tuple[int, ...], kind: Kind) -> tuple[int, ...]:
    """Shape of the scales of a quantised matrix."""
    rows, columns = shape
    if kind is Kind.FP8:
        return -(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK)
    return rows, -(-columns // FP4_BLOCK)


def random_stored(
    name: str,
    spec: TensorSpec,
    config: ModelConfig,
    seed: int,
    weights: str,
    device: torch.device | str = "cpu",
    part: Part | None = None,
) -> StoredWeight:
    """A random tensor in its stored format; it depends on seed, name and format alone, on every device.

    A ``part`` is made alone (of columns: from a few megabytes of whole rows at a time), with the bits that it has in
    the whole. Raises :class:`ConfigError` if it cuts a block that shares a scale.
    """
    kind, key = stored_kind(name, spec, weights), tensor_key(seed, name)
    if kind is Kind.INT64:
        return StoredWeight(_hash_table(key, spec.shape, config.n_routed_experts, device))
    mean, deviation = mean_and_deviation(spec)
    if kind in (Kind.BF16, Kind.FP32):
        dtype = torch.bfloat16 if kind is Kind.BF16 else torch.float32

        def plain(out: torch.Tensor, offset: int) -> None:
            fill_uniform(out, key, mean, deviation, offset)

        return StoredWeight(fill_part(spec.shape, part, dtype, device, plain))
    of_codes, of_scales = quantised_parts(name, spec.shape, kind, part)
    rows, columns = spec.shape
    width = columns if kind is Kind.FP8 else columns // 2
    scale_key = tensor_key(seed, f"{name}.scale")
    codes = fill_part(
        (rows, width), of_codes, torch.uint8, device, lambda out, offset: fill_codes(out, key, kind, offset)
    )
    scale = fill_part(
        scale_shape(spec.shape, kind),
        of_scales,
        torch.uint8,
        device,
        lambda out, offset: fill_scales(out, scale_key, kind, deviation, offset),
    )
    stored = torch.float8_e4m3fn if kind is Kind.FP8 else torch.int8
    return StoredWeight(codes.view(stored), scale.view(torch.float8_e8m0fnu))


def random_checkpoint(
    tensors: Mapping[str, TensorSpec],
    config: ModelConfig,
    seed: int,
    weights: str = "fp4",
    device: torch.device | str = "cpu",
) -> Iterator[tuple[str, StoredWeight]]:
    """Every tensor by canonical name, one at a time."""
    for name, spec in tensors.items():
        yield name, random_stored(name, spec, config, seed, weights, device)


def quantised_parts(
    name: str, shape: tuple[int, ...], kind: Kind, part: Part | None
) -> tuple[Part | None, Part | None]:
    """The parts of codes and scales that make ``part`` of a matrix of ``shape``; see :func:`random_stored`."""
    if part is None:
        return None, None
    block = FP8_BLOCK if kind is Kind.FP8 else (1, FP4_BLOCK)[part.axis]
    length = shape[part.axis]
    if part.start % block or (part.stop % block and part.stop != length):
        raise ConfigError(
            f"{name}: {part.start} to {part.stop} of dimension {part.axis} cuts a block of {block} {kind} values that "
            f"share a scale: split {length} over at most {max(1, length // block)} ranks"
        )
    packed = 2 if kind is Kind.FP4 and part.axis == 1 else 1
    codes = Part(part.axis, part.start // packed, part.stop // packed)
    return codes, Part(part.axis, part.start // block, -(-part.stop // block))


def fill_part(
    shape: tuple[int, ...],
    part: Part | None,
    dtype: torch.dtype,
    device: torch.device | str,
    fill: Callable[[torch.Tensor, int], None],
) -> torch.Tensor:
    """``part`` of a tensor of ``shape`` that ``fill(out, offset)`` makes from its ``offset``-th value on."""
    row = math.prod(shape[1:])
    out = torch.empty(shape if part is None else part.of(shape), dtype=dtype, device=device)
    if part is None or part.axis == 0:
        fill(out, 0 if part is None else part.start * row)
        return out
    step = max(1, CHUNK // row)
    for first in range(0, shape[0], step):
        rows = torch.empty((min(step, shape[0] - first), *shape[1:]), dtype=dtype, device=device)
        fill(rows, first * row)
        out[first : first + rows.shape[0]] = rows[:, part.start : part.stop]
    return out


def fill_codes(out: torch.Tensor, key: int, kind: Kind, offset: int = 0) -> None:
    """Random codes into contiguous ``uint8`` ``out``: e4m3 of 0.25 to 3.75 and either sign, or any two e2m1."""
    flat = out.view(-1)
    for part, data in random_chunks(key, flat.numel(), out.device, offset):
        if kind is Kind.FP8:
            sign = data & 0x80
            data = (data & (_FP8_CODES - 1)).add_(_FP8_FIRST).bitwise_or_(sign)
        flat[part] = data


def fill_scales(out: torch.Tensor, key: int, kind: Kind, deviation: float, offset: int = 0) -> None:
    """Random e8m0 bytes into contiguous ``out``, so that decoded values have this standard deviation.

    A power of two rarely hits it: two neighbouring ones are mixed so that the mean square does.
    """
    ratio = deviation / code_deviation(kind)
    exponent = math.floor(math.log2(ratio))
    share = ((ratio / 2.0**exponent) ** 2 - 1.0) / 3.0
    flat, limit = out.view(-1), int(share * 2**16)
    for part, data in random_chunks(key, 2 * flat.numel(), out.device, 2 * offset):
        drawn = data.view(torch.int16).to(torch.int32) & 0xFFFF
        flat[part.start // 2 : part.stop // 2] = (drawn < limit).to(torch.uint8) + (exponent + 127)


def code_deviation(kind: Kind) -> float:
    """Standard deviation of the values that :func:`fill_codes` draws, at scale 1."""
    if kind is Kind.FP4:
        return math.sqrt(sum(v * v for v in _E2M1) / len(_E2M1))
    magnitudes = (_e4m3(_FP8_FIRST + i) for i in range(_FP8_CODES))
    return math.sqrt(sum(v * v for v in magnitudes) / _FP8_CODES)


def _e4m3(code: int) -> float:
    """Value of a normal, positive e4m3 code."""
    return 2.0 ** ((code >> 3) - 7) * (1 + (code & 7) / 8)


def _hash_table(key: int, shape: tuple[int, ...], experts: int, device: torch.device | str) -> torch.Tensor:
    """int64 ``[vocab, k]``: k different experts per token, in random order."""
    vocab, chosen = shape
    out = torch.empty(shape, dtype=torch.int64, device=device)
    for begin in range(0, vocab, 4096):
        rows = min(4096, vocab - begin)
        order = torch.empty((rows, experts), dtype=torch.float32, device=device)
        fill_uniform(order, key + begin, 0.0, 1.0)
        out[begin : begin + rows] = order.argsort(dim=1, stable=True)[:, :chosen]
    return out
