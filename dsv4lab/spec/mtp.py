"""MTP chains: one draft layer run ``drafts`` times, each on its own output (dsv4-spec 7.1; EAGLE with top-k 1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dsv4lab.config.model import ModelConfig
from dsv4lab.kv.draft_padding import pad_draft
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.metadata import BatchItem, Mode, StepMetadata, build_metadata
from dsv4lab.kv.pool import KvPool
from dsv4lab.model.builder import OpListBuilder, Shape, StepInputs
from dsv4lab.model.draft_weights import MtpWeights
from dsv4lab.model.hyper_connection import STREAMS
from dsv4lab.model.mtp import (
    LastRows,
    chosen_view,
    hidden_view,
    list_mtp_chain,
    list_mtp_extend,
    list_mtp_forward,
    tokens_view,
)
from dsv4lab.model.programs import Lister, Placement, Programs
from dsv4lab.model.transformer import logits_view
from dsv4lab.overlap.arena import Arena
from dsv4lab.parallel.groups import ALONE, Parallel
from dsv4lab.spec.draft import Anchor, Choose, Committed, Proposal
from dsv4lab.spec.forwards import DraftRuns, Forwards


class MtpDrafter:
    """``config`` is the draft layers' (:func:`draft_layers_config`); ``geometry`` the target's.

    After each observation the last row's logits and streams are kept per slot, on the device: they give the first
    draft, and the input of the second. Observations of a step's new tokens, greedy chains, and the single forwards
    of other choices are graphs by batch bucket where ``runs`` has buckets.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: MtpWeights,
        geometry: Geometry,
        drafts: int,
        capacity: int,
        runs: DraftRuns,
        place: Placement,
        parallel: Parallel = ALONE,
    ) -> None:
        self._drafts = drafts
        self._geometry = draft_geometry(geometry, config)
        self.pool = KvPool(self._geometry, place.dtype, place.device)
        self._arena = arena = Arena(capacity, place.device)
        self._runs = runs
        self.last = last = LastRows.empty(config, geometry.slots, place.dtype, place.device)
        steps = [StepInputs(place.device) for _ in range(drafts - 1)]

        def programs(lister: Lister) -> Programs:
            return Programs(config, place.ops, arena, self.pool, lister, parallel, late_sides=runs.on_device)

        self._programs = programs(lambda b: list_mtp_forward(b, weights))
        extend = programs(lambda b: list_mtp_extend(b, weights, last))
        chain = programs(lambda b: list_mtp_chain(b, weights, last, steps, drafts))
        self._step = Forwards("step", self._programs, runs)
        self._extend = Forwards("extend", extend, runs)
        self._chain = Forwards(
            "chain", chain, runs, steps=steps or None, tokens_at=lambda shape: tokens_view(arena, shape.tokens)
        )

    @property
    def drafts(self) -> int:
        """Draft layer runs a step."""
        return self._drafts

    def observe(self, committed: Sequence[Committed]) -> None:
        """Draft-extend over the committed tokens, with the target's streams."""
        items = [BatchItem(c.slot, c.pages, c.start, c.following) for c in committed]
        width = self._drafts + 1
        short = all(len(c.following) <= width for c in committed)
        size = self._runs.bucket(len(items)) if short else None
        with torch.inference_mode():
            meta = self._meta(items, "prefill" if size is None else "decode", size, width)
            shape = Shape(meta.mode, meta.T, meta.n_items)
            hidden = hidden_view(self._programs.builder(shape))
            torch.cat([c.hidden for c in committed], out=hidden[: sum(len(c.following) for c in committed)])
            self._extend.launch(shape, [meta], size, prefill=not short)

    def propose(self, anchors: Sequence[Anchor], choose: Choose | None) -> Proposal:
        """The first draft follows from the last observation, each further one from a draft-decode step."""
        with torch.inference_mode():
            return self._greedy(anchors) if choose is None else self._chosen(anchors, choose)

    def _greedy(self, anchors: Sequence[Anchor]) -> Proposal:
        """One program: every forward's likeliest token is the next one's input."""
        size = self._runs.bucket(len(anchors))
        metas = [self._meta(_items(anchors, place), "decode", size) for place in range(max(1, self._drafts - 1))]
        tokens = metas[0].T
        self._chain.launch(Shape("decode", tokens, tokens), metas, size)
        rows = chosen_view(self._arena, tokens, self._drafts)[: len(anchors)].tolist()
        return Proposal(tuple(map(tuple, rows)))

    def _chosen(self, anchors: Sequence[Anchor], choose: Choose) -> Proposal:
        """Forward by forward: the host chooses between them."""
        slots = torch.tensor([a.slot for a in anchors], device=self._arena.device)
        logits, streams = self.last.logits[slots].cpu().numpy(), self.last.streams[slots]
        tokens: list[list[int]] = [[] for _ in anchors]
        kept = []
        for place in range(self._drafts):
            if place:
                items = _items(anchors, place - 1, [drafted[-1] for drafted in tokens])
                logits, streams = self._forward(items, streams)
            kept.append(logits)
            for i, drafted in enumerate(tokens):
                drafted.append(choose(i, place, logits[i]))
        return Proposal(tuple(map(tuple, tokens)), np.stack(kept, axis=1))

    def _forward(self, items: Sequence[BatchItem], hidden: torch.Tensor) -> tuple[np.ndarray, torch.Tensor]:
        """Logits ``[items, vocab]`` and output streams ``[items, hc, D]`` of one token each."""
        n, size = len(items), self._runs.bucket(len(items))
        meta = self._meta(items, "decode", size)
        shape = Shape("decode", meta.T, meta.T)
        builder = self._programs.builder(shape)
        hidden_view(builder)[:n].copy_(hidden)
        self._step.launch(shape, [meta], size)
        return logits_view(builder)[:n].to("cpu", copy=True).numpy(), _streams(builder)[:n].clone()

    def _meta(self, items: Sequence[BatchItem], mode: Mode, size: int | None, width: int = 1) -> StepMetadata:
        meta = build_metadata(self._geometry, 1, items, mode)
        return meta if size is None else pad_draft(meta, self._geometry, size, width)


def _items(anchors: Sequence[Anchor], place: int, tokens: Sequence[int] | None = None) -> list[BatchItem]:
    """The ``place``-th draft forward of each anchor; ``tokens`` are what it reads, if the host knows."""
    known = [0] * len(anchors) if tokens is None else tokens
    return [BatchItem(a.slot, a.pages, a.position + place, (t,)) for a, t in zip(anchors, known, strict=True)]


def _streams(b: OpListBuilder) -> torch.Tensor:
    return b.buffer(STREAMS, b.config.hc_mult, b.config.hidden_size)


def draft_geometry(geometry: Geometry, config: ModelConfig) -> Geometry:
    """The drafter's pool: the target's slots and rings, one sliding-window layer per stage, no compressed rows."""
    return Geometry(
        window=geometry.window,
        ring_rows=geometry.ring_rows,
        slots=geometry.slots,
        pages=geometry.pages,
        head_dim=geometry.head_dim,
        index_head_dim=geometry.index_head_dim,
        compress_ratios=config.compress_ratios,
        page_size=geometry.page_size,
    )
