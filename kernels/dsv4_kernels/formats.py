"""Number formats in plain torch: e4m3 with power-of-two scales (ue8m0), and packed e2m1 (dsv4-spec 5.6)."""

from __future__ import annotations

import torch

E4M3_MAX = 448.0
AMAX_FLOOR = 1e-4
E8M0_BIAS = 127
FP4_GROUP = 32
FP8_GROUP = 128
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _power(exponent: torch.Tensor) -> torch.Tensor:
    """``2 ** exponent`` for exponents of -127 to 127, exactly (``torch.pow`` may be off in the last place)."""
    table = torch.tensor([2.0 ** (code - E8M0_BIAS) for code in range(2 * E8M0_BIAS + 1)], dtype=torch.float32)
    return table.to(exponent.device)[exponent.long() + E8M0_BIAS]


def pow2ceil_exponent(x: torch.Tensor) -> torch.Tensor:
    """The least ``e`` with ``2 ** e >= x``, for ``x > 0``; int32."""
    mantissa, exponent = torch.frexp(x)
    return exponent - (mantissa == 0.5).to(torch.int32)


def pow2ceil(x: torch.Tensor) -> torch.Tensor:
    """The smallest power of two that is not below ``x > 0``."""
    return _power(pow2ceil_exponent(x))


def encode_e8m0(exponent: torch.Tensor) -> torch.Tensor:
    """``2 ** exponent`` as an e8m0 byte, ``uint8``."""
    return (exponent + E8M0_BIAS).to(torch.uint8)


def decode_e8m0(byte: torch.Tensor) -> torch.Tensor:
    """``2 ** (byte - 127)``. Byte 255, which is no number, must not occur."""
    return _power(byte.view(torch.uint8).to(torch.int32) - E8M0_BIAS)


def quantise_e4m3(x: torch.Tensor, group: int = FP8_GROUP) -> tuple[torch.Tensor, torch.Tensor]:
    """``x [..., K]`` as e4m3 codes and one e8m0 byte per ``group`` of the last dim: ``uint8 [..., K / group]``.

    The scale is ``pow2ceil(max(amax, 1e-4) / 448)``, computed in float32.
    """
    blocks = x.float().reshape(*x.shape[:-1], x.shape[-1] // group, group)
    exponent = pow2ceil_exponent(blocks.abs().amax(-1).clamp(min=AMAX_FLOOR) / E4M3_MAX)
    codes = (blocks / _power(exponent).unsqueeze(-1)).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return codes.flatten(-2), encode_e8m0(exponent)


def dequantise_e4m3(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The values of ``codes [..., K]`` with e8m0 bytes ``scale [..., K / group]``, as float."""
    group = codes.shape[-1] // scale.shape[-1]
    return codes.float() * decode_e8m0(scale).repeat_interleave(group, dim=-1).float()


def quantise_e4m3_blocks(w: torch.Tensor, block: int = FP8_GROUP) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights ``[..., N, K]`` as e4m3 with one e8m0 byte per ``block`` × ``block``: ``uint8 [..., N / b, K / b]``."""
    tiles = w.float().reshape(*w.shape[:-2], w.shape[-2] // block, block, w.shape[-1] // block, block)
    exponent = pow2ceil_exponent(tiles.abs().amax((-3, -1)).clamp(min=AMAX_FLOOR) / E4M3_MAX)
    codes = (tiles / _power(exponent)[..., :, None, :, None]).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return codes.flatten(-2).flatten(-3, -2), encode_e8m0(exponent)


def dequantise_e4m3_blocks(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The values of block-scaled weights ``[..., N, K]``, as float."""
    tall, wide = codes.shape[-2] // scale.shape[-2], codes.shape[-1] // scale.shape[-1]
    spread = decode_e8m0(scale).repeat_interleave(tall, dim=-2).repeat_interleave(wide, dim=-1)
    return codes.float() * spread.float()


def decode_e2m1(packed: torch.Tensor) -> torch.Tensor:
    """Codes ``uint8 [..., K / 2]``, low nibble first, as float ``[..., K]``."""
    table = torch.tensor(_E2M1 + tuple(-v for v in _E2M1), dtype=torch.float32, device=packed.device)
    pairs = torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)
    return table[pairs.to(torch.int64)]


def dequantise_e2m1(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The values of packed e2m1 ``uint8 [..., K / 2]`` with e8m0 bytes ``[..., K / 32]``, as float."""
    values = decode_e2m1(packed)
    group = values.shape[-1] // scale.shape[-1]
    return values.float() * decode_e8m0(scale).repeat_interleave(group, dim=-1).float()


def quantise_e2m1(x: torch.Tensor, group: int = FP4_GROUP) -> tuple[torch.Tensor, torch.Tensor]:
    """``x [..., K]`` as packed e2m1 codes ``uint8 [..., K / 2]`` and one e8m0 byte per ``group`` values.

    The scale is ``pow2ceil(max(amax, 1e-4) / 6)``; values round to the nearest code, ties to the even one.
    """
    blocks = x.float().reshape(*x.shape[:-1], x.shape[-1] // group, group)
    exponent = pow2ceil_exponent(blocks.abs().amax(-1).clamp(min=AMAX_FLOOR) / _E2M1[-1])
    y = (blocks / _power(exponent).unsqueeze(-1)).flatten(-2)
    size = y.abs()
    codes = sum(
        (size > edge if code % 2 == 0 else size >= edge).to(torch.uint8)
        for code, edge in enumerate((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0))
    )
    codes = torch.as_tensor(codes) | ((y < 0).to(torch.uint8) << 3)
    return codes[..., ::2] | (codes[..., 1::2] << 4), encode_e8m0(exponent)
