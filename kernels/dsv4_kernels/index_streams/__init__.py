"""Index streams: all lists of a forward, and those that depend on a top-k."""

from dsv4_kernels.index_streams.reference import csa_stream_reference, index_streams_reference

__all__ = ["csa_stream_reference", "index_streams_reference"]
