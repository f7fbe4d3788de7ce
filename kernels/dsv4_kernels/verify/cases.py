"""Cases and cost of verification."""

from __future__ import annotations

import torch

from dsv4_kernels.registry import Arguments, Case, Cost, KernelSpec, Tolerance
from dsv4_kernels.testing.inputs import Inputs
from dsv4_kernels.verify._launch import VERIFY
from dsv4_kernels.verify.reference import verify_reference

VOCABULARY = 129280


def _chain(inputs: Inputs, n: int, k: int, vocab: int, *, warm: bool = True, probs: bool = False) -> Arguments:
    """Drafts near the target: the argmax of the row, now and then another token; so every count comes up."""
    logits = inputs.normal(n, k, vocab, dtype=torch.float32, scale=2.0)
    draft = inputs.integers(0, vocab, n, k - 1)
    temperature = inputs.uniform(n, low=0.4, high=1.0) if warm else inputs.uniform(n) * 0.0
    q = inputs.normal(n, k - 1, vocab, dtype=torch.float32) if probs else None
    if not inputs.meta and n:
        likely = logits[:, :-1].argmax(2)
        draft = torch.where(inputs.uniform(n, k - 1) < 0.8, likely, draft)
        boost = torch.zeros_like(logits[:, :-1]).scatter_(2, draft.unsqueeze(2), 8.0)
        logits[:, :-1] += torch.where(inputs.uniform(n, k - 1, 1) < 0.7, boost, torch.zeros_like(boost))
        if q is not None:
            q = (logits[:, :-1] + q).softmax(2)
    return {
        "logits": logits, "draft": draft, "draft_probs": q, "temperature": temperature,
        "seed": inputs.integers(0, 2**62, n), "index": inputs.integers(0, 2**31, n),
        "accepted": inputs.empty(n, dtype=torch.int32), "tokens": inputs.empty(n, k, dtype=torch.int64),
    }  # fmt: skip


def _cost(arguments: Arguments) -> Cost:
    logits = arguments["logits"]
    rows = logits.numel() + logits[:, 0].numel()  # each row for its softmax, one more for the race
    return Cost(rows * logits.element_size(), 8 * rows)


SPECS = (
    KernelSpec(
        "verify",
        verify_reference,
        "dsv4_kernels.verify.triton_op:verify",
        (
            Case(
                "greedy-2x4", lambda i: _chain(i, 2, 4, VOCABULARY, warm=False), small=False, compiled=True, bench=True
            ),
            Case("greedy-5x4", lambda i: _chain(i, 5, 4, 3000, warm=False)),
            Case("one-hot-6x4", lambda i: _chain(i, 6, 4, 3000)),
            Case("probs-6x3", lambda i: _chain(i, 6, 3, 2500, probs=True), compiled=True),
            Case("one-row", lambda i: _chain(i, 3, 1, 1000)),
            Case("empty", lambda i: _chain(i, 0, 4, 1000)),
            Case("probs-flash-16x6", lambda i: _chain(i, 16, 6, VOCABULARY, probs=True), small=False, bench=True),
        ),
        _cost,
        (VERIFY,),
        outputs=("accepted", "tokens"),
        tolerance=Tolerance(exact=frozenset({"accepted", "tokens"})),
    ),
)
