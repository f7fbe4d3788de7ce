"""Philox 4x32-10 in torch integers: noise that is a function of its counter alone, the same bits as the kernels'."""

from __future__ import annotations

import torch

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF


def philox(
    seed: torch.Tensor, c0: torch.Tensor, c1: torch.Tensor, c2: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The four words, int64 of ``[0, 2^32)``, of the block with key ``seed`` (64 bits) and counter ``(c0, c1, c2, 0)``.

    All int64, broadcast against each other.
    """
    zero = (c0 + c1 + c2 + seed) * 0
    c0, c1, c2, c3 = (c0 & _MASK) + zero, (c1 & _MASK) + zero, (c2 & _MASK) + zero, zero
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(10):
        high0, low0 = _product(c0, _M0)
        high1, low1 = _product(c2, _M1)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


def uniform(seed: torch.Tensor, number: torch.Tensor, c1: torch.Tensor, c2: torch.Tensor) -> torch.Tensor:
    """Float32 of (0, 1), never its ends: ``(top 23 bits + 1/2) / 2^23``, exact.

    From word ``number % 4`` of block ``number // 4``.
    """
    words = torch.stack(philox(seed, number // 4, c1, c2))
    word = torch.gather(words, 0, torch.broadcast_to(number % 4, words.shape[1:]).unsqueeze(0)).squeeze(0)
    return ((word >> 9).float() + 0.5) * 2.0**-23


def _product(a: torch.Tensor, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low word of the product of 32-bit words, without leaving int64."""
    low = a * (b & 0xFFFF)
    high = a * (b >> 16)
    total = low + ((high & 0xFFFF) << 16)
    return (high >> 16) + (total >> 32), total & _MASK
