"""Inverse rotation of the attention output."""

from dsv4_kernels.inverse_rope.reference import inverse_rope_reference

__all__ = ["inverse_rope_reference"]
