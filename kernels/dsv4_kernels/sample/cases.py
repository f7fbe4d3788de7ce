"""Cases and cost of sampling."""

from __future__ import annotations

import torch

from dsv4_kernels.registry import Arguments, Case, Cost, KernelSpec, Tolerance
from dsv4_kernels.sample._launch import NARROW, SAMPLE
from dsv4_kernels.sample.reference import sample_reference
from dsv4_kernels.testing.inputs import Inputs

VOCABULARY = 129280


def _rows(
    inputs: Inputs, n: int, vocab: int, *, warm: bool = True, top_k: bool = False, top_p: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Arguments:  # fmt: skip
    temperature = inputs.uniform(n, low=0.5, high=1.5) if warm else inputs.uniform(n) * 0.0
    if warm and n > 2 and not inputs.meta:
        temperature[1] = 0.0
    return {
        "logits": inputs.normal(n, vocab, dtype=dtype, scale=3.0), "temperature": temperature,
        "top_k": inputs.integers(0, 50, n, dtype=torch.int32) if top_k else None,
        "top_p": inputs.uniform(n, low=0.3, high=1.0) if top_p else None,
        "seed": inputs.integers(0, 2**62, n), "index": inputs.integers(0, 2**31, n),
        "out": inputs.empty(n, dtype=torch.int64),
    }  # fmt: skip


def _odd(inputs: Inputs) -> Arguments:
    """NaN, +inf, nothing but -inf, ties, one token left, and -0 beside 0."""
    arguments = _rows(inputs, 6, 1000, top_k=True, top_p=True)
    if not inputs.meta:
        logits, top_k = arguments["logits"], arguments["top_k"]
        logits[0, 7] = float("nan")
        logits[1, 9] = float("inf")
        logits[2] = float("-inf")
        logits[3] = 1.0
        arguments["temperature"][3] = 0.0
        logits[4] = float("-inf")
        logits[4, 321] = -5.0
        logits[5] = torch.where(torch.arange(1000, device=logits.device) % 2 == 0, 0.0, -0.0)
        top_k[5] = 3
    return arguments


def _cost(arguments: Arguments) -> Cost:
    logits = arguments["logits"]
    return Cost(logits.numel() * logits.element_size() + 8 * logits.shape[0], 10 * logits.numel())


SPECS = (
    KernelSpec(
        "sample",
        sample_reference,
        "dsv4_kernels.sample.triton_op:sample",
        (
            Case("greedy-1", lambda i: _rows(i, 1, VOCABULARY, warm=False), small=False, compiled=True, bench=True),
            Case("gumbel-1", lambda i: _rows(i, 1, VOCABULARY), small=False, bench=True),
            Case("filtered-2", lambda i: _rows(i, 2, 1200, top_k=True, top_p=True), compiled=True),
            Case("top-k-3", lambda i: _rows(i, 3, 1200, top_k=True)),
            Case("top-p-3", lambda i: _rows(i, 3, 1200, top_p=True)),
            Case("bf16-5", lambda i: _rows(i, 5, 1500, dtype=torch.bfloat16)),
            Case("greedy-3", lambda i: _rows(i, 3, 2500, warm=False)),
            Case("odd", _odd),
            Case("empty", lambda i: _rows(i, 0, 1000)),
            Case(
                "filtered-flash-1", lambda i: _rows(i, 1, VOCABULARY, top_k=True, top_p=True), small=False, bench=True
            ),
            Case("gumbel-256", lambda i: _rows(i, 256, VOCABULARY), small=False, bench=True),
        ),
        _cost,
        (SAMPLE, NARROW),
        outputs=("out",),
        tolerance=Tolerance(exact=frozenset({"out"})),
    ),
)
