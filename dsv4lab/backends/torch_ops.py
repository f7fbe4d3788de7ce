"""The CPU backend: the plain torch references of ``dsv4_kernels``, and their compiled siblings for few tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from dsv4_kernels.compress.cpu import compress_cpu
from dsv4_kernels.hadamard import hadamard
from dsv4_kernels.index_score import index_score_reference
from dsv4_kernels.index_streams.cpu import csa_stream_cpu
from dsv4_kernels.index_topk.cpu import index_select_cpu, index_topk_cpu
from dsv4_kernels.inverse_rope.cpu import rope_table_cpu, rotate_cpu
from dsv4_kernels.mhc_pre_post.cpu import mhc_head_cpu, mhc_post_cpu, mhc_post_pre_cpu, mhc_pre_cpu
from dsv4_kernels.moe_gemm import moe_gemm_quant_reference
from dsv4_kernels.moe_gemm.cpu import mlp_cpu, moe_gemm_cpu
from dsv4_kernels.moe_route.cpu import moe_route_cpu
from dsv4_kernels.norm_quant.cpu import rms_norm_cpu
from dsv4_kernels.qk_norm_rope_store.cpu import kv_norm_rope_cpu, kv_norm_rope_store_cpu, q_norm_rope_cpu
from dsv4_kernels.ring_store import ring_store_reference
from dsv4_kernels.sparse_decode.cpu import sparse_decode_cpu
from dsv4_kernels.sparse_prefill import sparse_prefill_reference
from dsv4_kernels.weights import Weight, dense, quantised

from dsv4lab.backends.base import Ops, QuantRows, Tensor
from dsv4lab.kv.pool import Rows

_NOT_QUANTISED = "the torch backend quantises no activations"


class TorchOps:
    """See :class:`dsv4lab.backends.base.Ops`."""

    rms_norm: Callable[..., None] = staticmethod(rms_norm_cpu)
    mhc_pre: Callable[..., None] = staticmethod(mhc_pre_cpu)
    mhc_post: Callable[..., None] = staticmethod(mhc_post_cpu)
    mhc_post_pre: Callable[..., None] = staticmethod(mhc_post_pre_cpu)
    mhc_head: Callable[..., None] = staticmethod(mhc_head_cpu)
    ring_store: Callable[..., None] = staticmethod(ring_store_reference)
    compress: Callable[..., None] = staticmethod(compress_cpu)
    index_score: Callable[..., Tensor] = staticmethod(index_score_reference)
    index_topk: Callable[..., None] = staticmethod(index_topk_cpu)
    index_select: Callable[..., None] = staticmethod(index_select_cpu)
    csa_stream: Callable[..., None] = staticmethod(csa_stream_cpu)
    sparse_decode: Callable[..., None] = staticmethod(sparse_decode_cpu)
    sparse_prefill: Callable[..., None] = staticmethod(sparse_prefill_reference)
    moe_route: Callable[..., None] = staticmethod(moe_route_cpu)
    rope_table: Callable[..., None] = staticmethod(rope_table_cpu)

    def linear(self, x: Tensor | QuantRows, weight: Weight, out: Tensor) -> None:
        """See :meth:`Ops.linear`; a quantised weight is decoded, activations stay as they are."""
        if isinstance(x, QuantRows):
            raise TypeError(_NOT_QUANTISED)
        matrix = dense(weight, x.dtype)
        matrix = matrix.to(torch.promote_types(matrix.dtype, out.dtype))
        torch.mm(x.to(matrix.dtype), matrix.t(), out=out)

    def add(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """See :meth:`Ops.add`."""
        torch.add(a, b, out=out)

    def quantises(self, weight: Weight) -> bool:
        """See :meth:`Ops.quantises`."""
        return False

    def norms_to_fp8(self, width: int) -> bool:
        """See :meth:`Ops.norms_to_fp8`."""
        return False

    def rows_alike(self, tokens: int, weight: Weight) -> bool:
        """See :meth:`Ops.rows_alike`; a CPU library's blocks depend on the shape."""
        return False

    def moe_gemm(
        self, x: Tensor, experts: Tensor, weights: Tensor, w13: Weight, w2: Weight, limit: float, out: Tensor
    ) -> None:
        """See :meth:`Ops.moe_gemm`."""
        if isinstance(w13, Tensor) and isinstance(w2, Tensor):
            moe_gemm_cpu(x, experts, weights, w13, w2, limit, out)
        else:
            gate_up, down = quantised(w13), quantised(w2)
            moe_gemm_quant_reference(
                x, experts, weights, gate_up.codes, gate_up.scales, down.codes, down.scales, limit, out
            )

    def mlp(self, x: Tensor | QuantRows, w13: Weight, w2: Weight, limit: float, out: Tensor) -> None:
        """See :meth:`Ops.mlp`."""
        if isinstance(x, QuantRows):
            raise TypeError(_NOT_QUANTISED)
        mlp_cpu(x, dense(w13, x.dtype), dense(w2, x.dtype), limit, out)

    def grouped_linear(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """See :meth:`Ops.grouped_linear`."""
        out.copy_(torch.bmm(x.transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1))

    def q_norm_rope(self, q: Tensor, rope: Tensor, eps: float) -> None:
        """See :meth:`Ops.q_norm_rope`."""
        q_norm_rope_cpu(q, rope[:, 0], rope[:, 1], eps)

    def kv_norm_rope(self, kv: Tensor, weight: Tensor, rope: Tensor, eps: float, out: Tensor) -> None:
        """See :meth:`Ops.kv_norm_rope`."""
        kv_norm_rope_cpu(kv, weight, rope[:, 0], rope[:, 1], eps, out)

    def kv_norm_rope_store(
        self, kv: Tensor, weight: Tensor, rope: Tensor, eps: float, pool: Rows, rows: Tensor
    ) -> None:
        """See :meth:`Ops.kv_norm_rope_store`."""
        kv_norm_rope_store_cpu(kv, weight, rope[:, 0], rope[:, 1], eps, pool, rows)

    def rotate(self, x: Tensor, rope: Tensor, *, inverse: bool = False) -> None:
        """See :meth:`Ops.rotate`."""
        rotate_cpu(x, rope[:, 0], rope[:, 1], inverse=inverse)

    def hadamard(self, x: Tensor) -> None:
        """See :meth:`Ops.hadamard`."""
        x.copy_(hadamard(x))


def _checked(ops: Ops) -> Ops:
    return ops


TORCH_OPS: Any = _checked(TorchOps())
"""The one instance; it holds no state."""
