"""The ops that model code calls. Every backend implements all of them on its own device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from dsv4_kernels.formats import FP8_GROUP
from dsv4_kernels.weights import Weight

from dsv4lab.kv.pool import Rows

Tensor = torch.Tensor
QUANT_GROUP = FP8_GROUP
"""Columns of activations that share a scale."""


@dataclass(frozen=True, slots=True)
class QuantRows:
    """Activations in fp8: e4m3 ``codes [T, K]`` with e8m0 ``scales``, ``uint8 [T, K / 128]`` (dsv4-spec 2.14)."""

    codes: Tensor
    scales: Tensor


class Ops(Protocol):
    """One method per op. Tensors are written in place or through ``out``; shapes are those of the references."""

    def linear(self, x: Tensor | QuantRows, weight: Weight, out: Tensor) -> None:
        """``out = x @ weight.T``: ``[T, K]``, ``[N, K]``, ``[T, N]``.

        A float32 ``out`` of bf16 operands holds the float32 sums. ``x`` may be in fp8 where ``weight`` is one that
        :meth:`quantises`.
        """
        ...

    def quantises(self, weight: Weight) -> bool:
        """Whether :meth:`linear` multiplies ``weight`` by activations in fp8, whatever they are given as."""
        ...

    def norms_to_fp8(self, width: int) -> bool:
        """Whether :meth:`mhc_pre` gives rows so wide in fp8 too without a launch more."""
        ...

    def rows_alike(self, tokens: int, weight: Weight) -> bool:
        """Whether :meth:`linear` of ``tokens`` tokens gives each row of ``weight`` the same bits whatever rows are
        beside it, so that products with one input may be one product.
        """
        ...

    def grouped_linear(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """``out[:, g] = x[:, g] @ weight[g].T``: ``[T, G, K]``, ``[G, N, K]``, ``[T, G, N]`` (dsv4-spec 2.8)."""
        ...

    def rope_table(self, positions: Tensor, frequencies: Tensor, out: Tensor) -> None:
        """Cosines ``out[:, 0]`` and sines ``out[:, 1]`` of ``positions [T]``; float32 ``[T, 2, rope_dim / 2]``."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor | QuantRows) -> None:
        """See ``dsv4_kernels.norm_quant``; in fp8 where something is to be multiplied that :meth:`quantises`."""
        ...

    def mhc_pre(
        self,
        x: Tensor,
        fn: Tensor,
        base: Tensor,
        scale: Tensor,
        *,
        rms_eps: float,
        hc_eps: float,
        iters: int,
        out: Tensor,
        post: Tensor,
        comb: Tensor,
        norm: Tensor | None = None,
        normed: Tensor | None = None,
        codes: Tensor | None = None,
        scales: Tensor | None = None,
    ) -> None:
        """See ``dsv4_kernels.mhc_pre_post``; codes where something is to be multiplied that :meth:`quantises`."""
        ...

    def mhc_post(self, y: Tensor, post: Tensor, comb: Tensor, x: Tensor) -> None:
        """See ``dsv4_kernels.mhc_pre_post``."""
        ...

    def mhc_post_pre(
        self,
        y: Tensor,
        post: Tensor,
        comb: Tensor,
        x: Tensor,
        fn: Tensor,
        base: Tensor,
        scale: Tensor,
        *,
        rms_eps: float,
        hc_eps: float,
        iters: int,
        out: Tensor,
        new_post: Tensor,
        new_comb: Tensor,
        norm: Tensor | None = None,
        normed: Tensor | None = None,
        codes: Tensor | None = None,
        scales: Tensor | None = None,
    ) -> None:
        """:meth:`mhc_post`, then :meth:`mhc_pre` of the next sublayer; the new mixes may be the old tensors."""
        ...

    def mhc_head(
        self, x: Tensor, fn: Tensor, base: Tensor, scale: Tensor, *, rms_eps: float, hc_eps: float, out: Tensor
    ) -> None:
        """See ``dsv4_kernels.mhc_pre_post``."""
        ...

    def q_norm_rope(self, q: Tensor, rope: Tensor, eps: float) -> None:
        """See ``dsv4_kernels.qk_norm_rope_store``; ``rope`` as :meth:`rope_table` writes it."""
        ...

    def kv_norm_rope(self, kv: Tensor, weight: Tensor, rope: Tensor, eps: float, out: Tensor) -> None:
        """See ``dsv4_kernels.qk_norm_rope_store``."""
        ...

    def kv_norm_rope_store(
        self, kv: Tensor, weight: Tensor, rope: Tensor, eps: float, pool: Rows, rows: Tensor
    ) -> None:
        """See ``dsv4_kernels.qk_norm_rope_store``."""
        ...

    def ring_store(self, kv: Tensor, src: Tensor, pool: Rows, dst: Tensor) -> None:
        """See ``dsv4_kernels.ring_store``."""
        ...

    def rotate(self, x: Tensor, rope: Tensor, *, inverse: bool = False) -> None:
        """Rotate the tail of ``x [T, H, d]`` in place; see ``dsv4_kernels.inverse_rope``."""
        ...

    def hadamard(self, x: Tensor) -> None:
        """Rotate ``x [..., n]`` in place by the orthonormal Hadamard matrix; see ``dsv4_kernels.hadamard``."""
        ...

    def compress(
        self,
        ks: Tensor,
        state: Tensor,
        ape: Tensor,
        norm_weight: Tensor,
        frequencies: Tensor,
        eps: float,
        *,
        gather_state: Tensor,
        gather_flat: Tensor,
        from_flat: Tensor,
        positions: Tensor,
        pool: Rows,
        rows: Tensor,
        state_src: Tensor,
        state_dst: Tensor,
    ) -> None:
        """See ``dsv4_kernels.compress``."""
        ...

    def index_score(self, q: Tensor, weights: Tensor, keys: Tensor, *, scale: float = 1.0) -> Tensor:
        """See ``dsv4_kernels.index_score``."""
        ...

    def index_topk(self, scores: Tensor, visible: Tensor, k: int, out: Tensor) -> None:
        """See ``dsv4_kernels.index_topk``."""
        ...

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
        """``index_score_paged`` of ``dsv4_kernels.index_score``, then ``index_topk`` with ``k = out.shape[1]``."""
        ...

    def csa_stream(
        self,
        indices: Tensor,
        indptr: Tensor,
        topk: Tensor,
        page_table: Tensor,
        request: Tensor,
        *,
        entries_per_page: int,
        first_row: int,
        out: Tensor,
    ) -> None:
        """See ``dsv4_kernels.index_streams``."""
        ...

    def sparse_decode(
        self, q: Tensor, pool: Rows, indices: Tensor, indptr: Tensor, sink: Tensor, scale: float, out: Tensor
    ) -> None:
        """See ``dsv4_kernels.sparse_decode``."""
        ...

    def sparse_prefill(
        self,
        q: Tensor,
        pool: Rows,
        prefix_indices: Tensor,
        prefix_indptr: Tensor,
        kv: Tensor,
        extend_indices: Tensor,
        extend_indptr: Tensor,
        sink: Tensor,
        scale: float,
        out: Tensor,
    ) -> None:
        """See ``dsv4_kernels.sparse_prefill``."""
        ...

    def moe_route(
        self,
        x: Tensor,
        gate: Tensor,
        *,
        bias: Tensor | None,
        table: Tensor | None,
        token_ids: Tensor,
        top_k: int,
        scale: float,
        scoring: str,
        renormalise: bool,
        weights: Tensor,
        experts: Tensor,
    ) -> None:
        """See ``dsv4_kernels.moe_route``."""
        ...

    def moe_gemm(
        self, x: Tensor, experts: Tensor, weights: Tensor, w13: Weight, w2: Weight, limit: float, out: Tensor
    ) -> None:
        """See ``dsv4_kernels.moe_gemm``."""
        ...

    def add(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """See ``dsv4_kernels.add``."""
        ...

    def mlp(self, x: Tensor | QuantRows, w13: Weight, w2: Weight, limit: float, out: Tensor) -> None:
        """``out = w2 swiglu(w13 x)``: the shared expert; ``w13 [2 I, D]``, ``w2 [D, I]``, ``x`` as for ``linear``."""
        ...
