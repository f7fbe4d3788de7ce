"""mHC: four residual streams, mixed to one before each sublayer and back after it (dsv4-spec 2.2)."""

from __future__ import annotations

import torch

from dsv4lab.model.builder import OpListBuilder
from dsv4lab.model.weights import HyperConnectionWeights
from dsv4lab.overlap.ops import OpFunction

STREAMS = "x"


def list_pre(b: OpListBuilder, w: HyperConnectionWeights, norm: torch.Tensor, out: str) -> None:
    """Collapse the streams into buffer ``out [T, D]``, normed: the sublayer's input. Fused with a pending post."""
    c = b.config
    x = b.buffer(STREAMS, c.hc_mult, c.hidden_size)
    mixed = b.buffer("mhc.mixed", c.hidden_size)
    post = b.buffer("mhc.post", c.hc_mult, dtype=torch.float32)
    comb = b.buffer("mhc.comb", c.hc_mult, c.hc_mult, dtype=torch.float32)
    target = b.buffer(out, c.hidden_size)
    weights = (w.fn, w.base, w.scale)
    eps, hc_eps, iters = c.rms_norm_eps, c.hc_eps, c.hc_sinkhorn_iters

    def run_pre(_: object) -> None:
        b.ops.mhc_pre(x, *weights, rms_eps=eps, hc_eps=hc_eps, iters=iters, out=mixed, post=post, comb=comb)

    def run_both(y: torch.Tensor) -> OpFunction:
        return lambda _: b.ops.mhc_post_pre(
            y, post, comb, x, *weights, rms_eps=eps, hc_eps=hc_eps, iters=iters, out=mixed, new_post=post, new_comb=comb
        )

    pre = b.op("mhc_pre", run_pre, (STREAMS,), ("mhc.mixed", "mhc.post", "mhc.comb"))
    b.add_fused("mhc_post_pre", pre, run_both)
    b.add(
        f"{out.removesuffix('.in')}_norm",
        lambda _: b.ops.rms_norm(mixed, norm, c.rms_norm_eps, target),
        ("mhc.mixed",),
        (out,),
    )


def list_post(b: OpListBuilder, source: str) -> None:
    """Spread the sublayer output in buffer ``source [T, D]`` over the streams; waits to be fused with the next pre."""
    c = b.config
    x = b.buffer(STREAMS, c.hc_mult, c.hidden_size)
    post = b.buffer("mhc.post", c.hc_mult, dtype=torch.float32)
    comb = b.buffer("mhc.comb", c.hc_mult, c.hc_mult, dtype=torch.float32)
    y = b.buffer(source, c.hidden_size)
    reads = (source, "mhc.post", "mhc.comb", STREAMS)
    b.defer(b.op("mhc_post", lambda _: b.ops.mhc_post(y, post, comb, x), reads, (STREAMS,)), y)
