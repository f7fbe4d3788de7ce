"""AMD's aiter kernels as an implementation of the ops. Never run on AMD hardware by us: tested against a fake module.

``dsv4lab selfcheck`` does not cover these bindings yet.
"""
