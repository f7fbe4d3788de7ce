"""Store of KV rows into the rings."""

from dsv4_kernels.ring_store.reference import ring_store_pools_reference, ring_store_reference

__all__ = ["ring_store_pools_reference", "ring_store_reference"]
