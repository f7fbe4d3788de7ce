"""Weights that ops take: tensors, or matrices as a checkpoint stores them."""

from __future__ import annotations

from dsv4_kernels.weights import Fp4Weight, Fp8Weight, Weight, concatenated, kept, moved, stacked

__all__ = ["Fp4Weight", "Fp8Weight", "Weight", "concatenated", "kept", "moved", "stacked"]
