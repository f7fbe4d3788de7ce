"""The DSpark block drafter: all drafts of a step from one forward, then a Markov chain over them (dsv4-spec 7.3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dsv4lab.config.model import DsparkConfig, ModelConfig
from dsv4lab.kv.block import build_block_metadata
from dsv4lab.kv.draft_padding import pad_block, pad_draft
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.metadata import BatchItem, build_metadata
from dsv4lab.kv.pool import KvPool
from dsv4lab.model.builder import Shape
from dsv4lab.model.draft_weights import DsparkWeights
from dsv4lab.model.dspark import list_block_drafts, list_block_forward, list_injection, markov_logits
from dsv4lab.model.mtp import chosen_view
from dsv4lab.model.programs import Lister, Placement, Programs
from dsv4lab.model.tap import TAPS
from dsv4lab.model.transformer import logits_view
from dsv4lab.overlap.arena import Arena
from dsv4lab.parallel.groups import ALONE, Parallel
from dsv4lab.spec.draft import Anchor, Choose, Committed, Proposal
from dsv4lab.spec.forwards import DraftRuns, Forwards
from dsv4lab.spec.mtp import draft_geometry


class DsparkDrafter:
    """``config`` is the stages' (:func:`draft_layers_config`), ``dspark`` the model's drafter settings.

    A block is always ``dspark.block_size`` long, whatever part of it ``drafts`` uses: its tokens see one another.
    Injections of a step's new tokens, and blocks (with their chain where it is greedy), are graphs by batch bucket
    where ``runs`` has buckets.
    """

    def __init__(
        self,
        config: ModelConfig,
        dspark: DsparkConfig,
        weights: DsparkWeights,
        geometry: Geometry,
        drafts: int,
        capacity: int,
        runs: DraftRuns,
        place: Placement,
        parallel: Parallel = ALONE,
    ) -> None:
        self._drafts = drafts
        self._dspark = dspark
        self._weights = weights
        self._geometry = draft_geometry(geometry, config)
        self.pool = KvPool(self._geometry, place.dtype, place.device)
        size = dspark.block_size
        self._arena = Arena(max(capacity, (geometry.slots - 1) * size), place.device)
        self._runs = runs
        taps = len(dspark.target_layer_ids)

        def programs(lister: Lister) -> Programs:
            return Programs(config, place.ops, self._arena, self.pool, lister, parallel, late_sides=runs.on_device)

        self._injection = programs(lambda b: list_injection(b, weights, taps))
        self._block = programs(lambda b: list_block_forward(b, weights))
        chain = programs(lambda b: list_block_drafts(b, weights, size, drafts))
        self._inject = Forwards("inject", self._injection, runs)
        self._base = Forwards("block", self._block, runs, all_rows=True)
        self._chain = Forwards("chain", chain, runs, all_rows=True)

    @property
    def drafts(self) -> int:
        """Tokens of a block that are proposed."""
        return self._drafts

    def observe(self, committed: Sequence[Committed]) -> None:
        """Write every stage's ring rows of the committed tokens."""
        items = [BatchItem(c.slot, c.pages, c.start, c.following) for c in committed]
        width = self._drafts + 1
        short = all(len(c.following) <= width for c in committed)
        size = self._runs.bucket(len(items)) if short else None
        hidden = torch.cat([c.hidden for c in committed])
        with torch.inference_mode():
            meta = build_metadata(self._geometry, 1, items, "prefill" if size is None else "decode")
            if size is not None:
                meta = pad_draft(meta, self._geometry, size, width)
            shape = Shape(meta.mode, meta.T, meta.n_items)
            taps = self._injection.builder(shape).buffer(TAPS, *hidden.shape[1:])
            taps[: hidden.shape[0]].copy_(hidden)
            self._inject.launch(shape, [meta], size, prefill=not short)

    def propose(self, anchors: Sequence[Anchor], choose: Choose | None) -> Proposal:
        """One block per anchor, then token after token: base logits plus the Markov bias of the token before."""
        with torch.inference_mode():
            if choose is None:
                requests = self._launch(self._chain, anchors).tokens // self._dspark.block_size
                rows = chosen_view(self._arena, requests, self._drafts)[: len(anchors)].tolist()
                return Proposal(tuple(map(tuple, rows)))
            return self._chosen(anchors, choose)

    def _chosen(self, anchors: Sequence[Anchor], choose: Choose) -> Proposal:
        """Place by place: the host chooses between them."""
        size, device = self._dspark.block_size, self._arena.device
        logits_of_all = logits_view(self._block.builder(self._launch(self._base, anchors)))
        base = logits_of_all[: len(anchors) * size].view(len(anchors), size, -1)
        tokens: list[list[int]] = [[] for _ in anchors]
        previous = torch.tensor([a.token for a in anchors], device=device)
        kept = []
        for place in range(self._drafts):
            logits = markov_logits(base[:, place], self._weights, previous).cpu().numpy()
            kept.append(logits)
            for i, drafted in enumerate(tokens):
                drafted.append(choose(i, place, logits[i]))
            previous = torch.tensor([drafted[-1] for drafted in tokens], device=device)
        return Proposal(tuple(map(tuple, tokens)), np.stack(kept, axis=1))

    def _launch(self, forwards: Forwards, anchors: Sequence[Anchor]) -> Shape:
        """Run one block per anchor; the shape that was run has padded blocks behind them."""
        size, noise = self._dspark.block_size, self._dspark.noise_token_id
        # A block may reach further than the drafts asked for, past the pages; only rings are read.
        items = [
            BatchItem(a.slot, (*a.pages, a.pages[-1]), a.position, (a.token, *[noise] * (size - 1))) for a in anchors
        ]
        meta, bucket = build_block_metadata(self._geometry, items), self._runs.bucket(len(anchors))
        if bucket is not None:
            meta = pad_block(meta, self._geometry, bucket, size)
        shape = Shape("prefill", meta.T, meta.T)
        forwards.launch(shape, [meta], bucket)
        return shape
