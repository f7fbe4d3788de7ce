"""DeepSeek-V4 ops in a trace, by the engine's own op names, by annotation, or by kernel names of public runtimes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dsv4lab.config.model import LayerKind
from dsv4lab.config.presets import preset
from dsv4lab.overlap.plan import SIDE_GEMM
from dsv4lab.predict.layer_ops import StepShape, kind_ops
from dsv4lab.timeline.timeline import Timeline

UNKNOWN_OP = ""

_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"index\w*.*compress|compress\w*.*index", "indexer.compressor.store"),
    (r"save_partial_states|compressor_states", "compressor.state"),
    (r"(?<!de)compress", "compressor.store"),
    (r"mqa_logits|indexer_(score|logits)|index_score|topk_transform|index_topk", "indexer.topk"),
    (r"indexer_q_rope|indexer_q_quant", "indexer.q_rope"),
    (r"sparse_attn|v4_attention|v4_paged|(^|_)(hca|csa)_|sparse_decode|flash_mla|splitkv_mla|unified_kv\w*decode",
     "attention"),
    (r"qk_norm_rope|fused_qk_norm", "qk_norm_rope_store"),
    (r"q_kv_rms_?norm", "q_norm"),
    (r"inv\w*_rope", "inverse_rope"),
    (r"all_?reduce|cross_device_reduce|nccl|rccl|reduce_scatter|all_?gather", "all_reduce"),
    (r"sinkhorn|(^|[_\d])m?hc_(pre|post)|hyper_conn", "mhc_post_pre"),
    (r"topk_softplus|biased_grouped_topk|moe_(route|sorting|align)|topk_gating|hash_topk|v4_router", "moe.route"),
    (r"_topk_forward|routing_(compute|memset)|sum_bitmatrix", "moe.route"),
    (r"fused_moe|moe_?gemm|ck_moe|grouped_gemm|moe_ck|MoeFlatmm|moe_kernel|mfma_moe\d|matmul_ogs|finalize_matmul",
     "moe.experts"),
)  # fmt: skip
"""DeepSeek-V4 ops; the first that fits counts, so compressors come before the attention that they are named after."""

_OTHER_MODELS: tuple[tuple[str, str], ...] = (
    (r"paged_attention|unified_attention|fmha|flash_attn|flash_fwd|decode_attention|attn_fwd", "attention"),
    (r"store_kv_?cache|reshape_and_cache|kv_cache_store", "kv_store"),
    (r"rotary|(^|_)rope(_|$)", "rope"),
    (r"rms_?norm|layer_?norm", "norm"),
    (r"act_and_mul|swiglu|silu", "activation"),
)
"""Ops that any decoder has, so that a baseline of another model can be asked by name too."""

ENGINE_ONLY = (SIDE_GEMM, "indexer.weights_gemm")
"""Ops of the engine that the cost model counts within others."""

_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), op) for pattern, op in (*_PATTERNS, *_OTHER_MODELS))
_GEMM = re.compile(r"Cijk_|gemm|gemv|nvjet|cutlass|wvSplitK|hipblaslt|matmul", re.IGNORECASE)
_NUMBER = re.compile(r"\.\d+$")
_BACK = 3
"""How many rows before a compressor's store its product may be."""


def own_names() -> frozenset[str]:
    """Names of the engine's decode ops, parts of fused ops included."""
    ops = [
        op for kind in (LayerKind.CSA, LayerKind.HCA) for op in kind_ops(preset("pro"), kind, StepShape(1, 1, 1024, 8))
    ]
    return frozenset({*ENGINE_ONLY, *(n for op in ops for n in (op.name, *(p.name for p in op.parts)))})


def recognise(timeline: Timeline, rows: Sequence[int]) -> list[str]:
    """The op of each of ``rows`` (row numbers, in order of start), ``""`` where nothing fits.

    The product right before a compressor's store is taken for its own, and so is what saves its states.
    """
    own = own_names()
    known: dict[tuple[int, int], str] = {}
    found: list[str] = []
    for row in rows:
        key = (int(timeline.name[row]), int(timeline.op[row]))
        if key not in known:
            texts = [timeline.names[k] for k in reversed(key) if k >= 0]
            known[key] = next((op for op in (_op_of(t, own) for t in texts) if op), UNKNOWN_OP)
        found.append(known[key])
    _name_states(found)
    for at, op in enumerate(found):
        if op.endswith("compressor.store") and not (at and found[at - 1] == op):
            _claim_product(timeline, rows, found, at)
    return found


def _op_of(text: str, own: frozenset[str]) -> str:
    bare = _NUMBER.sub("", text)  # an op of several kernels numbers them
    if bare in own:
        return bare
    return next((op for pattern, op in _COMPILED if pattern.search(text)), UNKNOWN_OP)


def _name_states(found: list[str]) -> None:
    """Saving states is part of the store of the compressor that comes next, at the end of the one that came last."""
    stores = [(at, op) for at, op in enumerate(found) if op.endswith("compressor.store")]
    for at, op in enumerate(found):
        if op == "compressor.state":
            after = next((name for i, name in stores if i > at), None)
            found[at] = after or (stores[-1][1] if stores else "compressor.store")


def _claim_product(timeline: Timeline, rows: Sequence[int], found: list[str], at: int) -> None:
    name = found[at].removesuffix("store") + "gemm"
    for back in range(at - 1, max(-1, at - 1 - _BACK), -1):
        if found[back] == name:
            return
        if found[back] == UNKNOWN_OP and _GEMM.search(timeline.names[int(timeline.name[rows[back]])]):
            found[back] = name
            return
