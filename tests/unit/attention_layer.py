"""The ops of an attention layer with a compressor beside it, and what they cost: enough for the queue model."""

from __future__ import annotations

from dsv4lab.timeline.program import MAIN, ProgramOp, StreamProgram

OPS = [
    ("norm", (), ("x",)),
    ("compressor.gemm", ("x",), ("c",)),
    ("compressor.store", ("c",), ("rows",)),
    ("qkv_a", ("x",), ("qkv_a",)),
    ("q_b", ("qkv_a",), ("q",)),
    ("qk_norm_rope_store", ("q", "qkv_a"), ("q", "ring")),
    ("attention", ("q", "ring", "rows"), ("o",)),
]
US = (10.0, 400.0, 100.0, 300.0, 200.0, 50.0, 100.0)
"""Microseconds of each op."""


def serial(tokens: int = 1) -> StreamProgram:
    """All of them on ``main``."""
    ops = tuple(ProgramOp(i, n, 0, MAIN, (), (), r, w) for i, (n, r, w) in enumerate(OPS))
    return StreamProgram(ops, (MAIN,), "off", "decode", tokens)
