"""Clamped SwiGLU."""

from dsv4_kernels.swiglu.reference import swiglu_reference

__all__ = ["swiglu_reference"]
