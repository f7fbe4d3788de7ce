"""Rotation: its table of angles, the inverse on the attention output, and that output's quantisation."""

from dsv4_kernels.inverse_rope.reference import (
    inverse_rope_quant_reference,
    inverse_rope_reference,
    rope_table_reference,
    rotate_reference,
)

__all__ = ["inverse_rope_quant_reference", "inverse_rope_reference", "rope_table_reference", "rotate_reference"]
