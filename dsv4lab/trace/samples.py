"""Recorded traces that come with the lab, small enough to read in a blink."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import dsv4lab
from dsv4lab.errors import UsageError

SAMPLES = {
    "mi300x": "rocm_mi300x_sglang_decode_hipgraph.pt.trace.json.gz",
    "cuda": "cuda_5streams_128ranks_rank0.pt.trace.json.gz",
    "cuda-rank1": "cuda_5streams_128ranks_rank1.pt.trace.json.gz",
}
_CHECKOUT = Path(dsv4lab.__file__).resolve().parents[1] / "traces"
_BUNDLED = Path(sysconfig.get_path("data")) / "share" / "dsv4lab" / "traces"  # where a wheel puts them


def sample_trace(name: str = "mi300x") -> Path:
    """Path of a public capture, listed with its source and licence in ``traces/MANIFEST.json``.

    ``mi300x``: a decode step of Qwen3-8B in sglang on an MI300X, replayed as a HIP graph. ``cuda`` and
    ``cuda-rank1``: two ranks of a training job on five CUDA streams.

    Raises:
        UsageError: an unknown name, or an installation that left the traces out; the text says which and where.

    """
    if name not in SAMPLES:
        raise UsageError(f"sample trace {name!r} is unknown, it takes one of: {', '.join(SAMPLES)}")
    for folder in (_CHECKOUT, _BUNDLED):
        if (folder / SAMPLES[name]).is_file():
            return folder / SAMPLES[name]
    raise UsageError(f"{SAMPLES[name]} is neither in {_CHECKOUT} nor in {_BUNDLED}: give the path of a trace")
