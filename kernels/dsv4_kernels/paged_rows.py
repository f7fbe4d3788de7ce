"""Row stores with values and scales apart within a page: former KV layout, index keys (dsv4-spec 3.5, 3.6)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dsv4_kernels.formats import AMAX_FLOOR, E4M3_MAX, FP4_GROUP, decode_e2m1, quantise_e2m1
from dsv4_kernels.hadamard import hadamard
from dsv4_kernels.rows import POISON, decode_scales, dequantise_tiles, quantise_tiles, scale_bytes, tiles


@dataclass(frozen=True, eq=False, slots=True)
class PagedRows:
    """``pages`` uint8 ``[n, page_bytes]``: first ``per_page`` rows of values, then as many of scales, then padding.

    Row ``i`` is place ``i % per_page`` of page ``i // per_page``. Base of the classes below.
    """

    pages: torch.Tensor
    per_page: int
    width: int
    """Values of a row."""

    @property
    def dtype(self) -> torch.dtype:
        """See :class:`dsv4_kernels.rows.RowStore`."""
        return torch.uint8

    @property
    def shape(self) -> tuple[int, int]:
        """See :class:`dsv4_kernels.rows.RowStore`."""
        return self.pages.shape[0] * self.per_page, self.width

    def bytes_per_row(self) -> tuple[int, int]:
        """Bytes of a row's values and of its scales."""
        raise NotImplementedError

    def parts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of values and scales, ``[n, per_page, bytes]`` each."""
        values, scales = self.bytes_per_row()
        split = self.per_page * values
        end = split + self.per_page * scales
        shape = (self.pages.shape[0], self.per_page)
        return self.pages[:, :split].view(*shape, values), self.pages[:, split:end].view(*shape, scales)

    def load(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Bytes of values and of scales of ``rows``."""
        page, place = rows // self.per_page, rows % self.per_page
        values, scales = self.parts()
        return values[page, place], scales[page, place]

    def store(self, rows: torch.Tensor, values: torch.Tensor, scales: torch.Tensor) -> None:
        """Write bytes ``[n, ...]``; fewer bytes of scales than a row has leave the rest alone."""
        page, place = rows // self.per_page, rows % self.per_page
        to_values, to_scales = self.parts()
        to_values[page, place] = values
        to_scales[:, :, : scales.shape[1]][page, place] = scales

    def poison(self, rows: torch.Tensor) -> None:
        """See :class:`dsv4_kernels.rows.RowStore`."""
        for part in self.parts():
            part[rows // self.per_page, rows % self.per_page] = POISON


@dataclass(frozen=True, eq=False, slots=True)
class Fp8Pages(PagedRows):
    """KV rows of the former layout: e4m3 values, then ``rope_dim`` bf16 ones; an e8m0 byte per 64 values, padded."""

    rope_dim: int

    @staticmethod
    def page_bytes(per_page: int, width: int, rope_dim: int) -> int:
        """Bytes of a page, padded to a multiple of a row's values: 584 a row before padding, in multiples of 576."""
        values = width + rope_dim
        return -(-per_page * (values + scale_bytes(width - rope_dim)) // values) * values

    def bytes_per_row(self) -> tuple[int, int]:
        """See :class:`PagedRows`."""
        return self.width + self.rope_dim, scale_bytes(self.width - self.rope_dim)

    def __getitem__(self, rows: torch.Tensor) -> torch.Tensor:
        """See :class:`dsv4_kernels.rows.RowStore`."""
        nope = self.width - self.rope_dim
        packed, scales = self.load(rows)
        rope = packed[..., nope:].contiguous().view(torch.bfloat16).float()
        return torch.cat((dequantise_tiles(packed[..., :nope], scales[..., : tiles(nope)]), rope), dim=-1)

    def put(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        """See :class:`dsv4_kernels.rows.RowStore`."""
        nope = self.width - self.rope_dim
        x = values.to(torch.bfloat16)
        codes, scales = quantise_tiles(x[:, :nope])
        self.store(rows, torch.cat((codes, x[:, nope:].contiguous().view(torch.uint8)), dim=-1), scales)


@dataclass(frozen=True, eq=False, slots=True)
class IndexFp8Pages(PagedRows):
    """Index keys in e4m3 with one float32 scale each, ``max(amax, 1e-4) / 448``, not rounded to a power of two.

    Keys are stored rotated (:func:`dsv4_kernels.hadamard.hadamard`); queries must be rotated too.
    """

    def bytes_per_row(self) -> tuple[int, int]:
        """See :class:`PagedRows`."""
        return self.width, 4

    def __getitem__(self, rows: torch.Tensor) -> torch.Tensor:
        """See :class:`dsv4_kernels.rows.RowStore`."""
        codes, scales = self.load(rows)
        return codes.view(torch.float8_e4m3fn).float() * scales.view(torch.float32)

    def put(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        """See :class:`dsv4_kernels.rows.RowStore`."""
        x = hadamard(values.to(torch.bfloat16))
        scale = x.abs().amax(-1, keepdim=True).clamp(min=AMAX_FLOOR) / E4M3_MAX
        codes = (x / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
        self.store(rows, codes.view(torch.uint8), scale.view(torch.uint8))


@dataclass(frozen=True, eq=False, slots=True)
class IndexFp4Pages(PagedRows):
    """Index keys in packed e2m1 with one e8m0 byte per 32 values; rotated as in :class:`IndexFp8Pages`."""

    def bytes_per_row(self) -> tuple[int, int]:
        """See :class:`PagedRows`."""
        return self.width // 2, self.width // FP4_GROUP

    def __getitem__(self, rows: torch.Tensor) -> torch.Tensor:
        """See :class:`dsv4_kernels.rows.RowStore`."""
        packed, scales = self.load(rows)
        return decode_e2m1(packed) * decode_scales(scales).repeat_interleave(FP4_GROUP, dim=-1)

    def put(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        """See :class:`dsv4_kernels.rows.RowStore`."""
        x = hadamard(values.to(torch.bfloat16))
        packed, scales = quantise_e2m1(x)
        self.store(rows, packed, torch.where(x.isfinite().all(-1, keepdim=True), scales, POISON))
