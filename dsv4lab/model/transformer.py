"""The whole forward as an op list (dsv4-spec 2.1, 2.13, 2.15)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dsv4lab.model.block import list_block
from dsv4lab.model.builder import OpListBuilder
from dsv4lab.model.hyper_connection import STREAMS
from dsv4lab.model.rope import list_rope_ops
from dsv4lab.model.tap import list_tap
from dsv4lab.model.weights import HyperConnectionWeights, ModelWeights
from dsv4lab.overlap.ops import Op

LOGITS = "logits"


def list_forward(b: OpListBuilder, w: ModelWeights, taps: Sequence[int] = ()) -> list[Op]:
    """Ops of one forward: embedding, layers, head. Logits of ``shape.outputs`` rows land in buffer ``logits``.

    ``taps`` are layers whose output a drafter reads (:mod:`dsv4lab.model.dspark`).
    """
    c = b.config
    x = b.buffer(STREAMS, c.hc_mult, c.hidden_size)
    b.add("embed", lambda _: _embed(x, w.embed, b.inputs.meta.token_ids), (), (STREAMS,))
    list_rope_ops(b)
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


def _embed(x: torch.Tensor, table: torch.Tensor, token_ids: torch.Tensor) -> None:
    x.copy_(table[token_ids].unsqueeze(1).expand_as(x))


def list_head(b: OpListBuilder, hc: HyperConnectionWeights, norm: torch.Tensor, head: torch.Tensor) -> None:
    """Collapse, norm and project the output rows' streams into buffer ``logits`` (dsv4-spec 2.2, 2.13)."""
    c, n = b.config, b.shape.outputs
    x = b.buffer(STREAMS, c.hc_mult, c.hidden_size)
    last = b.buffer("head.streams", c.hc_mult, c.hidden_size, rows=n)
    mixed = b.buffer("head.mixed", c.hidden_size, rows=n)
    normed = b.buffer("head.in", c.hidden_size, rows=n)
    raw = b.buffer("head.out", c.vocab_size, rows=n)
    logits = logits_view(b)

    def gather(_: object) -> None:
        last.copy_(x[b.inputs.output_rows])

    def collapse(_: object) -> None:
        b.ops.mhc_head(last, hc.fn, hc.base, hc.scale, rms_eps=c.rms_norm_eps, hc_eps=c.hc_eps, out=mixed)

    def project(_: object) -> None:
        b.ops.linear(normed, head, raw)
        logits.copy_(raw)

    b.add("head.rows", gather, (STREAMS,), ("head.streams",))
    b.add("mhc_head", collapse, ("head.streams",), ("head.mixed",))
    b.add("head.norm", lambda _: b.ops.rms_norm(mixed, norm, c.rms_norm_eps, normed), ("head.mixed",), ("head.in",))
    b.add("lm_head", project, ("head.in",), ("head.out", LOGITS))
