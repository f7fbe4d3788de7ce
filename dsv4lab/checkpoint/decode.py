"""Quantised weights to fp32: e4m3 with a grid of scales, and packed e2m1 with a scale per 32 (dsv4-spec 5.6, 9.2)."""

from __future__ import annotations

import torch

from dsv4lab.errors import CheckpointError

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E8M0_NAN = 0xFF
_E8M0_BIAS = 127


def decode_scale(scale: torch.Tensor, name: str) -> torch.Tensor:
    """Block scales as fp32: e8m0 (also when stored as bytes) means ``2 ** (byte - 127)``; floats stand for themselves.

    Raises :class:`CheckpointError` naming the tensor when a scale is not a positive finite number.
    """
    if scale.dtype in (torch.float8_e8m0fnu, torch.uint8):
        exponents = scale.view(torch.uint8)
        if bool((exponents == _E8M0_NAN).any()):
            raise CheckpointError(f"{name}: holds an e8m0 scale of 255, which is not a number")
        powers = [2.0 ** (code - _E8M0_BIAS) for code in range(_E8M0_NAN)]
        return torch.tensor(powers, dtype=torch.float32, device=scale.device)[exponents.to(torch.int64)]
    if scale.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise CheckpointError(f"{name}: scales are stored as {scale.dtype}, expected e8m0 or a float type")
    values = scale.float()
    if not bool((torch.isfinite(values) & (values > 0)).all()):
        raise CheckpointError(f"{name}: holds a scale that is not a positive finite number")
    return values


def decode_fp8(weight: torch.Tensor, scale: torch.Tensor, name: str) -> torch.Tensor:
    """e4m3 ``[rows, columns]`` times its block's scale, fp32; the block size follows from the grid of scales."""
    return weight.float() * spread(decode_scale(scale, name), weight.shape, name)


def decode_fp4(packed: torch.Tensor, scale: torch.Tensor, name: str) -> torch.Tensor:
    """Packed e2m1 bytes ``[rows, columns / 2]``, low nibble first, times the scale of each block, fp32."""
    codes = packed.view(torch.uint8)
    values = _E2M1 + tuple(-value for value in _E2M1)
    table = torch.tensor(values, dtype=torch.float32, device=codes.device)
    pairs = torch.stack((codes & 0xF, codes >> 4), dim=-1).flatten(-2)
    return table[pairs.to(torch.int64)] * spread(decode_scale(scale, name), pairs.shape, name)


def spread(scale: torch.Tensor, shape: torch.Size, name: str) -> torch.Tensor:
    """Scales ``[rows / block, columns / block]`` repeated to ``shape``; the last block may be cut short."""
    if scale.dim() != 2 or len(shape) != 2:
        raise CheckpointError(f"{name}: scales {list(scale.shape)} do not form a grid over weights {list(shape)}")
    rows, columns = (block_size(n, blocks, name) for n, blocks in zip(shape, scale.shape, strict=True))
    tall = scale.repeat_interleave(rows, dim=0)[: shape[0]]
    return tall.repeat_interleave(columns, dim=1)[:, : shape[1]]


def block_size(length: int, blocks: int, name: str) -> int:
    """The power of two of which ``blocks`` cover ``length``: blocks are 1, 32 or 128 long, the last may be shorter."""
    size = 1
    while blocks > 0 and -(-length // size) > blocks:
        size *= 2
    if blocks <= 0 or -(-length // size) != blocks:
        raise CheckpointError(f"{name}: {blocks} scales cannot cover {length} weights in blocks of a power of two")
    return size
