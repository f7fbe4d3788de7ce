"""Implementations of the ops by name; the only room that imports ``dsv4_kernels``."""
