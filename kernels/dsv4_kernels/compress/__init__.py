"""KV compression, ratio 4 and 128."""

from dsv4_kernels.compress.reference import (
    compress_index_pages_reference,
    compress_pools_reference,
    compress_reference,
)

__all__ = ["compress_index_pages_reference", "compress_pools_reference", "compress_reference"]
