"""Acceptance of drafted tokens: greedy, and chain rejection for sampled rows."""

from dsv4_kernels.verify.reference import verify_reference

__all__ = ["verify_reference"]
