"""Wrapper of the router kernels; arguments as in ``reference.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton

from dsv4_kernels.checks import require, require_dtype, require_shape, require_unit_stride
from dsv4_kernels.invariant import counted
from dsv4_kernels.launch import Config, launch, overlaps, pinned
from dsv4_kernels.moe_route._few import _route_few_kernel
from dsv4_kernels.moe_route._kernel import _hash_route_kernel, _route_kernel
from dsv4_kernels.moe_route._launch import (
    FEW,
    FEW_TOKENS,
    HASH_ROUTE,
    HASH_TOKENS,
    NO_WORDS,
    ROUTE,
    WORDS,
    WORDS_TOKENS,
)
from dsv4_kernels.target import target_of
from dsv4_kernels.workspace import workspace, zeroed_workspace

SCORINGS = ("sqrtsoftplus", "sigmoid", "softmax")


def moe_route(
    x: torch.Tensor,
    gate: torch.Tensor,
    *,
    bias: torch.Tensor | None,
    table: torch.Tensor | None,
    token_ids: torch.Tensor,
    top_k: int,
    scale: float,
    scoring: str,
    renormalise: bool,
    weights: torch.Tensor,
    experts: torch.Tensor,
) -> None:
    """See :func:`dsv4_kernels.moe_route.moe_route_reference`. Ties go to the lowest expert; NaN scores rank last."""
    tokens, d = x.shape
    n_experts = gate.shape[0]
    require_shape("gate", gate, -1, d)
    require(x.dtype == gate.dtype, f"gate is {gate.dtype}, expected the dtype of x, {x.dtype}")
    require(scoring in SCORINGS, f"scoring {scoring!r} is not one of {', '.join(SCORINGS)}")
    require(0 < top_k <= n_experts, f"top_k is {top_k}, expected 1 to {n_experts}")
    require_shape("weights", weights, tokens, top_k)
    require_dtype("weights", weights, torch.float32)
    require_shape("experts", experts, tokens, top_k)
    require_dtype("experts", experts, torch.int64)
    for name, tensor in (("x", x), ("gate", gate)):
        require_unit_stride(name, tensor)
    target = target_of(x.device)
    strides = {
        "x_stride": x.stride(0), "gate_stride": gate.stride(0),
        "table_stride": 0 if table is None else table.stride(0),
        "weights_stride": weights.stride(0), "experts_stride": experts.stride(0),
    }  # fmt: skip
    shared = {
        "x_ptr": x, "gate_ptr": gate, "table_ptr": table, "token_ids_ptr": token_ids,
        "weights_ptr": weights, "experts_ptr": experts, "d": d, "scale": float(scale), **strides,
    }  # fmt: skip
    choice = {
        "SCORING": scoring, "RENORMALISE": renormalise, "TOP_K": top_k, "K_PAD": triton.next_power_of_2(top_k),
        "PDL": overlaps(x),
    }  # fmt: skip
    if table is not None and scoring != "softmax" and counted("tokens", tokens) <= HASH_TOKENS:
        launch(_hash_route_kernel, (tokens,), shared, choice, HASH_ROUTE.choose(target, tokens=tokens))
        return
    bounds = {"bias_ptr": bias, "n_experts": n_experts}
    if table is None and overlaps(x) and counted("tokens", tokens) <= WORDS_TOKENS:
        words = WORDS.choose(target, tokens=tokens, d=d)
        if _sends_words(x, gate, scoring, top_k, words):
            _by_words(shared | bounds, choice, words)
            return
    if table is None and counted("tokens", tokens) <= FEW_TOKENS:
        few = {n: v for n, v in (shared | bounds).items() if "table" not in n and n != "token_ids_ptr"}
        _few(few, choice, FEW.choose(target, tokens=tokens, d=d))
        return
    chosen = ROUTE.choose(target, tokens=tokens, d=d)
    padded = triton.next_power_of_2(n_experts)
    tiles = triton.cdiv(tokens, chosen["BLOCK_T"])
    partial = workspace("moe_route", (chosen["SPLITS"], tokens, padded), torch.float32, x.device)
    counters = zeroed_workspace("moe_route", (max(tiles, 1),), torch.int32, x.device)
    step = chosen["BLOCK_D"]
    launch(
        _route_kernel,
        (triton.cdiv(padded, chosen["BLOCK_E"]), tiles, chosen["SPLITS"]),
        {**shared, **bounds, "partial_ptr": partial, "counter_ptr": counters, "n_tokens": tokens},
        {**choice, "HAS_BIAS": bias is not None, "HAS_TABLE": table is not None, "E_PAD": padded,
         "CHOOSE_T": min(4, chosen["BLOCK_T"]),
         "SPLIT_D": triton.cdiv(triton.cdiv(d, chosen["SPLITS"]), step) * step},
        chosen,
    )  # fmt: skip


def _sends_words(x: torch.Tensor, gate: torch.Tensor, scoring: str, top_k: int, chosen: Config) -> bool:
    """Whether NVIDIA's sibling is chosen and can: whole tiles of bf16, aligned, that are scored one by one.

    A thread chooses among 1, 2 or 4 experts, and no warp's share of them has fewer than are chosen, but for none.
    """
    if not chosen["PAIRS"] or x.dtype != torch.bfloat16 or scoring == "softmax":
        return False
    (n_experts, d), warps = gate.shape, chosen.num_warps
    share = triton.next_power_of_2(n_experts) // warps
    if not 32 <= share <= 128 or top_k * warps > 64 or 0 < n_experts % share < top_k:
        return False
    aligned = x.stride(0) % 8 == 0 and gate.stride(0) % 8 == 0 and n_experts % 4 == 0
    return aligned and d % (chosen["VEC"] * 32 * warps) == 0


def moe_route_portable(**arguments: Any) -> None:
    """As :func:`moe_route` by the kernels that run everywhere."""
    with pinned({WORDS.name: NO_WORDS}):
        moe_route(**arguments)


def moe_route_by_words(**arguments: Any) -> None:
    """As :func:`moe_route`, with NVIDIA's sibling wherever it can, in a config of its candidates."""
    group = 1 if arguments["x"].shape[0] <= 2 else 4
    with pinned({WORDS.name: next(c for c in WORDS.candidates if c["GROUP"] == group)}):
        moe_route(**arguments)


