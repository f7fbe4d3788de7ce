"""MTP chains: one draft layer run ``drafts`` times, each on its own output (dsv4-spec 7.1; EAGLE with top-k 1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dsv4lab.config.model import ModelConfig
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.metadata import BatchItem, Mode, build_metadata
from dsv4lab.kv.pool import KvPool
from dsv4lab.model.builder import Shape
from dsv4lab.model.draft_weights import MtpWeights
from dsv4lab.model.hyper_connection import STREAMS
from dsv4lab.model.mtp import hidden_view, list_mtp_forward
from dsv4lab.model.programs import Placement, Programs
from dsv4lab.model.transformer import logits_view
from dsv4lab.overlap.arena import Arena
from dsv4lab.parallel.groups import ALONE, Parallel
from dsv4lab.spec.draft import Anchor, Choose, Committed, Proposal, Replay


class MtpDrafter:
    """``config`` is the draft layers' (:func:`draft_layers_config`); ``geometry`` the target's.

    After each observation the last row's logits and streams are kept per slot: they give the first draft, and the
    input of the second.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: MtpWeights,
        geometry: Geometry,
        drafts: int,
        capacity: int,
        replay: Replay,
        place: Placement,
        parallel: Parallel = ALONE,
    ) -> None:
        self._drafts = drafts
        self._geometry = draft_geometry(geometry, config)
        self.pool = KvPool(self._geometry, place.dtype, place.device)
        self._arena = Arena(capacity, place.device)
        self._replay = replay
        self._programs = Programs(
            config, place.ops, self._arena, self.pool, lambda b: list_mtp_forward(b, weights), parallel
        )
        self._last: dict[int, tuple[np.ndarray, torch.Tensor]] = {}

    @property
    def drafts(self) -> int:
        """Draft layer runs a step."""
        return self._drafts

    def observe(self, committed: Sequence[Committed]) -> None:
        """Draft-extend over the committed tokens, with the target's streams."""
        items = [BatchItem(c.slot, c.pages, c.start, c.following) for c in committed]
        hidden = torch.cat([c.hidden for c in committed])
        logits, streams = self._forward(items, hidden, "prefill")
        for i, c in enumerate(committed):
            self._last[c.slot] = (logits[i], streams[i])

    def propose(self, anchors: Sequence[Anchor], choose: Choose) -> Proposal:
        """The first draft follows from the last observation, each further one from a draft-decode step."""
        logits = np.stack([self._last[a.slot][0] for a in anchors])
        streams = torch.stack([self._last[a.slot][1] for a in anchors])
        tokens: list[list[int]] = [[] for _ in anchors]
        kept = []
        for place in range(self._drafts):
            if place:
                items = [
                    BatchItem(a.slot, a.pages, a.position + place - 1, (drafted[-1],))
                    for a, drafted in zip(anchors, tokens, strict=True)
                ]
                logits, streams = self._forward(items, streams, "decode")
            kept.append(logits)
            for i, drafted in enumerate(tokens):
                drafted.append(choose(i, place, logits[i]))
        return Proposal(tuple(map(tuple, tokens)), np.stack(kept, axis=1))

    def _forward(self, items: Sequence[BatchItem], hidden: torch.Tensor, mode: Mode) -> tuple[np.ndarray, torch.Tensor]:
        """Logits ``[items, vocab]`` and output streams ``[items, hc, D]`` of each item's last token."""
        with torch.inference_mode():
            meta = build_metadata(self._geometry, 1, items, mode)
            shape = Shape(mode, meta.T, len(items))
            builder = self._programs.builder(shape)
            hidden_view(builder).copy_(hidden)
            self._programs.inputs.set(meta, meta.last_rows)
            self._replay(self._programs.compiled(shape), self._arena)
            config = builder.config
            streams = builder.buffer(STREAMS, config.hc_mult, config.hidden_size)[meta.last_rows]
            return logits_view(builder).to("cpu", copy=True).numpy(), streams


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
