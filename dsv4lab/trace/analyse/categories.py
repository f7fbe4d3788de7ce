"""What kind of work a row is, told by its name: the vocabulary of this model and of the libraries it runs on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dsv4lab.timeline.busy import wall
from dsv4lab.timeline.intervals import Intervals, covered, merge, merge_all
from dsv4lab.timeline.timeline import Kind, Timeline
from dsv4lab.trace.collectives import is_collective

CATEGORIES = (
    "communication",
    "copy",
    "indexer",
    "compressor",
    "attention",
    "mHC",
    "MoE",
    "norm/rope/quant",
    "sampling",
    "GEMM",
    "elementwise",
    "other",
)
_COMMUNICATION, _COPY = CATEGORIES.index("communication"), CATEGORIES.index("copy")
_OTHER = CATEGORIES.index("other")
_PATTERNS = (
    (
        "copy",
        (
            r"^mem(cpy|set)\b|rocclr_(copy|fill)|CatArrayBatchedCopy|direct_copy_kernel|copy_kernel|"
            r"^CopyHostToDevice|^CopyDevice"
        ),
    ),
    (
        "indexer",
        (r"indexer|index_score|index_topk|topk_v4|lightning_index|mqa_logits|csa_tail|index_streams"),
    ),
    ("compressor", r"compress(or|_|$)|_compress|update_compressor_states|hca_compress"),
    (
        "attention",
        (
            r"attn|attention|\bmla|_mla|flash_(fwd|bwd)|fmha|sage_fwd|sparse_(decode|prefill)|paged_decode|^hca_|swa_|"
            r"qk_norm_rope|kv_write|ring_store|inverse_rope|store_kvcache|reshape_and_cache"
        ),
    ),
    ("mHC", r"\bmhc|mhc_|sinkhorn|hyper_connection"),
    ("MoE", r"moe|expert|grouped_gemm|topk_gating|route|permute_sort|\bswiglu"),
    ("norm/rope/quant", r"norm|rope|rotary|quant|cast_to_fp8|scaled_fp|silu|act_and_mul|softmax"),
    ("sampling", r"sampl|argmax|ArgMaxOps|top_?k|top_?p|multinomial|penalt|logits"),
    (
        "GEMM",
        (
            r"gemm|Cijk_|cutlass|nvjet|cublas|matmul|\bb?mm_|splitKreduce|\bhead\b|_proj\b|linear|"
            r"lm_head|q_a\b|q_b\b|kv_a\b|\bw?o_[ab]\b"
        ),
    ),
    ("elementwise", r"elementwise|at::native|reduce_kernel|index_select|gather|scatter|fill|arange|embed|cat\b"),
)
_COMPILED = tuple((CATEGORIES.index(name), re.compile(pattern, re.IGNORECASE)) for name, pattern in _PATTERNS)


@lru_cache(maxsize=65536)
def category_index(name: str) -> int:
    """Position in :data:`CATEGORIES` of a row called ``name``; template arguments do not count."""
    if is_collective(name):
        return _COMMUNICATION
    short = base_name(name)
    for text in (short, name):
        for index, pattern in _COMPILED:
            if pattern.search(text):
                return index
    return _OTHER


def category(name: str) -> str:
    """The category of a row called ``name``."""
    return CATEGORIES[category_index(name)]


@lru_cache(maxsize=65536)
def base_name(name: str) -> str:
    """``name`` without template arguments, parameters and return type: what stays the same between builds."""
    out: list[str] = []
    depth = 0
    for ch in name[:2000]:
        if ch in "<(" and (out or ch == "<"):
            depth += 1
        elif ch in ">)" and depth:
            depth -= 1
        elif not depth:
            out.append(ch)
    text = "".join(out).strip().removeprefix("void ").strip()
    return text or name


def category_ids(timeline: Timeline) -> NDArray[np.int8]:
    """``int8 [n]``: category of every row; copies and fills are ``copy`` whatever they are called."""
    table = np.array([*(category_index(name) for name in timeline.names), _OTHER], np.int8)
    ids = table[timeline.name]
    ids[(timeline.kind == int(Kind.MEMCPY)) | (timeline.kind == int(Kind.MEMSET))] = _COPY
    return ids


@dataclass(frozen=True, slots=True)
class CategoryTime:
    """Work of one category: ``busy_ns`` is its union, ``exclusive_ns`` the part when nothing else ran."""

    category: str
    rows: int
    sum_dur_ns: int
    busy_ns: int
    exclusive_ns: int
    share: float


def by_category(timeline: Timeline) -> list[CategoryTime]:
    """Time by category, largest first; ``share`` is of the union of all busy rows."""
    busy = np.flatnonzero(timeline.busy_mask)
    ids = category_ids(timeline)[busy]
    sets = {int(c): _union(timeline, busy[ids == c]) for c in np.unique(ids)}
    total = merge_all(list(sets.values())).length
    out: list[CategoryTime] = []
    for index, own in sets.items():
        rows = busy[ids == index]
        others = merge_all([s for other, s in sets.items() if other != index])
        hidden = int(covered(others, own.start, own.end).sum())
        share = own.length / total if total else 0.0
        sum_dur = int(timeline.dur_ns[rows].sum())
        out.append(CategoryTime(CATEGORIES[index], len(rows), sum_dur, own.length, own.length - hidden, share))
    return sorted(out, key=lambda c: -c.busy_ns)


def _union(timeline: Timeline, rows: NDArray[np.int64]) -> Intervals:
    return merge(timeline.start_ns[rows], timeline.end_ns[rows])


@dataclass(frozen=True, slots=True)
class Exposure:
    """One owner a moment: compute, then communication, then copy, then idle. The four add up to the wall."""

    wall_ns: int
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    copy_ns: int
    exposed_copy_ns: int
    idle_ns: int


def exposure(timeline: Timeline) -> Exposure:
    """Compute against communication and copies: what of them no compute hides."""
    busy = np.flatnonzero(timeline.busy_mask)
    ids = category_ids(timeline)[busy]
    talk = _union(timeline, busy[ids == _COMMUNICATION])
    copy = _union(timeline, busy[ids == _COPY])
    compute = _union(timeline, busy[(ids != _COMMUNICATION) & (ids != _COPY)])
    both = merge_all([compute, talk])
    every = merge_all([both, copy])
    first, last = wall(timeline)
    return Exposure(
        wall_ns=last - first,
        compute_ns=compute.length,
        communication_ns=talk.length,
        exposed_communication_ns=both.length - compute.length,
        copy_ns=copy.length,
        exposed_copy_ns=every.length - both.length,
        idle_ns=last - first - every.length,
    )
