"""Speculative decoding in the engine: draft, verify in one target forward, commit (dsv4-spec 7.2, 13.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dsv4lab.engine.forward_result import ForwardResult
from dsv4lab.engine.penalties import TokenHistory, adjusted
from dsv4lab.engine.request import SamplingParams
from dsv4lab.engine.runner import Runner
from dsv4lab.engine.sampler import DRAFT_LANE, VERIFY_LANE, distribution, likeliest, sample, uniforms
from dsv4lab.engine.snapshots import DraftEdges
from dsv4lab.kv.metadata import BatchItem
from dsv4lab.spec.draft import Anchor, Committed, Drafter, greedy_choice
from dsv4lab.spec.stats import AcceptanceStats
from dsv4lab.spec.verify import block_verify, chain_verify, draw, greedy_verify

Following = Callable[[ForwardResult, int], Sequence[int]]

METHODS = {"chain": chain_verify, "block": block_verify}
COUPLED = "coupled"
"""Draft and verify with the noise of plain sampling: the tokens are those of plain sampling, whatever was drafted."""


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A decoding request: its last token ``item.tokens[0]`` is known and not yet in the pool.

    ``generated`` numbers the next new token; with ``seed`` it fixes the noise. ``history`` is what penalties count up
    to that last token; needed where ``sampling.penalises``.
    """

    item: BatchItem
    sampling: SamplingParams
    seed: int
    generated: int
    history: TokenHistory | None = None

    def after(self, drafts: Sequence[int]) -> TokenHistory | None:
        """The history that penalties count once ``drafts`` stand too."""
        return None if self.history is None else self.history.extended(drafts)

    def logits(self, row: NDArray[np.float32], drafts: Sequence[int]) -> NDArray[np.float32]:
        """What the token after ``drafts`` is chosen from, where ``row`` is the model's."""
        if self.sampling.untouched:
            return row
        return adjusted(row, self.sampling, self.generated + len(drafts), self.after(drafts))

    def sample(self, row: NDArray[np.float32], drafts: Sequence[int]) -> int:
        """The token that plain decoding would choose after ``drafts``, where ``row`` are the model's logits."""
        return sample(row, self.sampling, self.seed, self.generated + len(drafts), self.after(drafts))

    def distribution(self, row: NDArray[np.float32], drafts: Sequence[int]) -> NDArray[np.float64]:
        """Probabilities of the token after ``drafts``, where ``row`` are the model's logits: float64 ``[vocab]``."""
        return distribution(row, self.sampling, self.generated + len(drafts), self.after(drafts))


