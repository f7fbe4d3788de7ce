"""The serial draft layer as an op list (dsv4-spec 7.1)."""

from __future__ import annotations

import torch

from dsv4lab.model.block import list_block
from dsv4lab.model.builder import OpListBuilder
from dsv4lab.model.collectives import list_lookup
from dsv4lab.model.draft_weights import MtpWeights
from dsv4lab.model.hyper_connection import STREAMS
from dsv4lab.model.rope import list_rope_ops
from dsv4lab.model.transformer import list_head
from dsv4lab.overlap.ops import Op

HIDDEN = "mtp.hidden"


def hidden_view(b: OpListBuilder) -> torch.Tensor:
    """Input ``[T, hc, D]``: the streams that belong to the position before each token, before any head collapse."""
    return b.buffer(HIDDEN, b.config.hc_mult, b.config.hidden_size)


def list_mtp_forward(b: OpListBuilder, w: MtpWeights) -> list[Op]:
    """Ops of one draft forward. Its output streams stay in buffer ``x``, the output rows' logits in ``logits``."""
    _list_input(b, w)
    list_rope_ops(b)
    for i, layer in enumerate(w.layers):
        list_block(b, i, layer)
    b.flush()
    list_head(b, w.hc_head, w.norm, w.head)
    return b.list


def _list_input(b: OpListBuilder, w: MtpWeights) -> None:
    """``x = e_proj(enorm(embedding))`` for every stream, plus ``h_proj(hnorm(hidden))`` stream by stream."""
    c = b.config
    x, hidden = b.buffer(STREAMS, c.hc_mult, c.hidden_size), hidden_view(b)
    embedded = b.buffer("mtp.embedded", c.hidden_size)
    projected = b.buffer("mtp.projected", c.hidden_size)
    normed = b.buffer("mtp.normed", c.hc_mult, c.hidden_size)

    rows = None if b.parallel.tp is None else list_lookup(b, w.embed, "embed.rows")

    def embed(_: object) -> None:
        found = w.embed[b.inputs.meta.token_ids] if rows is None else rows
        b.ops.rms_norm(found, w.e_norm, c.rms_norm_eps, embedded)
        b.ops.linear(embedded, w.e_proj, projected)

    def mix(_: object) -> None:
        b.ops.rms_norm(hidden, w.h_norm, c.rms_norm_eps, normed)
        b.ops.linear(normed.flatten(0, 1), w.h_proj, x.flatten(0, 1))
        x.add_(projected.unsqueeze(1))

    b.add("mtp.embed", embed, () if rows is None else ("embed.rows",), ("mtp.embedded", "mtp.projected"))
    b.add("mtp.mix", mix, (HIDDEN, "mtp.projected"), ("mtp.normed", STREAMS))
