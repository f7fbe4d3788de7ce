"""Hyper-connections: collapse the residual streams, spread a sublayer output over them."""

from dsv4_kernels.mhc_pre_post.reference import (
    mhc_head_reference,
    mhc_post_pre_reference,
    mhc_post_reference,
    mhc_pre_reference,
    sinkhorn_reference,
)

__all__ = [
    "mhc_head_reference",
    "mhc_post_pre_reference",
    "mhc_post_reference",
    "mhc_pre_reference",
    "sinkhorn_reference",
]
