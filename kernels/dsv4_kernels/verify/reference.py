"""Acceptance of a chain of drafted tokens in plain torch (dsv4-spec 7.2)."""

from __future__ import annotations

import torch

from dsv4_kernels.philox import uniform

ACCEPT, RESIDUAL = 1, 2
"""Third word of the noise counter: the draw that accepts a draft, and the one that replaces it."""


def verify_reference(
    logits: torch.Tensor,
    draft: torch.Tensor,
    draft_probs: torch.Tensor | None,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    index: torch.Tensor,
    accepted: torch.Tensor,
    tokens: torch.Tensor,
) -> None:
    """How many of each request's drafts hold, and its new tokens.

    ``logits [S, k, V]`` of the target after the anchor and after each draft; ``draft`` int64 ``[S, k - 1]``;
    ``draft_probs`` float32 ``[S, k - 1, V]`` or ``None`` for drafts that were argmax (one-hot); ``temperature``
    float32 ``[S]``, 0 is greedy; ``seed``, ``index`` int64 ``[S]``, ``index`` the number of the first new token.
    ``accepted`` int32 ``[S]``, 0 to k - 1; ``tokens`` int64 ``[S, k]``: the accepted drafts, one more token, then -1.

    Greedy rows accept the longest prefix that the argmax agrees with (ties: lowest token). Other rows accept draft i
    while ``u q(d) < p(d)``, and draw the next token from ``max(p - q, 0)``, or from ``p`` after the last draft: the
    token with the largest ``log(weight) + Gumbel noise``, the noise a function of seed, number and token. A residual
    without mass, which only rounding can bring about, gives the argmax. Filter logits before (-inf) for top-k and
    top-p.
    """
    requests = logits.shape[0]
    accepted.zero_()
    tokens.fill_(-1)
    for s in range(requests):
        values = logits[s].float()
        number = index[s]
        if float(temperature[s]) == 0.0:
            best = values.argmax(1)
            count = int((best[:-1] == draft[s]).int().cumprod(0).sum())
            last = int(best[count])
        else:
            p = (values / temperature[s]).softmax(1)
            count = _accept(p, draft[s], None if draft_probs is None else draft_probs[s], seed[s], number)
            last = _replace(p, draft[s], None if draft_probs is None else draft_probs[s], count, seed[s], number)
        accepted[s] = count
        tokens[s, :count] = draft[s, :count]
        tokens[s, count] = last


def _accept(
    p: torch.Tensor, draft: torch.Tensor, q: torch.Tensor | None, seed: torch.Tensor, number: torch.Tensor
) -> int:
    zero = torch.zeros_like(number)
    for i, token in enumerate(draft.tolist()):
        u = uniform(seed, zero, number + i, zero + ACCEPT)
        likely = 1.0 if q is None else q[i, token].float()
        if not bool(u * likely < p[i, token]):
            return i
    return len(draft)


def _replace(
    p: torch.Tensor,
    draft: torch.Tensor,
    q: torch.Tensor | None,
    count: int,
    seed: torch.Tensor,
    number: torch.Tensor,
) -> int:
    weight = p[count].clone()
    if count < len(draft):
        if q is None:
            weight[draft[count]] = 0.0
        else:
            weight = (weight - q[count].float()).clamp(min=0.0)
    if not bool((weight > 0).any()):
        return int(p[count].argmax())
    token = torch.arange(p.shape[1], device=p.device)
    u = uniform(seed, token, number + count, torch.full_like(number, RESIDUAL))
    return int((weight.log() - torch.log(-torch.log(u))).argmax())
