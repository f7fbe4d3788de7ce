"""The ops that aiter serves; all others are our Triton kernels."""

from __future__ import annotations

import importlib
import logging
from functools import cache
from typing import Any

import torch

from dsv4lab.backends.aiter.signatures import SIGNATURES, entry_point
from dsv4lab.backends.base import Ops, Tensor
from dsv4lab.backends.triton_ops import TritonOps, kernel
from dsv4lab.errors import UnavailableError

_log = logging.getLogger(__name__)

POST_SCALE = 2.0
"""aiter's default of 1 would halve the post mix (dsv4-spec 10.30)."""


class AiterOps(TritonOps):
    """See :class:`dsv4lab.backends.base.Ops`. An entry point that is missing or has changed leaves the op to Triton."""

    def __init__(self) -> None:
        super().__init__()
        self.served: dict[str, Any] = {}
        for op in SIGNATURES:
            try:
                self.served[op] = entry_point(op)
            except UnavailableError as error:
                _log.warning("%s", error)
        bindings = {
            "sparse_decode": self._sparse_decode,
            "sparse_prefill": self._sparse_prefill,
            "index_topk": self._index_topk,
            "moe_route": self._moe_route,
            "mhc_pre": self._mhc_pre,
            "mhc_post": self._mhc_post,
        }
        for op in self.served:
            setattr(self, op, bindings[op])
        if {"mhc_pre", "mhc_post"} & self.served.keys():
            self.mhc_post_pre = self._mhc_post_pre
        _log.info("aiter serves %s; Triton the other ops", ", ".join(self.served) or "no op")

    def norms_to_fp8(self, width: int) -> bool:
        """See :meth:`Ops.norms_to_fp8`; aiter's hyper-connections do not."""
        return "mhc_pre" not in self.served and super().norms_to_fp8(width)

    def _sparse_decode(
        self, q: Tensor, pool: Tensor, indices: Tensor, indptr: Tensor, sink: Tensor, scale: float, out: Tensor
    ) -> None:
        result = self.served["sparse_decode"](
            q=q, unified_kv=pool, kv_indices=indices, kv_indptr=indptr, attn_sink=sink, softmax_scale=scale,
            has_invalid=True,
        )  # fmt: skip
        out.copy_(result)

    def _sparse_prefill(
        self,
        q: Tensor,
        pool: Tensor,
        prefix_indices: Tensor,
        prefix_indptr: Tensor,
        kv: Tensor,
        extend_indices: Tensor,
        extend_indptr: Tensor,
        sink: Tensor,
        scale: float,
        out: Tensor,
    ) -> None:
        result = self.served["sparse_prefill"](
            q=q, unified_kv=pool, kv_indices_prefix=prefix_indices, kv_indptr_prefix=prefix_indptr, kv=kv,
            kv_indices_extend=extend_indices, kv_indptr_extend=extend_indptr, attn_sink=sink, softmax_scale=scale,
            has_invalid=True,
        )  # fmt: skip
        out.copy_(result)

    def _index_topk(self, scores: Tensor, visible: Tensor, k: int, out: Tensor) -> None:
        # aiter leaves the tail of its output as it was, and orders by score: fill, sort, pad with -1 as ours does.
        rows, entries = scores.shape
        found = torch.full((rows, k), entries, dtype=torch.int32, device=scores.device)
        ranked = torch.where(scores.isnan(), float("-inf"), scores)
        self.served["index_topk"](
            logits=ranked, rowStarts=torch.zeros_like(visible, dtype=torch.int32), rowEnds=visible.to(torch.int32),
            indices=found, values=None, numRows=rows, stride0=ranked.stride(0), stride1=ranked.stride(1), k=k,
            stable=True,
        )  # fmt: skip
        valid = torch.arange(k, device=scores.device) < visible.unsqueeze(1).clamp(max=k)
        ordered = torch.where(valid, found, entries).sort(dim=1).values
        out.copy_(torch.where(ordered < entries, ordered, -1))

    def _moe_route(
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
        if table is not None or scoring != "sqrtsoftplus":  # topk_gating has neither tables nor softmax of ours
            kernel("moe_route")(
                x, gate, bias=bias, table=table, token_ids=token_ids, top_k=top_k, scale=scale, scoring=scoring,
                renormalise=renormalise, weights=weights, experts=experts,
            )  # fmt: skip
            return
        chosen = torch.empty(weights.shape, dtype=torch.int32, device=x.device)
        self.served["moe_route"](
            topk_weights=weights, topk_indices=chosen, gating_output=x.float() @ gate.float().t(),
            correction_bias=bias, need_renorm=renormalise, routed_scaling_factor=scale, score_func=scoring,
        )  # fmt: skip
        experts.copy_(chosen)

    def _mhc_pre(
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
        new_post, new_comb, y = self.served["mhc_pre"](
            residual=x, fn=fn, hc_scale=scale, hc_base=base, rms_eps=rms_eps, hc_pre_eps=hc_eps,
            hc_sinkhorn_eps=hc_eps, hc_post_mult_value=POST_SCALE, sinkhorn_repeat=iters,
        )  # fmt: skip
        post.copy_(new_post.view_as(post))
        comb.copy_(new_comb.view_as(comb))
        out.copy_(y)
        if norm is not None and normed is not None:
            self.rms_norm(out, norm, rms_eps, normed)
            if codes is not None:
                kernel("quant")(normed, codes, scales)

    def _mhc_post_pre(
        self, y: Tensor, post: Tensor, comb: Tensor, x: Tensor, *weights: Tensor, new_post: Tensor, new_comb: Tensor,
        **rest: Any,
    ) -> None:  # fmt: skip
        self.mhc_post(y, post, comb, x)
        self.mhc_pre(x, *weights, post=new_post, comb=new_comb, **rest)

    def _mhc_post(self, y: Tensor, post: Tensor, comb: Tensor, x: Tensor) -> None:
        fresh = torch.empty_like(x)
        self.served["mhc_post"](out=fresh, x=y, residual=x, post_layer_mix=post, comb_res_mix=comb)
        x.copy_(fresh)


def _checked(ops: Ops) -> Ops:
    return ops


@cache
def aiter_ops() -> Any:
    """The one instance. Raises :class:`UnavailableError` where aiter cannot be imported."""
    try:
        importlib.import_module("aiter")
    except ImportError as error:
        raise UnavailableError(f"aiter cannot be imported ({error}); take the triton backend") from None
    return _checked(AiterOps())
