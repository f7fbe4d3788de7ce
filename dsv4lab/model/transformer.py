"""The whole forward as an op list (dsv4-spec 2.1, 2.13, 2.15)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dsv4lab.model.block import list_block
from dsv4lab.model.builder import OpListBuilder
from dsv4lab.model.collectives import list_all_gather, list_lookup
from dsv4lab.model.hyper_connection import STREAMS
from dsv4lab.model.moe import list_gathered_ids, list_moe
from dsv4lab.model.rope import list_rope_ops
from dsv4lab.model.tap import list_tap
from dsv4lab.model.weights import HyperConnectionWeights, ModelWeights
from dsv4lab.overlap.ops import Op
from dsv4lab.parallel.groups import Group

LOGITS = "logits"


def list_forward(b: OpListBuilder, w: ModelWeights, taps: Sequence[int] = ()) -> list[Op]:
    """Ops of one forward: embedding, layers, head. Logits of ``shape.outputs`` rows land in buffer ``logits``.

    ``taps`` are layers whose output a drafter reads (:mod:`dsv4lab.model.dspark`).
    """
    list_embedding(b, w.embed)
    list_rope_ops(b)
    list_gathered_ids(b)
    for i, layer in enumerate(w.layers):
        list_block(b, i, layer)
        if i in taps:
            list_tap(b, tuple(taps).index(i), len(taps))
    b.flush()
    list_head(b, w.hc_head, w.norm, w.head)
    return b.list


def logits_view(b: OpListBuilder) -> torch.Tensor:
    """float32 ``[outputs, vocab]``."""
    return b.buffer(LOGITS, b.config.vocab_size, dtype=torch.float32, rows=b.shape.outputs)


def list_embedding(b: OpListBuilder, table: torch.Tensor) -> None:
    """The tokens' embeddings into every stream."""
    c = b.config
    x = b.buffer(STREAMS, c.hc_mult, c.hidden_size)
    rows = None if b.parallel.tp is None else list_lookup(b, table, "embed.rows")

    def spread(_: object) -> None:
        found = table[b.inputs.meta.token_ids] if rows is None else rows
        x.copy_(found.unsqueeze(1).expand_as(x))

    if rows is None:
        b.add("embed", spread, (), (STREAMS,))
    else:
        b.add("embed.spread", spread, ("embed.rows",), (STREAMS,))


def list_idle_forward(b: OpListBuilder, w: ModelWeights) -> list[Op]:
    """Ops of a rank that has no tokens while its peers have: it takes part in their experts."""
    list_gathered_ids(b)
    for i, layer in enumerate(w.layers):
        with b.layer(i):
            list_moe(b, layer.moe)
    return b.list


def list_head(b: OpListBuilder, hc: HyperConnectionWeights, norm: torch.Tensor, head: torch.Tensor) -> None:
    """Collapse, norm and project the output rows' streams into buffer ``logits`` (dsv4-spec 2.2, 2.13)."""
    c, n = b.config, b.shape.outputs
    x = b.buffer(STREAMS, c.hc_mult, c.hidden_size)
    last = b.buffer("head.streams", c.hc_mult, c.hidden_size, rows=n)
    mixed = b.buffer("head.mixed", c.hidden_size, rows=n)
    normed = b.buffer("head.in", c.hidden_size, rows=n)
    tp = b.parallel.tp
    raw = b.buffer("head.out", head.shape[0], rows=n)
    logits = logits_view(b)

    def gather(_: object) -> None:
        last.copy_(x[b.inputs.output_rows])

    def collapse(_: object) -> None:
        b.ops.mhc_head(last, hc.fn, hc.base, hc.scale, rms_eps=c.rms_norm_eps, hc_eps=c.hc_eps, out=mixed)

    def project(_: object) -> None:
        b.ops.linear(normed, head, raw)
        if tp is None:
            logits.copy_(raw)

    b.add("head.rows", gather, (STREAMS,), ("head.streams",))
    b.add("mhc_head", collapse, ("head.streams",), ("head.mixed",))
    b.add("head.norm", lambda _: b.ops.rms_norm(mixed, norm, c.rms_norm_eps, normed), ("head.mixed",), ("head.in",))
    b.add("lm_head", project, ("head.in",), ("head.out", LOGITS) if tp is None else ("head.out",))
    if tp is not None:
        _list_join(b, tp, raw)


def _list_join(b: OpListBuilder, tp: Group, raw: torch.Tensor) -> None:
    """Everybody's part of the vocabulary, ``head.out [n, V / tp]``, side by side in ``logits``."""
    n, width = raw.shape
    parts = b.buffer("head.gathered", b.config.vocab_size, rows=n).view(tp.size, n, width)
    whole = logits_view(b).view(n, tp.size, width).transpose(0, 1)

    def join(_: object) -> None:
        whole.copy_(parts)

    list_all_gather(b, "lm_head.all_gather", tp, raw, parts, ("head.out",), ("head.gathered",))
    b.add("lm_head.join", join, ("head.gathered",), (LOGITS,))
