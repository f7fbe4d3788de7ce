"""Random bytes by counter: any part of any tensor, on any device, without the rest and with the same bits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch

CHUNK = 1 << 22  # bytes made at once; the hash works in eight times as much
_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)), (31, 1))


def tensor_key(seed: int, name: str) -> int:
    """The key of a tensor's stream of bytes."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest(), "little", signed=True)


def random_bytes(key: int, begin: int, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Bytes ``begin`` to ``begin + count`` of stream ``key``: ``uint8 [count]``. splitmix64 of the word's number."""
    first, last = begin // 8, -(-(begin + count) // 8)
    words = torch.arange(first, last, dtype=torch.int64, device=device).mul_(_GAMMA).add_(key)
    for shift, factor in _MIX:
        words ^= (words >> shift) & ((1 << (64 - shift)) - 1)
        if factor != 1:
            words *= factor
    return words.view(torch.uint8)[begin - 8 * first :][:count]


def random_chunks(
    key: int, count: int, device: torch.device | str = "cpu", offset: int = 0
) -> Iterator[tuple[slice, torch.Tensor]]:
    """``count`` bytes of stream ``key`` from ``offset`` on, in chunks: where they go, and what they are."""
    for begin in range(0, count, CHUNK):
        part = slice(begin, min(begin + CHUNK, count))
        yield part, random_bytes(key, offset + begin, part.stop - begin, device)


def fill_uniform(out: torch.Tensor, key: int, mean: float, deviation: float, offset: int = 0) -> None:
    """Uniform values of ``mean`` and standard ``deviation`` into contiguous ``out``, four bytes of the stream each.

    The stream's first ``offset`` values are skipped.
    """
    flat = out.view(-1)
    for part, data in random_chunks(key, 4 * flat.numel(), out.device, 4 * offset):
        values = (data.view(torch.int32) >> 8).float().mul_(2.0**-24 * deviation * 12.0**0.5).add_(mean)
        flat[part.start // 4 : part.stop // 4] = values.to(out.dtype)
