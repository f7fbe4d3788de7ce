"""Implementations of the ops by name: the torch references on a CPU, other kernels where they are installed."""
