"""Sparse attention over pool rows."""

from dsv4_kernels.sparse_decode.reference import sparse_decode_fp8_reference, sparse_decode_reference

__all__ = ["sparse_decode_fp8_reference", "sparse_decode_reference"]
