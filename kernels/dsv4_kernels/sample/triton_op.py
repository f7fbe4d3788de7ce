"""Wrapper of the sampling kernels; arguments as in ``reference.py``."""

from __future__ import annotations

import torch
import triton

from dsv4_kernels.checks import require_dtype, require_shape, require_unit_stride
from dsv4_kernels.launch import launch, overlaps
from dsv4_kernels.sample._kernel import _choose_kernel, _largest_kernel, _narrow_kernel
from dsv4_kernels.sample._launch import NARROW, SAMPLE
from dsv4_kernels.target import target_of
from dsv4_kernels.workspace import workspace, zeroed_workspace

SHIFTS = (30, 25, 20, 15, 10, 5, 0)


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    seed: torch.Tensor,
    index: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """See :func:`dsv4_kernels.sample.sample_reference`. One launch without ``top_k`` and ``top_p``, else seven each."""
    rows, vocab = logits.shape
    require_unit_stride("logits", logits)
    for name, tensor, dtype in (
        ("temperature", temperature, torch.float32), ("top_k", top_k, torch.int32), ("top_p", top_p, torch.float32),
        ("seed", seed, torch.int64), ("index", index, torch.int64), ("out", out, torch.int64),
    ):  # fmt: skip
        if tensor is not None:
            require_shape(name, tensor, rows)
            require_dtype(name, tensor, dtype)
    device = logits.device
    counters = zeroed_workspace("sample", (max(rows, 1),), torch.int32, device)
    filtered = top_k is not None or top_p is not None
    floor = _floor(logits, temperature, top_k, top_p, counters) if filtered else None
    chosen = SAMPLE.choose(target_of(device), rows=rows)
    parts = triton.cdiv(vocab, chosen["BLOCK"])
    launch(
        _choose_kernel,
        (parts, rows),
        {
            "logits_ptr": logits, "temperature_ptr": temperature, "floor_ptr": floor, "seed_ptr": seed,
            "index_ptr": index, "best_ptr": workspace("sample_best", (rows, parts), torch.float32, device),
            "at_ptr": workspace("sample_at", (rows, parts), torch.int32, device), "counter_ptr": counters,
            "out_ptr": out, "vocab": vocab, "logits_stride": logits.stride(0), "parts": parts,
        },
        {"PDL": overlaps(logits), "FILTERED": filtered, "PARTS_PAD": triton.next_power_of_2(parts)},
        chosen,
    )  # fmt: skip


def _floor(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    counters: torch.Tensor,
) -> torch.Tensor:
    """Key of the least logit that may be drawn, int64 ``[T]``."""
    rows, vocab = logits.shape
    device = logits.device
    chosen = NARROW.choose(target_of(device), rows=rows)
    parts = triton.cdiv(vocab, chosen["BLOCK"])
    keys = workspace("sample_keys", (3, rows), torch.int64, device)
    target = workspace("sample_target", (rows,), torch.float64, device)
    state = zeroed_workspace("sample_sums", (max(rows, 1), 33), torch.int64, device)
    shape = {"vocab": vocab, "logits_stride": logits.stride(0), "parts": parts, "counter_ptr": counters,
             "logits_ptr": logits, "state_ptr": state}  # fmt: skip
    floor = keys[1]
    launch(_largest_kernel, (parts, rows), {**shape, "largest_ptr": keys[0], "floor_ptr": floor}, {}, chosen)
    for wanted in (top_k, top_p):
        if wanted is None:
            continue
        base = keys[1]
        floor = keys[2] if wanted is top_p else keys[1]
        for shift in SHIFTS:
            launch(
                _narrow_kernel,
                (parts, rows),
                {
                    **shape, "temperature_ptr": temperature, "wanted_ptr": wanted, "largest_ptr": keys[0],
                    "floor_ptr": floor, "base_ptr": base, "shift": shift, "target_ptr": target,
                },
                {"MASS": wanted is top_p, "FIRST": shift == SHIFTS[0]},
                chosen,
            )  # fmt: skip
    return floor
