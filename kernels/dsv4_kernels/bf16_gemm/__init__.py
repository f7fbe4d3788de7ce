"""Matrix product of bf16 operands, for few tokens."""

from dsv4_kernels.bf16_gemm.reference import bf16_gemm_reference

__all__ = ["bf16_gemm_reference"]
