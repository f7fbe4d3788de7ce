"""The aiter entry points that we call, as recorded (dsv4-spec 5.7), and the check of an installed one against that."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dsv4lab.errors import UnavailableError


@dataclass(frozen=True)
class Recorded:
    """``module:name`` and its parameters in order. ``passed`` are those that we pass, by keyword."""

    module: str
    name: str
    parameters: tuple[str, ...]
    passed: tuple[str, ...]

    @property
    def path(self) -> str:
        """``module.name``."""
        return f"{self.module}.{self.name}"


def _recorded(path: str, parameters: str, passed: str) -> Recorded:
    module, _, name = path.rpartition(".")
    return Recorded(module, name, tuple(parameters.split()), tuple(passed.split()))


SIGNATURES = {
    "sparse_decode": _recorded(
        "aiter.ops.triton.attention.pa_decode_sparse.pa_decode_sparse",
        "q unified_kv kv_indices kv_indptr attn_sink softmax_scale kv_scales block_h kv_splits has_invalid skip_reduce "
        "USE_EXP2 extra_cache extra_indices extra_indptr",
        "q unified_kv kv_indices kv_indptr attn_sink softmax_scale has_invalid",
    ),
    "sparse_prefill": _recorded(
        "aiter.ops.triton.attention.pa_prefill_sparse.pa_prefill_sparse",
        "q unified_kv kv_indices_prefix kv_indptr_prefix kv kv_indices_extend kv_indptr_extend attn_sink softmax_scale "
        "has_invalid",
        "q unified_kv kv_indices_prefix kv_indptr_prefix kv kv_indices_extend kv_indptr_extend attn_sink softmax_scale "
        "has_invalid",
    ),
    "index_topk": _recorded(
        "aiter.ops.topk.top_k_per_row_prefill",
        "logits rowStarts rowEnds indices values numRows stride0 stride1 k stable",
        "logits rowStarts rowEnds indices values numRows stride0 stride1 k stable",
    ),
    "moe_route": _recorded(
        "aiter.ops.topk.topk_gating",
        "topk_weights topk_indices gating_output correction_bias need_renorm routed_scaling_factor score_func",
        "topk_weights topk_indices gating_output correction_bias need_renorm routed_scaling_factor score_func",
    ),
    "mhc_pre": _recorded(
        "aiter.ops.mhc.mhc_pre",
        "residual fn hc_scale hc_base rms_eps hc_pre_eps hc_sinkhorn_eps hc_post_mult_value sinkhorn_repeat "
        "norm_weight norm_eps large_m_splitk is_fn_pack_bf16",
        "residual fn hc_scale hc_base rms_eps hc_pre_eps hc_sinkhorn_eps hc_post_mult_value sinkhorn_repeat",
    ),
    "mhc_post": _recorded(
        "aiter.ops.mhc.mhc_post",
        "out x residual post_layer_mix comb_res_mix store_nt",
        "out x residual post_layer_mix comb_res_mix",
    ),
}
"""Op to the entry point that serves it."""


def entry_point(op: str) -> Callable[..., Any]:
    """The installed function for ``op``, whose signature takes what we pass.

    Raises :class:`UnavailableError` where aiter or the function is missing, or its parameters are not those recorded.
    """
    recorded = SIGNATURES[op]
    try:
        module = importlib.import_module(recorded.module)
        found: Callable[..., Any] = getattr(module, recorded.name)
    except (ImportError, AttributeError) as error:
        raise UnavailableError(f"aiter has no {recorded.path} for op {op}: {error}; take the triton backend") from None
    check_signature(recorded, found)
    return found


def check_signature(recorded: Recorded, function: Callable[..., Any]) -> None:
    """Raise :class:`UnavailableError` unless ``function`` takes every keyword we pass and needs no other.

    Parameters that are new and have defaults are fine; so is a ``**kwargs``.
    """
    parameters = inspect.signature(function).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    missing = [name for name in recorded.passed if name not in parameters and not open_ended]
    positional = [
        n for n in recorded.passed if n in parameters and parameters[n].kind is inspect.Parameter.POSITIONAL_ONLY
    ]
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [
        name
        for name, p in parameters.items()
        if p.default is p.empty and p.kind not in variadic and name not in recorded.passed
    ]
    if missing or needed or positional:
        what = [f"lacks {', '.join(missing)}"] if missing else []
        what += [f"needs {', '.join(needed)}"] if needed else []
        what += [f"takes {', '.join(positional)} by position only"] if positional else []
        raise UnavailableError(f"{recorded.path} differs from what we call: it {' and '.join(what)}")
