"""Routed experts."""

from dsv4_kernels.moe_gemm.reference import moe_gemm_reference

__all__ = ["moe_gemm_reference"]
