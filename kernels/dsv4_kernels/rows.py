"""Rows of the KV pool that are not plain tensors: packed fp8 rows and index keys (dsv4-spec 3.4 to 3.6).

A row store stands where a ``[rows, d]`` tensor stands otherwise: ``store[rows]`` gives the values of rows, float32
``[..., d]``, and :func:`put_rows` writes them. Rows are quantised from their bf16-rounded values. A byte of 255 decodes
to NaN in every format, so poisoned rows show.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from dsv4_kernels.formats import AMAX_FLOOR, E4M3_MAX, decode_e8m0

TILE = 64  # values that share a scale in a KV row
NOPE_ALIGN = 64  # bytes
SCALE_ALIGN = 8  # bytes
POISON = 0xFF


class RowStore(Protocol):
    """Packed rows, numbered like those of a tensor."""

    @property
    def dtype(self) -> torch.dtype:
        """``uint8``: no plain rows."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and values of a row."""
        ...

    def __getitem__(self, rows: torch.Tensor) -> torch.Tensor:
        """Values of ``rows`` (int64, any shape), float32 ``[..., d]``."""
        ...

    def put(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        """Quantise ``values [n, d]`` into ``rows`` (int64 ``[n]``, distinct)."""
        ...

    def poison(self, rows: torch.Tensor) -> None:
        """Make ``rows`` decode to NaN."""
        ...


Rows = torch.Tensor | RowStore


def put_rows(pool: Rows, rows: torch.Tensor, values: torch.Tensor) -> None:
    """``pool[rows] = values``, rounded or quantised to what the pool holds."""
    if isinstance(pool, torch.Tensor):
        pool.index_copy_(0, rows, values.to(pool.dtype))
    else:
        pool.put(rows, values)


def poison_rows(pool: Rows, rows: torch.Tensor) -> None:
    """Make ``rows`` of ``pool`` NaN."""
    if isinstance(pool, torch.Tensor):
        pool.index_fill_(0, rows, float("nan"))
    else:
        pool.poison(rows)


def tiles(nope: int) -> int:
    """Scales of a row with ``nope`` quantised values; the last tile may be short."""
    return -(-nope // TILE)


def nope_row_bytes(nope: int) -> int:
    """Bytes of a row of the nope pool: values, every scale twice, padding. 512 for 448 values."""
    return -(-(nope + 2 * tiles(nope)) // NOPE_ALIGN) * NOPE_ALIGN


def scale_bytes(nope: int) -> int:
    """Bytes of a row's scales where values and scales lie apart. 8 for 448 values."""
    return -(-tiles(nope) // SCALE_ALIGN) * SCALE_ALIGN


def quantise_tiles(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``x [..., nope]`` as e4m3 codes ``uint8 [..., nope]`` and e8m0 bytes ``uint8 [..., tiles]``.

    The scale of a tile is ``pow2ceil(max(amax, 1e-4) / 448)``. A tile that is not finite becomes NaN.
    """
    nope, count = x.shape[-1], tiles(x.shape[-1])
    padded = torch.nn.functional.pad(x.float(), (0, count * TILE - nope))
    padded = padded.view(*x.shape[:-1], count, TILE)
    scale = scale_byte(padded.abs().amax(-1).clamp(min=AMAX_FLOOR) / E4M3_MAX)
    shrunk = padded / decode_scales(scale).unsqueeze(-1)
    codes = shrunk.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return codes.view(torch.uint8).flatten(-2)[..., :nope], scale


def scale_byte(x: torch.Tensor) -> torch.Tensor:
    """The smallest power of two that is not below float32 ``x > 0``, as an e8m0 byte; 255 for NaN and infinity."""
    bits = x.view(torch.int32)
    return ((bits >> 23 & 0xFF) + (bits & 0x7FFFFF != 0)).clamp(max=POISON).to(torch.uint8)


def dequantise_tiles(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The inverse: float32 ``[..., nope]``."""
    spread = decode_scales(scale).repeat_interleave(TILE, dim=-1)[..., : codes.shape[-1]]
    return codes.contiguous().view(torch.float8_e4m3fn).float() * spread


def decode_scales(code: torch.Tensor) -> torch.Tensor:
    """e8m0 bytes as float32; 255 is NaN."""
    return torch.where(code == POISON, float("nan"), decode_e8m0(code.clamp(max=POISON - 1)))


@dataclass(frozen=True, eq=False, slots=True)
class Fp8Rows:
    """The two pools of the fp8 variant (dsv4-spec 3.4): same row count, same row numbers.

    ``nope`` uint8 ``[rows, nope_row_bytes]``: e4m3 values, then each tile's e8m0 byte twice; ``rope`` bf16 ``[rows,
    rope_dim]``, never quantised. ``nope_dim`` is how many values are quantised.
    """

    nope: torch.Tensor
    rope: torch.Tensor
    nope_dim: int

    def __post_init__(self) -> None:
        wanted = nope_row_bytes(self.nope_dim)
        if self.nope.dtype is not torch.uint8 or self.rope.dtype is not torch.bfloat16:
            raise ValueError(f"fp8 rows are uint8 and bfloat16, got {self.nope.dtype} and {self.rope.dtype}")
        if self.nope.shape[1] != wanted or self.nope.shape[0] != self.rope.shape[0]:
            got = f"{list(self.nope.shape)} and {list(self.rope.shape)}"
            raise ValueError(f"fp8 rows take [rows, {wanted}] and [rows, rope_dim] of equal height, got {got}")

    @property
    def dtype(self) -> torch.dtype:
        """See :class:`RowStore`."""
        return torch.uint8

    @property
    def shape(self) -> tuple[int, int]:
        """See :class:`RowStore`."""
        return self.nope.shape[0], self.nope_dim + self.rope.shape[1]

    def __getitem__(self, rows: torch.Tensor) -> torch.Tensor:
        """See :class:`RowStore`."""
        packed = self.nope[rows]
        scale = packed[..., self.nope_dim : self.nope_dim + 2 * tiles(self.nope_dim) : 2]
        return torch.cat((dequantise_tiles(packed[..., : self.nope_dim], scale), self.rope[rows].float()), dim=-1)

    def put(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        """See :class:`RowStore`."""
        x = values.to(torch.bfloat16)
        codes, scale = quantise_tiles(x[:, : self.nope_dim])
        used = torch.cat((codes, scale.repeat_interleave(2, dim=-1)), dim=-1)
        self.nope[:, : used.shape[1]].index_copy_(0, rows, used)
        self.rope.index_copy_(0, rows, x[:, self.nope_dim :])

    def poison(self, rows: torch.Tensor) -> None:
        """See :class:`RowStore`."""
        self.nope.index_fill_(0, rows, POISON)
        self.rope.index_fill_(0, rows, float("nan"))


@dataclass(frozen=True, eq=False, slots=True)
class JoinedRows:
    """Two pools under one numbering: rows below ``split`` are ``head``'s, the others ``tail``'s."""

    head: RowStore
    tail: RowStore
    split: int

    @property
    def dtype(self) -> torch.dtype:
        """See :class:`RowStore`."""
        return self.head.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """See :class:`RowStore`."""
        return self.split + self.tail.shape[0], self.head.shape[1]

    def __getitem__(self, rows: torch.Tensor) -> torch.Tensor:
        """See :class:`RowStore`."""
        in_tail = rows >= self.split
        out = torch.empty((*rows.shape, self.shape[1]), dtype=torch.float32, device=rows.device)
        out[~in_tail] = self.head[rows[~in_tail]]
        out[in_tail] = self.tail[rows[in_tail] - self.split]
        return out

    def put(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        """See :class:`RowStore`."""
        in_tail = rows >= self.split
        self.head.put(rows[~in_tail], values[~in_tail])
        self.tail.put(rows[in_tail] - self.split, values[in_tail])

    def poison(self, rows: torch.Tensor) -> None:
        """See :class:`RowStore`."""
        in_tail = rows >= self.split
        self.head.poison(rows[~in_tail])
        self.tail.poison(rows[in_tail] - self.split)
