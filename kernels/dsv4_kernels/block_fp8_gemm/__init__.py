"""Matrix product of fp8 operands with block scales."""

from dsv4_kernels.block_fp8_gemm.reference import (
    block_fp8_gemm_quant_reference,
    block_fp8_gemm_reference,
    block_fp8_gemm_swiglu_reference,
)

__all__ = ["block_fp8_gemm_quant_reference", "block_fp8_gemm_reference", "block_fp8_gemm_swiglu_reference"]
