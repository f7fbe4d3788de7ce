"""Which kernels of a replayed step belong to which op: the engine's op list against the kernels' names, in order.

A replayed graph says nothing of ops. But its rows come in the order of the list, most of them are this project's own
kernels, and those are named; what lies between is torch's. Kernels become letters and ops patterns of letters, so that
one regular expression aligns both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dsv4lab.errors import TraceError
from dsv4lab.timeline.program import ProgramOp

OTHER = "x"
LETTERS = {
    "_mix_kernel": "m", "_collapse_kernel": "c", "_rms_norm_kernel": "n", "_norm_quant_kernel": "z",
    "_block_fp8_gemm_kernel": "g", "_qk_norm_rope_store_kernel": "k", "_sparse_decode_kernel": "a",
    "_reduce_kernel": "r", "_rotate_kernel": "t", "_hash_route_kernel": "h", "_route_kernel": "h",
    "_swiglu_kernel": "s", "_gate_up_kernel": "u", "_down_kernel": "d", "_compress_kernel": "C",
    "_compress_channels_kernel": "C", "_compress_finish_kernel": "F", "_ring_store_kernel": "R",
    "_index_score_kernel": "I", "index_score_hopper_kernel": "I",
    "_index_topk_kernel": "T", "_csa_stream_kernel": "S", "_bf16_gemv_kernel": "b", "_bf16_gemm_kernel": "b",
    "_rope_table_kernel": "p", "_few_vector_kernel": "g", "_few_dot_kernel": "g", "_mix_few_kernel": "m",
    "_collapse_few_kernel": "c", "hopper_attention_kernel": "a", "_index_topk_row_kernel": "T",
    "_route_few_kernel": "h", "_gate_up_lanes_kernel": "u", "_down_lanes_kernel": "d", "_gate_up_tiles_kernel": "u",
    "_down_tiles_kernel": "d", "_combine_kernel": "w", "_route_words_kernel": "h", "_index_topk_tail_kernel": "T",
    "_gate_up_ring_kernel": "u", "_down_ring_kernel": "d", "_add_kernel": "e",
    "_many_kernel": "M", "mhc_once_kernel": "M", "_few_lanes_kernel": "g", "_bf16_lanes_kernel": "b",
    "_inverse_rope_quant_kernel": "t",
}  # fmt: skip
"""The project's own kernels; every other one is :data:`OTHER`."""

_LINEAR = ("(?:z?gr?|br?|x+)",)
PATTERNS: dict[str, tuple[str, ...]] = {
    "embed": ("x+?",), "rope_table": ("(?:p+|x+)",), "head.rows": ("x+",), "lm_head": _LINEAR,
    "mhc_pre": ("(?:mx*?c|M)", "n?", "z?"), "mhc_post_pre": ("(?:mx*?(?:mx*?)?c|M)", "n?", "z?"), "mhc_post": ("m",),
    "mhc_head": ("m", "c"),
    "attn_norm": ("n",), "ffn_norm": ("n",), "head.norm": ("n",), "q_norm": ("[nz]",),
    "qkv_a": _LINEAR, "q_b": _LINEAR, "o_a": _LINEAR, "o_b": _LINEAR,
    "qk_norm_rope_store": ("kk?",), "attention": ("a", "r?"), "inverse_rope": ("t",),
    "compressor.gemm": _LINEAR, "compressor.store": ("C", "F?", "R?"),
    "indexer.compressor.gemm": _LINEAR, "indexer.compressor.store": ("C", "F?", "R?"),
    "compressor.side_gemm": _LINEAR, "indexer.weights_gemm": _LINEAR, "indexer.weights": _LINEAR,
    "indexer.q_b": _LINEAR, "indexer.q_rope": ("t",),
    "indexer.topk": ("I", "T"), "indexer.csa_tail": ("S",),
    "moe.route": ("h",), "moe.shared": ("z?", "g", "r?", "s?", "z?", "g", "r?"), "moe.experts": ("x*u", "d", "w?"),
    "moe.combine": ("(?:x+|e)",),
}  # fmt: skip
"""By op, its kernels in order. Between and behind them others may stand."""


def op_kernels(ops: Sequence[ProgramOp], kernels: Sequence[str]) -> list[range]:
    """The numbers of ``kernels`` (names, in order of start) that belong to each of ``ops``, each at least one.

    Raises:
        TraceError: an op whose kernels are not known, or kernels that are not those of this list: the text names the
            first op for which there are none, and what is there instead.

    """
    for op in ops:
        if op.name not in PATTERNS:
            raise TraceError(f"the kernels of op {op.label} are not known to whatif --program")
    letters = "".join(LETTERS.get(name, OTHER) for name in kernels)
    patterns = [f"({'x*?'.join(PATTERNS[op.name])}x*?)" for op in ops]
    found = re.fullmatch("".join(patterns), letters)
    if found is None:
        raise TraceError(_first_gap(ops, patterns, letters, kernels))
    return [range(*found.span(i + 1)) for i in range(len(ops))]


def _first_gap(ops: Sequence[ProgramOp], patterns: Sequence[str], letters: str, kernels: Sequence[str]) -> str:
    low, high = 0, len(ops)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if re.match("".join(patterns[:middle]), letters) else (low, middle - 1)
    matched = re.match("".join(patterns[:low]), letters)
    at = matched.end() if matched else 0
    rest = ", ".join(name[:40] for name in kernels[at : at + 3]) or "nothing"
    if low == len(ops):
        return f"the trace goes on behind the last op of the program: kernel {at} of {len(kernels)} is {rest}"
    return f"the trace does not fit the program: op {ops[low].label} should begin at kernel {at}, which is {rest}"
