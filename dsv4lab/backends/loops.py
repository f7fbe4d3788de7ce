"""The compiled loops of the CPU backend: where Numba keeps their machine code, and what that depends on."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numba
from dsv4_kernels import native

from dsv4lab.backends.torch_ops import TORCH_OPS

OPS = TORCH_OPS
"""What runs the loops; with it each of them has been imported."""


def loop_folders() -> tuple[Path, ...] | None:
    """Where Numba keeps the loops; None if it found no folder that it can write."""
    folders = [loop.stats.cache_path for loop in native.LOOPS]
    return None if None in folders else tuple(Path(folder) for folder in dict.fromkeys(folders))


def loop_key() -> str:
    """A digest of source, compiler and processor."""
    digest = hashlib.sha256(repr((sys.version, numba.__version__)).encode())
    sources = {loop.py_func.__code__.co_filename for loop in native.LOOPS} | {native.__file__}
    for source in sorted(sources):
        digest.update(Path(source).read_bytes())
    digest.update(repr(native.LOOPS[0].targetctx.codegen().magic_tuple()).encode())
    return digest.hexdigest()
