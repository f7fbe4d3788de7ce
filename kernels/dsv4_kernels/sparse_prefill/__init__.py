"""Sparse attention over pool rows and the rows of this forward."""

from dsv4_kernels.sparse_prefill.reference import sparse_prefill_fp8_reference, sparse_prefill_reference

__all__ = ["sparse_prefill_fp8_reference", "sparse_prefill_reference"]
