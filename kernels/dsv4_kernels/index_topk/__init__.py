"""Stable top-k of indexer scores."""

from dsv4_kernels.index_topk.reference import index_topk_reference

__all__ = ["index_topk_reference"]
