"""DeepSeek-V4 ops in a trace, by the engine's own op names, by annotation, or by kernel names of public runtimes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dsv4lab.config.model import LayerKind
from dsv4lab.config.presets import preset
from dsv4lab.predict.layer_ops import StepShape, kind_ops
from dsv4lab.timeline.timeline import Timeline

UNKNOWN_OP = ""

_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"index\w*.*compress|compress\w*.*index", "indexer.compressor.store"),
    (r"fused_compress_attn|compressor_states|compress_forward|_compress\w*_kernel", "compressor.store"),
    (r"sparse_attn_v4|v4_attention|v4_paged|^hca_|^csa_|sparse_decode|flash_mla|unified_kv\w*decode", "attention"),
    (r"qk_norm_rope|fused_qk_norm", "qk_norm_rope_store"),
    (r"mqa_logits|indexer_(score|logits)|index_score|topk_transform|index_topk", "indexer.topk"),
    (r"inv\w*_rope", "inverse_rope"),
    (r"all_?reduce|cross_device_reduce|nccl|rccl|reduce_scatter|all_?gather", "all_reduce"),
    (r"sinkhorn|(^|_)m?hc_(pre|post)|hyper_conn", "mhc_post_pre"),
    (r"topk_softplus|biased_grouped_topk|moe_(route|sorting|align)|topk_gating|hash_topk", "moe.route"),
    (r"fused_moe|moe_gemm|ck_moe|grouped_gemm|moe_ck|MoeFlatmm|moe_kernel", "moe.experts"),
)
_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), op) for pattern, op in _PATTERNS)
_GEMM = re.compile(r"Cijk_|gemm|nvjet|cutlass|wvSplitK|hipblaslt|matmul", re.IGNORECASE)
_NUMBER = re.compile(r"\.\d+$")
_BACK = 3
"""How many rows before a compressor's store its product may be."""


def own_names() -> frozenset[str]:
    """Names of the engine's decode ops, parts of fused ops included."""
    ops = [
        op for kind in (LayerKind.CSA, LayerKind.HCA) for op in kind_ops(preset("pro"), kind, StepShape(1, 1, 1024, 8))
    ]
    return frozenset(n for op in ops for n in (op.name, *(p.name for p in op.parts)))


def recognise(timeline: Timeline, rows: Sequence[int]) -> list[str]:
    """The op of each of ``rows`` (row numbers, in order of start), ``""`` where nothing fits.

    The product right before a compressor's store is taken for its own.
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
    for at, op in enumerate(found):
        if op.endswith("compressor.store"):
            _claim_product(timeline, rows, found, at)
    return found


def _op_of(text: str, own: frozenset[str]) -> str:
    bare = _NUMBER.sub("", text)  # an op of several kernels numbers them
    if bare in own:
        return bare
    return next((op for pattern, op in _COMPILED if pattern.search(text)), UNKNOWN_OP)


def _claim_product(timeline: Timeline, rows: Sequence[int], found: list[str], at: int) -> None:
    name = found[at].removesuffix("store") + "gemm"
    for back in range(at - 1, max(-1, at - 1 - _BACK), -1):
        if found[back] == name:
            return
        if found[back] == UNKNOWN_OP and _GEMM.search(timeline.names[int(timeline.name[rows[back]])]):
            found[back] = name
            return
