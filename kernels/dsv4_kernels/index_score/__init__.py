"""Indexer scores."""

from dsv4_kernels.index_score.reference import (
    index_score_paged_reference,
    index_score_pages_reference,
    index_score_reference,
)

__all__ = ["index_score_paged_reference", "index_score_pages_reference", "index_score_reference"]