class Speculator:
    """Drafts, verifies and keeps the drafter in step with the target. Greedy requests get the target's own tokens.

    ``edges`` are the drafter's half of snapshots, where ``drafter`` stands for those of several ranks.
    """

    def __init__(
        self, runner: Runner, drafter: Drafter, method: str = "chain", edges: DraftEdges | None = None
    ) -> None:
        self._runner = runner
        self._drafter = drafter
        self._coupled = method == COUPLED
        self._verify = METHODS.get(method, chain_verify)
        self.stats = AcceptanceStats(drafter.drafts)
        self.edges = DraftEdges(drafter) if edges is None else edges

    @property
    def drafts(self) -> int:
        """Draft tokens per request and step."""
        return self._drafter.drafts

    def observe_prefill(self, items: Sequence[BatchItem], following: Sequence[int]) -> None:
        """Right after the target's prefill forward of ``items``; ``following`` is the token after each item's last."""
        self._observe(_chunks(items, following, self._runner.hidden_rows(sum(len(i.tokens) for i in items))))

    def decode(self, requests: Sequence[DraftRequest]) -> tuple[list[tuple[int, ...]], ForwardResult]:
        """One step: per request the new tokens, 1 to ``drafts + 1``, of which all but the last are in the pool now."""
        return self.step(requests, (), lambda result, row: ())

    def step(
        self, requests: Sequence[DraftRequest], prefill: Sequence[BatchItem], following: Following
    ) -> tuple[list[tuple[int, ...]], ForwardResult]:
        """As :meth:`decode`, with prefill chunks of other requests in the same forward.

        The result has the rows of all verified tokens first, then one of each chunk's last token; ``following`` is
        given it and the first of those rows, and tells the token after each chunk.
        """
        drafts, chosen = self._draft(requests)
        items = [
            BatchItem(r.item.slot, r.item.pages, r.item.start, (r.item.tokens[0], *drafted))
            for r, drafted in zip(requests, drafts, strict=True)
        ]
        if prefill:
            result = self._runner.forward([*items, *prefill], "prefill", wide_items=len(items))
        else:
            result = self._runner.forward(items, "decode", all_rows=True)
        width = self.drafts + 1
        wide = width * len(items)
        hidden = self._runner.hidden_rows(wide + sum(len(item.tokens) for item in prefill))
        tokens = [
            self._accept(r, result, i * width, drafts[i], [chosen.get((i, p)) for p in range(self.drafts)])
            for i, r in enumerate(requests)
        ]
        chunks = _chunks(prefill, following(result, wide), hidden[wide:])
        self._observe([*self._commit(items, tokens, hidden[:wide]), *chunks])
        return tokens, result

    def _draft(
        self, requests: Sequence[DraftRequest]
    ) -> tuple[tuple[tuple[int, ...], ...], dict[tuple[int, int], NDArray[np.float64]]]:
        """Drafts by request, and by request and place the distribution that a sampled one was drawn from."""
        anchors = [Anchor(r.item.slot, r.item.pages, r.item.start, r.item.tokens[0]) for r in requests]
        chosen: dict[tuple[int, int], NDArray[np.float64]] = {}
        drafts: list[list[int]] = [[] for _ in requests]

        def choose(request: int, place: int, logits: NDArray[np.float32]) -> int:
            r, before = requests[request], drafts[request]
            if r.sampling.greedy:
                token = greedy_choice(request, place, r.logits(logits, before))
            elif self._coupled:
                token = r.sample(logits, before)
            else:
                q = chosen[request, place] = r.distribution(logits, before)
                token = draw(q, float(uniforms(r.seed, r.generated, DRAFT_LANE, place + 1)[place]))
            before.append(token)
            return token

        by_device = all(r.sampling.greedy and r.sampling.untouched for r in requests)
        return self._drafter.propose(anchors, None if by_device else choose).tokens, chosen

    def _accept(
        self,
        request: DraftRequest,
        result: ForwardResult,
        first: int,
        drafts: Sequence[int],
        draft_rows: Sequence[NDArray[np.float64] | None],
    ) -> tuple[int, ...]:
        """What stands of ``drafts`` and the token after that, by the rows of the forward from ``first`` on."""
        end = first + len(drafts) + 1
        if result.likeliest is not None and request.sampling.greedy and request.sampling.untouched:
            tokens = greedy_verify(result.likeliest.checked(first, end), drafts)
            self.stats.count(len(tokens) - 1)
            return tokens
        logits = result.logits.numpy()[first:end]
        if request.sampling.greedy:
            rows = (request.logits(row, drafts[:i]) for i, row in enumerate(logits))
            tokens = greedy_verify([likeliest(row) for row in rows], drafts)
        elif self._coupled:
            tokens = greedy_verify([request.sample(row, drafts[:i]) for i, row in enumerate(logits)], drafts)
        else:
            target = np.stack([request.distribution(row, drafts[:i]) for i, row in enumerate(logits)])
            draft = np.stack([row for row in draft_rows if row is not None])
            noise = uniforms(request.seed, request.generated, VERIFY_LANE, 2 * len(drafts) + 2)
            tokens = self._verify(target, draft, drafts, noise.tolist())
        self.stats.count(len(tokens) - 1)
        return tokens

    def _commit(
        self, items: Sequence[BatchItem], tokens: Sequence[tuple[int, ...]], hidden: torch.Tensor
    ) -> list[Committed]:
        """The anchor and the accepted drafts stand; each is followed by the next of the new tokens."""
        for item, new in zip(items, tokens, strict=True):
            self._runner.pool.forget_rejected(item.slot, item.start + len(new), item.start + len(item.tokens))
        width = self.drafts + 1
        return [
            Committed(item.slot, item.pages, item.start, new, hidden[i * width : i * width + len(new)])
            for i, (item, new) in enumerate(zip(items, tokens, strict=True))
        ]

    def _observe(self, committed: list[Committed]) -> None:
        self._drafter.observe(committed)
        self.edges.note(committed)


def _chunks(items: Sequence[BatchItem], following: Sequence[int], hidden: torch.Tensor) -> list[Committed]:
    """What a prefill of ``items`` commits; ``hidden`` are its flat rows, ``following`` the token after each item."""
    committed, first = [], 0
    for item, after in zip(items, following, strict=True):
        n = len(item.tokens)
        tokens = (*item.tokens[1:], after)
        committed.append(Committed(item.slot, item.pages, item.start, tokens, hidden[first : first + n]))
        first += n
    return committed
