"""Q and KV norm + rope, and the KV store of decode."""

from dsv4_kernels.qk_norm_rope_store.reference import (
    kv_norm_rope_reference,
    kv_norm_rope_store_reference,
    q_norm_rope_reference,
    qk_norm_rope_reference,
    qk_norm_rope_store_pools_reference,
)

__all__ = [
    "kv_norm_rope_reference",
    "kv_norm_rope_store_reference",
    "q_norm_rope_reference",
    "qk_norm_rope_reference",
    "qk_norm_rope_store_pools_reference",
]
