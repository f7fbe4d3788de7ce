"""Binding of the ops: what exists, what is asked for by name, and aiter by recorded signatures on a fake module."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from dsv4_kernels import invariant, launch
from dsv4_kernels.index_topk import index_topk_reference
from dsv4_kernels.mhc_pre_post import mhc_post_reference, mhc_pre_reference
from dsv4_kernels.moe_route import moe_route_reference
from dsv4_kernels.registry import specs
from dsv4_kernels.sparse_decode import sparse_decode_reference
from dsv4_kernels.sparse_prefill import sparse_prefill_reference
from dsv4_kernels.target import forced_target
from dsv4_kernels.testing.compare import check
from dsv4_kernels.testing.inputs import Inputs
from dsv4_kernels.weights import Fp8Weight

from dsv4lab.backends.aiter.signatures import SIGNATURES, check_signature, entry_point
from dsv4lab.backends.base import Ops
from dsv4lab.backends.choose import backend_ops, default_backend
from dsv4lab.errors import UnavailableError, UsageError

pytest.importorskip("triton", reason="triton is not installed")

from dsv4lab.backends.aiter.ops import AiterOps
from dsv4lab.backends.invariant_ops import OPS, InvariantOps
from dsv4lab.backends.triton_ops import KERNELS, OWN_GEMM_ROWS, OWN_GEMM_TOKENS, TritonOps, kernel


def test_triton_binds_every_op_of_the_protocol() -> None:
    ops = TritonOps()
    wanted = [name for name in vars(Ops) if not name.startswith("_")]
    assert [name for name in wanted if not callable(getattr(ops, name, None))] == []


def test_batch_invariant_ops_launch_batch_invariantly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every op of the protocol, also those that a backend makes of several kernels, and none outside of them."""
    inside: dict[str, bool] = {}

    def noting(name: str) -> Callable[..., bool]:
        def op(*_: object, **__: object) -> bool:
            inside[name] = invariant.active()
            return True

        return op

    for name in OPS:
        monkeypatch.setattr(TritonOps, name, noting(name), raising=False)
    monkeypatch.setattr(TritonOps, "__init__", lambda self: None)
    ops = InvariantOps()
    for name in OPS:
        assert getattr(ops, name)()
    assert inside == dict.fromkeys(OPS, True)
    assert not invariant.active()


def test_products_are_our_own_where_batches_must_not_differ() -> None:
    large = torch.empty(OWN_GEMM_ROWS + 1, 8, dtype=torch.bfloat16, device="meta")
    assert not TritonOps().rows_alike(OWN_GEMM_TOKENS + 1, large)
    assert InvariantOps().rows_alike(OWN_GEMM_TOKENS + 1, large)
    x = torch.empty(OWN_GEMM_TOKENS + 1, 8, dtype=torch.bfloat16, device="meta")
    with launch.recorded() as launches:
        InvariantOps().linear(x, large, x.new_empty(x.shape[0], large.shape[0]))
    assert [each.kernel.__name__ for each in launches] == ["_bf16_gemm_kernel"]


