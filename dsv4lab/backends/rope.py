"""Rope frequencies, for the rooms above that may not import ``dsv4_kernels`` themselves."""

from dsv4_kernels.rope import rope_frequencies

__all__ = ["rope_frequencies"]
