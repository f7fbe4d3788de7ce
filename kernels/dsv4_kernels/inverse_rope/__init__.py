"""Inverse rotation of the attention output, and its quantisation."""

from dsv4_kernels.inverse_rope.reference import inverse_rope_quant_reference, inverse_rope_reference, rotate_reference

__all__ = ["inverse_rope_quant_reference", "inverse_rope_reference", "rotate_reference"]
