"""The serial draft layer as op lists: one forward, and a chain of them (dsv4-spec 7.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from dsv4lab.config.model import ModelConfig
from dsv4lab.model.block import list_block
from dsv4lab.model.builder import OpListBuilder, StepInputs
from dsv4lab.model.collectives import list_lookup
from dsv4lab.model.draft_weights import MtpWeights
from dsv4lab.model.hyper_connection import STREAMS
from dsv4lab.model.rope import list_rope_ops
from dsv4lab.model.transformer import LOGITS, list_head, logits_view
from dsv4lab.overlap.arena import Arena
from dsv4lab.overlap.ops import Op

HIDDEN = "mtp.hidden"
TOKENS = "draft.tokens"
CHOSEN = "draft.chosen"


@dataclass(frozen=True, slots=True, eq=False)
class LastRows:
    """By slot, what the draft layer made of the last token that was observed: where chains begin. Slot 0 is nobody's.

    ``streams [slots, hc, D]``, ``logits`` float32 ``[slots, vocab]``.
    """

    streams: torch.Tensor
    logits: torch.Tensor

    @classmethod
    def empty(cls, config: ModelConfig, slots: int, dtype: torch.dtype, device: torch.device) -> LastRows:
        """Zeros."""
        return cls(
            torch.zeros(slots, config.hc_mult, config.hidden_size, dtype=dtype, device=device),
            torch.zeros(slots, config.vocab_size, device=device),
        )

    def resources(self) -> dict[str, tuple[torch.Tensor, ...]]:
        """Memory by the name that ops declare."""
        return {"mtp.last": (self.streams, self.logits)}


def hidden_view(b: OpListBuilder) -> torch.Tensor:
    """Input ``[T, hc, D]``: the streams that belong to the position before each token, before any head collapse."""
    return b.buffer(HIDDEN, b.config.hc_mult, b.config.hidden_size)


def tokens_view(arena: Arena, tokens: int) -> torch.Tensor:
    """int64 ``[tokens]``: what a chain's forwards read as token ids."""
    return arena.view(TOKENS, tokens, (), torch.int64)


def chosen_view(arena: Arena, requests: int, drafts: int) -> torch.Tensor:
    """int64 ``[requests, drafts]``: drafts that were chosen on the device."""
    return arena.view(CHOSEN, requests, (drafts,), torch.int64)


def list_mtp_forward(b: OpListBuilder, w: MtpWeights, ids_at: Sequence[str] = ()) -> list[Op]:
    """Ops of one draft forward. Its output streams stay in buffer ``x``, the output rows' logits in ``logits``.

    ``ids_at`` is the buffer that the token ids lie in, if an op of the same program writes them.
    """
    _list_input(b, w, ids_at)
    list_rope_ops(b)
    for i, layer in enumerate(w.layers):
        list_block(b, i, layer)
    b.flush()
    list_head(b, w.hc_head, w.norm, w.head)
    return b.list


def list_mtp_extend(b: OpListBuilder, w: MtpWeights, last: LastRows) -> list[Op]:
    """Ops of one draft forward over observed tokens; its output rows become the last rows of their slots."""
    list_mtp_forward(b, w)
    x, logits = b.buffer(STREAMS, b.config.hc_mult, b.config.hidden_size), logits_view(b)

    def keep(_: object) -> None:
        rows = b.inputs.output_rows
        slots = b.inputs.meta.slots[rows]
        last.streams.index_copy_(0, slots, x[rows])
        last.logits.index_copy_(0, slots, logits)

    b.add("draft.keep", keep, (STREAMS, LOGITS), ("mtp.last",))
    return b.list


def list_mtp_chain(
    b: OpListBuilder, w: MtpWeights, last: LastRows, steps: Sequence[StepInputs], drafts: int
) -> list[Op]:
    """Ops of a greedy chain: the likeliest token after the last row, and after each of ``drafts - 1`` forwards.

    ``steps`` are the forwards' inputs; their token ids are :func:`tokens_view`. The drafts land in
    :func:`chosen_view`. A chain of one draft has no forward; its inputs are the builder's own.
    """
    tokens, chosen = tokens_view(b.arena, b.shape.tokens), chosen_view(b.arena, b.shape.tokens, drafts)
    x, logits, hidden = b.buffer(STREAMS, b.config.hc_mult, b.config.hidden_size), logits_view(b), hidden_view(b)
    begin = steps[0] if steps else b.inputs

    def resume(_: object) -> None:
        slots = begin.meta.slots
        torch.index_select(last.streams, 0, slots, out=hidden)
        torch.index_select(last.logits, 0, slots, out=logits)

    def carry(_: object) -> None:
        hidden.copy_(x)

    def pick(_: object, place: int) -> None:
        torch.argmax(logits, 1, out=tokens)
        chosen[:, place].copy_(tokens)

    b.add("draft.resume", resume, ("mtp.last",), (HIDDEN, LOGITS))
    b.add("draft.pick", partial(pick, place=0), (LOGITS,), (TOKENS, CHOSEN))
    for place, inputs in enumerate(steps, 1):
        if place > 1:
            b.add("draft.carry", carry, (STREAMS,), (HIDDEN,))
        for op in list_mtp_forward(b.reading(inputs), w, (TOKENS,)):
            b.append(op)
        b.add("draft.pick", partial(pick, place=place), (LOGITS,), (TOKENS, CHOSEN))
    return b.list


def _list_input(b: OpListBuilder, w: MtpWeights, ids_at: Sequence[str]) -> None:
    """``x = e_proj(enorm(embedding))`` for every stream, plus ``h_proj(hnorm(hidden))`` stream by stream."""
    c = b.config
    x, hidden = b.buffer(STREAMS, c.hc_mult, c.hidden_size), hidden_view(b)
    embedded = b.buffer("mtp.embedded", c.hidden_size)
    projected = b.buffer("mtp.projected", c.hidden_size)
    normed = b.buffer("mtp.normed", c.hc_mult, c.hidden_size)

    rows = None if b.parallel.tp is None else list_lookup(b, w.embed, "embed.rows", ids_at)

    def embed(_: object) -> None:
        found = w.embed[b.inputs.meta.token_ids] if rows is None else rows
        b.ops.rms_norm(found, w.e_norm, c.rms_norm_eps, embedded)
        b.ops.linear(embedded, w.e_proj, projected)

    def mix(_: object) -> None:
        b.ops.rms_norm(hidden, w.h_norm, c.rms_norm_eps, normed)
        b.ops.linear(normed.flatten(0, 1), w.h_proj, x.flatten(0, 1))
        x.add_(projected.unsqueeze(1))

    reads = ids_at if rows is None else ("embed.rows",)
    b.add("mtp.embed", embed, reads, ("mtp.embedded", "mtp.projected"))
    b.add("mtp.mix", mix, (HIDDEN, "mtp.projected"), ("mtp.normed", STREAMS))
