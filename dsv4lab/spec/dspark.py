"""The DSpark block drafter: all drafts of a step from one forward, then a Markov chain over them (dsv4-spec 7.3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dsv4lab.config.model import DsparkConfig, ModelConfig
from dsv4lab.kv.block import build_block_metadata
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.metadata import BatchItem, build_metadata
from dsv4lab.kv.pool import KvPool
from dsv4lab.model.builder import Shape
from dsv4lab.model.draft_weights import DsparkWeights
from dsv4lab.model.dspark import list_block_forward, list_injection
from dsv4lab.model.programs import Placement, Programs
from dsv4lab.model.tap import TAPS
from dsv4lab.model.transformer import logits_view
from dsv4lab.overlap.arena import Arena
from dsv4lab.parallel.groups import ALONE, Parallel
from dsv4lab.spec.draft import Anchor, Choose, Committed, Proposal, Replay
from dsv4lab.spec.mtp import draft_geometry


class DsparkDrafter:
    """``config`` is the stages' (:func:`draft_layers_config`), ``dspark`` the model's drafter settings.

    A block is always ``dspark.block_size`` long, whatever part of it ``drafts`` uses: its tokens see one another.
    """

    def __init__(
        self,
        config: ModelConfig,
        dspark: DsparkConfig,
        weights: DsparkWeights,
        geometry: Geometry,
        drafts: int,
        capacity: int,
        replay: Replay,
        place: Placement,
        parallel: Parallel = ALONE,
    ) -> None:
        self._drafts = drafts
        self._dspark = dspark
        self._weights = weights
        self._geometry = draft_geometry(geometry, config)
        self.pool = KvPool(self._geometry, place.dtype, place.device)
        self._arena = Arena(max(capacity, (geometry.slots - 1) * dspark.block_size), place.device)
        self._replay = replay
        taps = len(dspark.target_layer_ids)
        self._injection = Programs(
            config, place.ops, self._arena, self.pool, lambda b: list_injection(b, weights, taps), parallel
        )
        self._block = Programs(
            config, place.ops, self._arena, self.pool, lambda b: list_block_forward(b, weights), parallel
        )

    @property
    def drafts(self) -> int:
        """Tokens of a block that are proposed."""
        return self._drafts

    def observe(self, committed: Sequence[Committed]) -> None:
        """Write every stage's ring rows of the committed tokens."""
        items = [BatchItem(c.slot, c.pages, c.start, c.following) for c in committed]
        hidden = torch.cat([c.hidden for c in committed])
        with torch.inference_mode():
            meta = build_metadata(self._geometry, 1, items, "prefill")
            shape = Shape("prefill", meta.T, len(items))
            builder = self._injection.builder(shape)
            builder.buffer(TAPS, *hidden.shape[1:]).copy_(hidden)
            self._injection.inputs.set(meta, meta.last_rows)
            self._replay(self._injection.compiled(shape), self._arena)

    def propose(self, anchors: Sequence[Anchor], choose: Choose) -> Proposal:
        """One block per anchor, then token after token: base logits plus the Markov bias of the token before."""
        base = self._block_logits(anchors)
        w = self._weights
        tokens: list[list[int]] = [[] for _ in anchors]
        previous = torch.tensor([a.token for a in anchors])
        kept = []
        for place in range(self._drafts):
            logits = (base[:, place] + w.markov_in[previous] @ w.markov_out.t()).cpu().numpy()
            kept.append(logits)
            for i, drafted in enumerate(tokens):
                drafted.append(choose(i, place, logits[i]))
            previous = torch.tensor([drafted[-1] for drafted in tokens])
        return Proposal(tuple(map(tuple, tokens)), np.stack(kept, axis=1))

    def _block_logits(self, anchors: Sequence[Anchor]) -> torch.Tensor:
        """float32 ``[anchors, block_size, vocab]``."""
        size, noise = self._dspark.block_size, self._dspark.noise_token_id
        # A block may reach further than the drafts asked for, past the pages; only rings are read.
        items = [
            BatchItem(a.slot, (*a.pages, a.pages[-1]), a.position, (a.token, *[noise] * (size - 1))) for a in anchors
        ]
        with torch.inference_mode():
            meta = build_block_metadata(self._geometry, items)
            shape = Shape("prefill", meta.T, meta.T)
            self._block.inputs.set(meta, torch.arange(meta.T))
            self._replay(self._block.compiled(shape), self._arena)
            return logits_view(self._block.builder(shape)).view(len(anchors), size, -1).clone()