def _names_of_shared_expert(tokens: int, inter: int) -> list[tuple[str, dict[str, object]]]:
    def weight(n: int, k: int) -> Fp8Weight:
        codes = torch.empty(n, k, dtype=torch.float8_e4m3fn, device="meta")
        return Fp8Weight(codes, torch.empty(n // 128, k // 128, dtype=torch.uint8, device="meta"))

    x = torch.empty(tokens, 7168, dtype=torch.bfloat16, device="meta")
    with forced_target("sm_90"), launch.recorded() as launches:
        TritonOps().mlp(x, weight(2 * inter, 7168), weight(7168, inter), 10.0, torch.empty_like(x))
    return [(each.kernel.__name__, dict(each.constants)) for each in launches]


@pytest.mark.parametrize(
    ("tokens", "inter", "product"),
    [(200, 384, "_block_fp8_gemm_kernel"), (8, 384, "_few_lanes_kernel"), (8, 3072, "_few_lanes_kernel")],
)
def test_a_shared_expert_in_fp8_is_quantised_where_it_is_made(tokens: int, inter: int, product: str) -> None:
    names = _names_of_shared_expert(tokens, inter)
    (name, constants), (last, _) = names[-2:]
    assert name == "_swiglu_kernel"
    assert constants["QUANT"]
    assert last == product, "then the product alone"


def test_a_product_of_one_token_makes_the_swiglu_of_a_shared_expert() -> None:
    *before, (name, constants) = _names_of_shared_expert(1, 384)
    assert (name, constants["SWIGLU"], constants["QUANT"]) == ("_few_vector_kernel", True, True)
    assert "_swiglu_kernel" not in [each for each, _ in before]


def test_backends_that_cannot_promise_batch_invariance_are_refused() -> None:
    for device, name in (("cpu", None), ("cpu", "torch"), ("cuda", "aiter")):
        with pytest.raises(UnavailableError, match=r"cannot promise batch_invariant: .* It takes backend triton"):
            backend_ops(device, name, batch_invariant=True)


@pytest.mark.parametrize("op", sorted(KERNELS))
def test_a_bound_kernel_takes_what_its_reference_takes(op: str) -> None:
    folder = importlib.import_module(f"dsv4_kernels.{KERNELS[op].partition('.')[0]}")
    otherwise = op in {"compress", "index_score_paged", "ring_store"}
    plain = getattr(folder, f"{op}_reference") if otherwise else specs()[op].reference
    reference = list(inspect.signature(plain).parameters)
    assert list(inspect.signature(kernel(op)).parameters)[: len(reference)] == reference


def test_an_op_without_a_kernel_lists_those_that_exist() -> None:
    with pytest.raises(UsageError, match=r"no Triton kernel for op 'softmax'; there are .*sparse_decode"):
        kernel("softmax")


def test_backends_by_name() -> None:
    assert default_backend("cpu") == "torch"
    assert backend_ops("cpu") is backend_ops("cpu", "torch") or backend_ops("cpu").__class__.__name__ == "TorchOps"
    with pytest.raises(UsageError, match="torch, triton, aiter"):
        backend_ops("cpu", "cutlass")
    with pytest.raises(UnavailableError, match="triton does not serve device cpu"):
        backend_ops("cpu", "triton")


def test_without_aiter_the_error_says_what_to_take() -> None:
    with pytest.raises(UnavailableError, match="take the triton backend"):
        entry_point("sparse_decode")


def sparse_decode(q, unified_kv, kv_indices, kv_indptr, attn_sink, softmax_scale, kv_scales=None, block_h=None, **rest):  # type: ignore[no-untyped-def]
    out = torch.empty_like(q)
    sparse_decode_reference(q, unified_kv, kv_indices, kv_indptr, attn_sink, softmax_scale, out)
    return out


def sparse_prefill(
    q,
    unified_kv,
    kv_indices_prefix,
    kv_indptr_prefix,
    kv,
    kv_indices_extend,
    kv_indptr_extend,
    attn_sink,
    softmax_scale,
    has_invalid=None,
):  # type: ignore[no-untyped-def]
    out = torch.empty_like(q)
    sparse_prefill_reference(
        q, unified_kv, kv_indices_prefix, kv_indptr_prefix, kv, kv_indices_extend, kv_indptr_extend, attn_sink,
        softmax_scale, out,
    )  # fmt: skip
    return out


def index_topk(logits, rowStarts, rowEnds, indices, values, numRows, stride0, stride1, k=2048, stable=False):  # type: ignore[no-untyped-def]
    assert stable
    assert (stride0, stride1, numRows) == (*logits.stride(), logits.shape[0])
    found = torch.empty_like(indices)
    index_topk_reference(logits, rowEnds, k, found)
    for row, end in enumerate(rowEnds.tolist()):  # by score and with an untouched tail, as aiter leaves it
        valid = found[row, : min(k, end)]
        indices[row, : len(valid)] = valid.flip(0)


def moe_route(
    topk_weights,
    topk_indices,
    gating_output,
    correction_bias=None,
    need_renorm=True,
    routed_scaling_factor=1.0,
    score_func="sqrtsoftplus",
):  # type: ignore[no-untyped-def]
    experts = torch.empty(topk_indices.shape, dtype=torch.int64)
    identity = torch.eye(gating_output.shape[1])
    moe_route_reference(
        gating_output, identity, bias=correction_bias, table=None, token_ids=experts[:, 0], top_k=experts.shape[1],
        scale=routed_scaling_factor, scoring=score_func, renormalise=need_renorm, weights=topk_weights,
        experts=experts,
    )  # fmt: skip
    topk_indices.copy_(experts)


def mhc_pre(
    residual,
    fn,
    hc_scale,
    hc_base,
    rms_eps=1e-6,
    hc_pre_eps=1e-6,
    hc_sinkhorn_eps=1e-6,
    hc_post_mult_value=1.0,
    sinkhorn_repeat=20,
    norm_weight=None,
):  # type: ignore[no-untyped-def]
    n, streams, d = residual.shape
    y = torch.empty(n, d, dtype=residual.dtype)
    post, comb = torch.empty(n, streams), torch.empty(n, streams, streams)
    mhc_pre_reference(
        residual, fn, hc_base, hc_scale, rms_eps=rms_eps, hc_eps=hc_pre_eps, iters=sinkhorn_repeat, out=y, post=post,
        comb=comb,
    )  # fmt: skip
    return post * (hc_post_mult_value / 2.0), comb, y


def mhc_post(out, x, residual, post_layer_mix, comb_res_mix, store_nt=-1):  # type: ignore[no-untyped-def]
    out.copy_(residual)
    mhc_post_reference(x, post_layer_mix, comb_res_mix, out)


FAKES: dict[str, Callable[..., Any]] = {
    "sparse_decode": sparse_decode,
    "sparse_prefill": sparse_prefill,
    "index_topk": index_topk,
    "moe_route": moe_route,
    "mhc_pre": mhc_pre,
    "mhc_post": mhc_post,
}


@pytest.fixture
def fake_aiter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of aiter with functions that have the recorded names and parameters and compute what they should."""
    for op, recorded in SIGNATURES.items():
        parts = recorded.module.split(".")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            if name not in sys.modules:
                monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setattr(sys.modules[recorded.module], recorded.name, FAKES[op], raising=False)


@pytest.mark.usefixtures("fake_aiter")
@pytest.mark.parametrize("op", sorted(SIGNATURES))
def test_an_aiter_op_computes_what_the_reference_does(op: str, seed: int) -> None:
    ops, spec = AiterOps(), specs()[op]
    assert sorted(ops.served) == sorted(SIGNATURES)
    for case in (case for case in spec.cases if case.small):
        arguments = case.build(Inputs("cpu", seed))
        triton_instead = op == "moe_route" and (
            arguments["table"] is not None or arguments["scoring"] != "sqrtsoftplus"
        )
        lists = op.startswith("sparse") and not all(
            torch.is_tensor(arguments[n]) for n in ("q", "pool") if n in arguments
        )
        if triton_instead or lists or 0 in next(v for v in arguments.values() if torch.is_tensor(v)).shape:
            continue
        verdict = check(spec, case, Inputs("cpu", seed), getattr(ops, op))
        assert verdict.passes, f"{case.name}: {verdict.text}"


@pytest.mark.usefixtures("fake_aiter")
def test_an_entry_point_that_changed_is_left_to_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = SIGNATURES["mhc_post"]

    def renamed(out: Any, x: Any, residual: Any, mix: Any, comb_res_mix: Any) -> None:
        raise AssertionError("must not be called")

    monkeypatch.setattr(sys.modules[recorded.module], recorded.name, renamed)
    ops = AiterOps()
    assert "mhc_post" not in ops.served
    assert ops.mhc_post is kernel("mhc_post")


def test_signature_checks_name_what_differs() -> None:
    recorded = SIGNATURES["mhc_post"]

    def fine(
        out: Any, x: Any, residual: Any, post_layer_mix: Any, comb_res_mix: Any, store_nt: int = -1, new: int = 0
    ) -> None:
        pass

    def needs(out: Any, x: Any, residual: Any, post_layer_mix: Any, comb_res_mix: Any, stream: Any) -> None:
        pass

    def lacks(out: Any, x: Any, residual: Any, comb_res_mix: Any) -> None:
        pass

    check_signature(recorded, fine)
    with pytest.raises(UnavailableError, match=r"mhc_post differs from what we call: it needs stream"):
        check_signature(recorded, needs)
    with pytest.raises(UnavailableError, match="lacks post_layer_mix"):
        check_signature(recorded, lacks)
