"""Routed experts, with weights as they are, in fp8 or in fp4."""

from dsv4_kernels.moe_gemm.reference import moe_gemm_quant_reference, moe_gemm_reference

__all__ = ["moe_gemm_quant_reference", "moe_gemm_reference"]
