"""Wrapper of the verify kernels; arguments as in ``reference.py``."""

from __future__ import annotations

import torch
import triton

from dsv4_kernels.checks import require_dtype, require_shape, require_unit_stride
from dsv4_kernels.launch import launch, overlaps
from dsv4_kernels.target import target_of
from dsv4_kernels.verify._kernel import _parts_kernel, _verify_kernel
from dsv4_kernels.verify._launch import VERIFY
from dsv4_kernels.workspace import workspace, zeroed_workspace


def verify(
    logits: torch.Tensor,
    draft: torch.Tensor,
    draft_probs: torch.Tensor | None,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    index: torch.Tensor,
    accepted: torch.Tensor,
    tokens: torch.Tensor,
) -> None:
    """See :func:`dsv4_kernels.verify.verify_reference`. Two launches."""
    requests, k, vocab = logits.shape
    require_unit_stride("logits", logits)
    require_shape("draft", draft, requests, k - 1)
    require_dtype("draft", draft, torch.int64)
    require_shape("tokens", tokens, requests, k)
    require_dtype("tokens", tokens, torch.int64)
    require_shape("accepted", accepted, requests)
    require_dtype("accepted", accepted, torch.int32)
    if draft_probs is not None:
        require_shape("draft_probs", draft_probs, requests, k - 1, vocab)
        require_unit_stride("draft_probs", draft_probs)
    device = logits.device
    chosen = VERIFY.choose(target_of(device), requests=requests)
    parts = triton.cdiv(vocab, chosen["BLOCK"])
    sums = {
        "top_ptr": workspace("verify_top", (requests * k, parts), torch.float32, device),
        "sum_ptr": workspace("verify_sum", (requests * k, parts), torch.float32, device),
        "at_ptr": workspace("verify_at", (requests * k, parts), torch.int32, device),
    }
    shape = {
        "logits_ptr": logits, "temperature_ptr": temperature, "vocab": vocab, "k": k,
        "logits_stride_s": logits.stride(0), "logits_stride_k": logits.stride(1), "parts": parts, **sums,
    }  # fmt: skip
    launch(_parts_kernel, (parts, requests * k), shape, {"PDL": overlaps(logits)}, chosen)
    launch(
        _verify_kernel,
        (parts, requests),
        {
            **shape, "draft_ptr": draft, "probs_ptr": draft_probs, "seed_ptr": seed, "index_ptr": index,
            "best_ptr": workspace("verify_best", (requests, parts), torch.float32, device),
            "place_ptr": workspace("verify_place", (requests, parts), torch.int32, device),
            "counter_ptr": zeroed_workspace("verify", (max(requests, 1),), torch.int32, device),
            "accepted_ptr": accepted, "tokens_ptr": tokens, "draft_stride": draft.stride(0),
            "probs_stride_s": 0 if draft_probs is None else draft_probs.stride(0),
            "probs_stride_k": 0 if draft_probs is None else draft_probs.stride(1),
            "tokens_stride": tokens.stride(0),
        },
        {
            "HAS_PROBS": draft_probs is not None, "K_PAD": triton.next_power_of_2(k),
            "PARTS_PAD": triton.next_power_of_2(parts), "PDL": overlaps(logits),
        },
        chosen,
    )  # fmt: skip
