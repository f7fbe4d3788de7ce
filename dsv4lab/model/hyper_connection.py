"""mHC: four residual streams, mixed to one before each sublayer and back after it (dsv4-spec 2.2)."""

from __future__ import annotations

from typing import Any

import torch

from dsv4lab.backends.base import QuantRows
from dsv4lab.model.activations import Activations
from dsv4lab.model.builder import OpListBuilder
from dsv4lab.model.weights import HyperConnectionWeights
from dsv4lab.overlap.ops import OpFunction

STREAMS = "x"


def list_pre(b: OpListBuilder, w: HyperConnectionWeights, norm: torch.Tensor, out: str, to: Activations) -> None:
    """Collapse the streams and norm that into buffer ``out [T, D]``, a sublayer's input, and into its twin ``to`` if it
    has one. Fused with a pending post.
    """
    c = b.config
    x = b.buffer(STREAMS, c.hc_mult, c.hidden_size)
    mixed = b.buffer("mhc.mixed", c.hidden_size)
    post = b.buffer("mhc.post", c.hc_mult, dtype=torch.float32)
    comb = b.buffer("mhc.comb", c.hc_mult, c.hc_mult, dtype=torch.float32)
    weights = (w.fn, w.base, w.scale)
    rest: dict[str, Any] = {
        "rms_eps": c.rms_norm_eps, "hc_eps": c.hc_eps, "iters": c.hc_sinkhorn_iters,
        "out": mixed, "norm": norm, "normed": b.buffer(out, c.hidden_size),
    }  # fmt: skip
    writes: tuple[str, ...] = ("mhc.mixed", "mhc.post", "mhc.comb", out)
    if isinstance(to.rows, QuantRows):
        rest |= {"codes": to.rows.codes, "scales": to.rows.scales}
        writes += to.names

    def run_pre(_: object) -> None:
        b.ops.mhc_pre(x, *weights, **rest, post=post, comb=comb)

    def run_both(y: torch.Tensor) -> OpFunction:
        return lambda _: b.ops.mhc_post_pre(y, post, comb, x, *weights, **rest, new_post=post, new_comb=comb)

    pre = b.op("mhc_pre", run_pre, (STREAMS,), writes)
    b.add_fused("mhc_post_pre", pre, run_both)


def list_post(b: OpListBuilder, source: str) -> None:
    """Spread the sublayer output in buffer ``source [T, D]`` over the streams; waits to be fused with the next pre."""
    c = b.config
    x = b.buffer(STREAMS, c.hc_mult, c.hidden_size)
    post = b.buffer("mhc.post", c.hc_mult, dtype=torch.float32)
    comb = b.buffer("mhc.comb", c.hc_mult, c.hc_mult, dtype=torch.float32)
    y = b.buffer(source, c.hidden_size)
    reads = (source, "mhc.post", "mhc.comb", STREAMS)
    b.defer(b.op("mhc_post", lambda _: b.ops.mhc_post(y, post, comb, x), reads, (STREAMS,)), y)
