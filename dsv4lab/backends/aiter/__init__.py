"""AMD's aiter kernels as an implementation of the ops. Never run on AMD hardware by us: tested against a fake module.

On ROCm, ``dsv4lab selfcheck`` runs every op bound here against its reference.
"""
