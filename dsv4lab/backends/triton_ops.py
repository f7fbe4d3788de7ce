"""The GPU backend: the Triton kernels of ``dsv4_kernels``; plain products of many tokens are the vendor library's."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from dsv4_kernels import invariant
from dsv4_kernels.formats import FP8_GROUP
from dsv4_kernels.hadamard import hadamard
from dsv4_kernels.mhc_pre_post._launch import QUANT_WIDTH
from dsv4_kernels.weights import Fp8Weight, Weight, quantised

from dsv4lab.backends.base import Ops, QuantRows, Tensor
from dsv4lab.errors import UnavailableError, UsageError
from dsv4lab.kv.pool import Rows

SCORE_BUDGET = 256 << 20  # bytes of scores held at once
OWN_GEMM_TOKENS, OWN_GEMM_ROWS = 64, 8192  # most tokens, and rows of the weight, of bf16 products by our own kernel
KERNELS = {
    "rms_norm": "norm_quant.triton_op:rms_norm",
    "rms_norm_quant": "norm_quant.triton_op:rms_norm_quant",
    "mhc_pre": "mhc_pre_post.triton_op:mhc_pre",
    "mhc_post": "mhc_pre_post.triton_op:mhc_post",
    "mhc_post_pre": "mhc_pre_post.triton_op:mhc_post_pre",
    "mhc_head": "mhc_pre_post.triton_op:mhc_head",
    "q_norm_rope": "qk_norm_rope_store.triton_op:q_norm_rope",
    "kv_norm_rope": "qk_norm_rope_store.triton_op:kv_norm_rope",
    "kv_norm_rope_store": "qk_norm_rope_store.triton_op:kv_norm_rope_store",
    "ring_store": "ring_store.triton_op:ring_store",
    "rotate": "inverse_rope.triton_op:rotate",
    "compress": "compress.triton_op:compress",
    "index_score": "index_score.triton_op:index_score",
    "index_score_paged": "index_score.triton_op:index_score_paged",
    "index_topk": "index_topk.triton_op:index_topk",
    "csa_stream": "index_streams.triton_op:csa_stream",
    "sparse_decode": "sparse_decode.triton_op:sparse_decode",
    "sparse_prefill": "sparse_prefill.triton_op:sparse_prefill",
    "moe_route": "moe_route.triton_op:moe_route",
    "moe_gemm": "moe_gemm.triton_op:moe_gemm",
    "moe_gemm_quant": "moe_gemm.triton_op:moe_gemm_quant",
    "quant": "norm_quant.triton_op:quant",
    "bf16_gemm": "bf16_gemm.triton_op:bf16_gemm",
    "rope_table": "inverse_rope.triton_op:rope_table",
    "block_fp8_gemm": "block_fp8_gemm.triton_op:block_fp8_gemm",
    "block_fp8_gemm_quant": "block_fp8_gemm.triton_op:block_fp8_gemm_quant",
    "block_fp8_gemm_swiglu": "block_fp8_gemm.triton_op:block_fp8_gemm_swiglu",
    "swiglu": "swiglu.triton_op:swiglu_rows",
    "add": "add.triton_op:add",
}
"""Op to the wrapper that implements it, below ``dsv4_kernels``."""


@cache
def kernel(op: str) -> Callable[..., Any]:
    """The Triton kernel of ``op``; imports Triton.

    Raises :class:`UsageError`, listing what exists, where there is none, and :class:`UnavailableError` without Triton.
    """
    if op not in KERNELS:
        raise UsageError(f"there is no Triton kernel for op {op!r}; there are {', '.join(sorted(KERNELS))}")
    if importlib.util.find_spec("triton") is None:
        raise UnavailableError("triton is not installed: pip install 'dsv4lab[triton]', or take the torch backend")
    module, _, name = KERNELS[op].partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(f"dsv4_kernels.{module}"), name)
    return found


class TritonOps:
    """See :class:`dsv4lab.backends.base.Ops`. Tensors live on one CUDA or ROCm device."""

    def __init__(self) -> None:
        for op in KERNELS:
            kernel(op)
        self.add: Callable[..., None] = kernel("add")
        self.mhc_pre: Callable[..., None] = kernel("mhc_pre")
        self.mhc_post: Callable[..., None] = kernel("mhc_post")
        self.mhc_post_pre: Callable[..., None] = kernel("mhc_post_pre")
        self.mhc_head: Callable[..., None] = kernel("mhc_head")
        self.ring_store: Callable[..., None] = kernel("ring_store")
        self.compress: Callable[..., None] = kernel("compress")
        self.index_score: Callable[..., Tensor] = kernel("index_score")
        self.index_topk: Callable[..., None] = kernel("index_topk")
        self.csa_stream: Callable[..., None] = kernel("csa_stream")
        self.sparse_decode: Callable[..., None] = kernel("sparse_decode")
        self.sparse_prefill: Callable[..., None] = kernel("sparse_prefill")
        self.moe_route: Callable[..., None] = kernel("moe_route")

    def linear(self, x: Tensor | QuantRows, weight: Weight, out: Tensor) -> None:
        """See :meth:`Ops.linear`; for fp8 weights the activations are quantised too (dsv4-spec 2.14)."""
        if isinstance(x, QuantRows):
            if not isinstance(weight, Fp8Weight):
                raise TypeError("activations in fp8 are multiplied by weights in fp8 only")
            kernel("block_fp8_gemm")(x.codes, x.scales, weight.codes, weight.scales, out)
        elif isinstance(weight, Tensor):
            _product(x, weight, out)
        elif isinstance(weight, Fp8Weight):
            kernel("block_fp8_gemm_quant")(x, weight.codes, weight.scales, out)
        else:
            raise UnavailableError("the triton backend multiplies by fp4 weights in experts only")

    def quantises(self, weight: Weight) -> bool:
        """See :meth:`Ops.quantises`."""
        return isinstance(weight, Fp8Weight)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor | QuantRows) -> None:
        """See :meth:`Ops.rms_norm`."""
        if isinstance(out, QuantRows):
            kernel("rms_norm_quant")(x, weight, eps, out.codes, out.scales)
        else:
            kernel("rms_norm")(x, weight, eps, out)

    def norms_to_fp8(self, width: int) -> bool:
        """See :meth:`Ops.norms_to_fp8`."""
        return width % FP8_GROUP == 0 and width <= QUANT_WIDTH

    def rows_alike(self, tokens: int, weight: Weight) -> bool:
        """See :meth:`Ops.rows_alike`: our own products of few tokens are made row by row."""
        return isinstance(weight, Tensor) and _ours(tokens, weight)

    def moe_gemm(
        self, x: Tensor, experts: Tensor, weights: Tensor, w13: Weight, w2: Weight, limit: float, out: Tensor
    ) -> None:
        """See :meth:`Ops.moe_gemm`."""
        if isinstance(w13, Tensor):
            kernel("moe_gemm")(x, experts, weights, w13, w2, limit, out)
        else:
            gate_up, down = quantised(w13), quantised(w2)
            kernel("moe_gemm_quant")(
                x, experts, weights, gate_up.codes, gate_up.scales, down.codes, down.scales, limit, out
            )

    def grouped_linear(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """See :meth:`Ops.grouped_linear`."""
        if _ours(x.shape[0], weight) and (x.dtype is torch.bfloat16 or invariant.active()):
            kernel("bf16_gemm")(x, weight, out)
            return
        out.copy_(torch.bmm(x.transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1))

    def rope_table(self, positions: Tensor, frequencies: Tensor, out: Tensor) -> None:
        """See :meth:`Ops.rope_table`."""
        kernel("rope_table")(positions, frequencies, out)

    def q_norm_rope(self, q: Tensor, rope: Tensor, eps: float) -> None:
        """See :meth:`Ops.q_norm_rope`."""
        kernel("q_norm_rope")(q, rope[:, 0], rope[:, 1], eps)

    def kv_norm_rope(self, kv: Tensor, weight: Tensor, rope: Tensor, eps: float, out: Tensor) -> None:
        """See :meth:`Ops.kv_norm_rope`."""
        kernel("kv_norm_rope")(kv, weight, rope[:, 0], rope[:, 1], eps, out)

    def kv_norm_rope_store(
        self, kv: Tensor, weight: Tensor, rope: Tensor, eps: float, pool: Rows, rows: Tensor
    ) -> None:
        """See :meth:`Ops.kv_norm_rope_store`."""
        kernel("kv_norm_rope_store")(kv, weight, rope[:, 0], rope[:, 1], eps, pool, rows)

    def rotate(self, x: Tensor, rope: Tensor, *, inverse: bool = False) -> None:
        """See :meth:`Ops.rotate`."""
        kernel("rotate")(x, rope[:, 0], rope[:, 1], inverse=inverse)

    def index_select(
        self,
        q: Tensor,
        weights: Tensor,
        keys: Rows,
        page_table: Tensor,
        request: Tensor,
        visible: Tensor,
        *,
        entries_per_page: int,
        out: Tensor,
        scale: float = 1.0,
    ) -> None:
        """See :meth:`Ops.index_select`."""
        room = page_table.shape[1] * entries_per_page
        block = max(1, SCORE_BUDGET // (4 * room))
        for a in range(0, q.shape[0], block):
            part = slice(a, a + block)
            seen = visible[part]
            scores = torch.empty(seen.shape[0], room, dtype=torch.float32, device=q.device)
            kernel("index_score_paged")(
                q[part],
                weights[part],
                keys,
                page_table,
                request[part],
                seen,
                entries_per_page=entries_per_page,
                out=scores,
                scale=scale,
            )
            self.index_topk(scores, seen, out.shape[1], out[part])

    def hadamard(self, x: Tensor) -> None:
        """See :meth:`Ops.hadamard`."""
        x.copy_(hadamard(x))

    def mlp(self, x: Tensor | QuantRows, w13: Weight, w2: Weight, limit: float, out: Tensor) -> None:
        """See :meth:`Ops.mlp`."""
        tokens, inter = out.shape[0], w2.shape[1]
        h = out.new_empty(tokens, w13.shape[0])
        self.linear(x, w13, h)
        if isinstance(w2, Fp8Weight):
            kernel("block_fp8_gemm_swiglu")(h, limit, w2.codes, w2.scales, out)
            return
        a = out.new_empty(tokens, inter)
        kernel("swiglu")(h, limit, a)
        self.linear(a, w2, out)


def _ours(tokens: int, weight: Tensor) -> bool:
    """Whether a bf16 product is our kernel's: few tokens, and too few rows to keep a library's kernel busy.

    All of them are where batches must not differ, since a library chooses its kernels by the shape.
    """
    few = tokens <= OWN_GEMM_TOKENS and weight.shape[-2] <= OWN_GEMM_ROWS
    return invariant.active() or (weight.dtype is torch.bfloat16 and few)


def _product(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """``out = x @ weight.T`` with float32 sums; ``out`` may be float32 where the operands are bf16.

    That is CUDA's library's alone: elsewhere, under Triton's interpreter too, such a product is our kernel's.
    """
    if not invariant.active() and (weight.dtype is not torch.bfloat16 or x.dtype is not torch.bfloat16):
        torch.mm(x.to(weight.dtype), weight.t(), out=out)
    elif _ours(x.shape[0], weight) or (out.dtype is torch.float32 and (x.is_cpu or torch.version.hip is not None)):
        kernel("bf16_gemm")(x, weight, out)
    elif out.dtype is torch.float32:
        torch.mm(x, weight.t(), out_dtype=torch.float32, out=out)
    else:
        torch.mm(x, weight.t(), out=out)


def _checked(ops: Ops) -> Ops:
    return ops


@cache
def triton_ops() -> Any:
    """The one instance. Raises :class:`UnavailableError` without Triton."""
    return _checked(TritonOps())