def _by_words(arguments: Mapping[str, Any], choice: Mapping[str, Any], chosen: Config) -> None:
    """NVIDIA's sibling; arguments as the other kernels have them."""
    from dsv4_kernels.moe_route._nvidia import _route_words_kernel

    x, n_experts = arguments["x_ptr"], arguments["n_experts"]
    tokens, padded = x.shape[0], triton.next_power_of_2(n_experts)
    # Of one size, so that it does not grow at a capture.
    words = zeroed_workspace("moe_route.words", (max(tokens, WORDS_TOKENS), padded), torch.int32, x.device)
    other = ("table_ptr", "table_stride", "token_ids_ptr", "d", "n_experts")
    own = {n: v for n, v in arguments.items() if n not in other}
    constants = {n: v for n, v in choice.items() if n != "K_PAD"}
    launch(
        _route_words_kernel,
        (n_experts // (2 * chosen["PAIRS"]) if tokens else 0,),
        {**own, "words_ptr": words, "n_tokens": tokens},
        {
            **constants, "HAS_BIAS": arguments["bias_ptr"] is not None, "N_EXPERTS": n_experts, "E_PAD": padded,
            "STEPS": x.shape[1] // (chosen["VEC"] * 32 * chosen.num_warps),
        },
        chosen,
    )  # fmt: skip


def _few(arguments: Mapping[str, Any], choice: Mapping[str, Any], chosen: Config) -> None:
    """Few tokens, chosen by score; ``arguments`` as the kernel has them, without its scratch."""
    x, n_experts = arguments["x_ptr"], arguments["n_experts"]
    tokens, padded = x.shape[0], triton.next_power_of_2(n_experts)
    launch(
        _route_few_kernel,
        (triton.cdiv(n_experts, chosen["BLOCK_E"]), tokens),
        {
            **arguments,
            "scores_ptr": workspace("moe_route.few", (tokens, padded), torch.float32, x.device),
            "counter_ptr": zeroed_workspace("moe_route.few", (max(tokens, 1),), torch.int32, x.device),
        },
        {
            **choice, "HAS_BIAS": arguments["bias_ptr"] is not None, "E_PAD": padded,
            "STEPS": triton.cdiv(arguments["d"], chosen["BLOCK_D"]),
            "EVEN": arguments["d"] % chosen["BLOCK_D"] == 0 and n_experts % chosen["BLOCK_E"] == 0,
        },
        chosen,
    )  # fmt: skip
