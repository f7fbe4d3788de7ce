"""Clamped SwiGLU, with and without fp8 group quantisation."""

from dsv4_kernels.swiglu.reference import swiglu_quant_reference, swiglu_reference, swiglu_rows_reference

__all__ = ["swiglu_quant_reference", "swiglu_reference", "swiglu_rows_reference"]
