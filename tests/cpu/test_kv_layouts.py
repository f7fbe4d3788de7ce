"""The engine on every pool layout: same tokens, true declarations, bytes as planned, oracles on what rows decode to."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from dsv4_kernels.sparse_decode import sparse_decode_reference
from dsv4_kernels.sparse_prefill import sparse_prefill_reference

from dsv4lab import host
from dsv4lab.backends.rows import PACKED_ROWS
from dsv4lab.checkpoint.synthetic import random_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.presets import preset
from dsv4lab.engine.runner import Runner
from dsv4lab.errors import ConfigError, PoolError
from dsv4lab.kv.formats import PoolFormat
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.metadata import BatchItem
from dsv4lab.kv.pool import KvPool, Rows
from dsv4lab.overlap.audit import audit

MODEL = preset("tiny")
FORMS = {
    "float32": {},
    "bf16": {"kv_cache_dtype": "bf16", "index_cache_dtype": "bf16"},
    "fp8": {"kv_cache_dtype": "fp8"},
    "fp8, fp8 keys": {"kv_cache_dtype": "fp8", "index_cache_dtype": "fp8"},
    "bf16, fp4 keys": {"kv_cache_dtype": "bf16", "index_cache_dtype": "fp4"},
    "three pools": {"kv_layout": "three_pool"},
    "three pools, fp4 keys": {"kv_layout": "three_pool", "index_cache_dtype": "fp4"},
}
PACKED = [name for name in FORMS if name not in ("float32", "bf16")]


def make_runner(**changes: Any) -> Runner:
    fields: dict[str, Any] = {"streams": "serial", "max_running_requests": 3, "max_total_tokens": 2048, **changes}
    return Runner(MODEL, random_weights(MODEL, 0), EngineConfig("tiny", **fields))


def tokens(seed: int, n: int) -> tuple[int, ...]:
    return tuple(torch.randint(2, MODEL.vocab_size, (n,), generator=torch.Generator().manual_seed(seed)).tolist())


def session(runner: Runner) -> torch.Tensor:
    """Two requests: chunked prefill, then decode across a 4-, a 128- and a page boundary. All logits, stacked."""
    a, b = tokens(1, 270), tokens(2, 140)
    for slot in (1, 2):
        runner.reset_slot(slot)
    out = [runner.forward([BatchItem(1, (2, 4), 0, a[:190])], "prefill").logits]
    out.append(
        runner.forward([BatchItem(1, (2, 4), 190, a[190:250]), BatchItem(2, (3,), 0, b[:124])], "prefill").logits
    )
    for i in range(9):
        items = [BatchItem(1, (2, 4), 250 + i, (a[250 + i],)), BatchItem(2, (3,), 124 + i, (b[124 + i],))]
        out.append(runner.forward(items, "decode").logits)
    return torch.cat(out)


@pytest.fixture(scope="module")
def exact() -> torch.Tensor:
    return session(make_runner())


def test_explicit_float32_is_the_default_bit_for_bit(exact: torch.Tensor) -> None:
    assert torch.equal(session(make_runner(kv_cache_dtype="float32", index_cache_dtype="float32")), exact)


@pytest.mark.parametrize("name", list(FORMS))
def test_every_layout_runs_near_the_exact_one(exact: torch.Tensor, name: str) -> None:
    got = session(make_runner(**FORMS[name]))
    assert bool(torch.isfinite(got).all())
    assert float((got - exact).norm() / exact.norm()) < (0.2 if "fp" in name else 0.05)
    if name != "float32":
        assert not torch.equal(got, exact), "the format has no effect"


@pytest.mark.parametrize("index", ["float32", "fp8", "fp4"])
def test_unified_and_former_layout_give_the_same_bits_at_the_same_precision(index: str) -> None:
    a = session(make_runner(kv_cache_dtype="fp8", index_cache_dtype=index))
    b = session(make_runner(kv_layout="three_pool", index_cache_dtype=index))
    assert torch.equal(a, b)
    assert torch.equal(a.argmax(-1), b.argmax(-1))


@pytest.mark.parametrize("name", PACKED)
def test_pool_memory_is_what_the_formulas_say(name: str) -> None:
    form = make_runner(**FORMS[name]).pool.form
    assert form is not None
    for head, rope, ratios, verify in ((64, 16, (0, 4, 128), 1), (512, 64, (4, 128, 0, 4), 4), (96, 32, (0, 0), 2)):
        config = replace(MODEL, head_dim=head, qk_rope_head_dim=rope, compress_ratios=ratios)
        f = PoolFormat.choose(config, kv=form.kv, index=form.index, layout=form.layout)
        g = f.fit(Geometry.plan(config, 2, 700, verify_tokens=verify))
        pool = KvPool(g, torch.float32, form=f, packed=PACKED_ROWS)
        assert pool.nbytes == f.pool_bytes(g)
        assert all(u.shape == (g.rows(r), head) for u, r in zip(pool.unified, ratios, strict=True))


@pytest.mark.parametrize("name", PACKED)
def test_resources_are_disjoint_and_cover_the_pool(name: str) -> None:
    pool = make_runner(**FORMS[name]).pool
    tensors = [t for group in pool.resources().values() for t in group]
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert all(t.is_contiguous() for t in tensors)
    for tensor in tensors:
        tensor.view(torch.uint8).fill_(0xFF)
    stores: list[Rows | None] = [*pool.unified, *pool.index_k]
    for store in stores:
        if store is not None:
            assert bool(store[torch.arange(store.shape[0])].isnan().all()), "every row lies in a resource"


@pytest.mark.parametrize("mode", ["decode", "prefill"])
@pytest.mark.parametrize("name", ["fp8, fp8 keys", "three pools, fp4 keys"])
def test_audit_of_packed_pools(name: str, mode: str) -> None:
    runner = make_runner(**FORMS[name])
    prompt = tokens(4, 140)
    runner.forward([BatchItem(1, (1,), 0, prompt[:127])], "prefill")
    n = 1 if mode == "decode" else 9
    shape = runner.prepare([BatchItem(1, (1,), 127, prompt[127 : 127 + n])], mode)  # type: ignore[arg-type]
    audit(runner.op_list(mode, shape.tokens, shape.outputs), runner.resources(), runner.arena)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PACKED)
def test_a_poisoned_pool_gives_the_same_bits(name: str) -> None:
    clean, poisoned = make_runner(**FORMS[name]), make_runner(**FORMS[name], debug_poison=True)
    assert torch.equal(session(clean), session(poisoned))
    pool = poisoned.pool
    pool.check_live(1, (2, 4), 259)
    pool.release(2, (3,))
    with pytest.raises(PoolError, match=r"slot 2: layer 0 ring row .* is not finite"):
        pool.check_live(2, (3,), 133)
    pool.check_live(1, (2, 4), 259)
    pool.release(1, (2, 4))
    assert torch.equal(session(poisoned), session(clean)), "slots and pages are reused"


def _oracle(q: torch.Tensor, rows: list[torch.Tensor], sink: torch.Tensor, scale: float) -> torch.Tensor:
    """float64 attention of each token over its own list of rows."""
    out = []
    for token, keys in zip(q.double(), rows, strict=True):
        scores = token @ keys.double().T * scale
        p = torch.exp(torch.cat((scores, sink.double()[:, None]), dim=1).softmax(-1).log())[:, :-1]
        out.append(p @ keys.double())
    return torch.stack(out)


@pytest.mark.parametrize("name", list(FORMS))
def test_attention_equals_a_float64_oracle_on_the_decoded_rows(name: str) -> None:
    pool = make_runner(**FORMS[name]).pool
    store, g = pool.unified[1], pool.geometry
    generator = torch.Generator().manual_seed(3)
    rows = torch.randperm(store.shape[0], generator=generator)[:400]
    values = torch.randn(400, MODEL.head_dim, generator=generator) * 2
    put(store, rows, values)
    assert bool((rows < g.swa_rows).any()), "window rows"
    assert bool((rows >= g.swa_rows).any()), "compressed rows"
    lengths = torch.tensor([1, 128, 203, 17])
    indptr = torch.cat((torch.zeros(1), lengths.cumsum(0))).int()
    indices = rows[torch.randint(0, 400, (int(lengths.sum()),), generator=generator)].int()
    q = torch.randn(4, MODEL.num_attention_heads, MODEL.head_dim, generator=generator)
    sink, scale = torch.randn(MODEL.num_attention_heads, generator=generator), MODEL.softmax_scale
    lists = [store[indices[a:b].long()].float() for a, b in pairwise(indptr.tolist())]
    out = torch.empty_like(q)
    sparse_decode_reference(q, store, indices, indptr, sink, scale, out)
    assert torch.allclose(out.double(), _oracle(q, lists, sink, scale), atol=2e-5)
    kv = torch.randn(4, MODEL.head_dim, generator=generator)
    own = torch.tensor([0, 0, 1, 0, 1, 2, 1, 2, 3], dtype=torch.int32)
    bounds = torch.tensor([0, 1, 3, 6, 9], dtype=torch.int32)
    sparse_prefill_reference(q, store, indices, indptr, kv, own, bounds, sink, scale, out)
    joined = [torch.cat((a, kv[own[b:c].long()])) for a, (b, c) in zip(lists, pairwise(bounds.tolist()), strict=True)]
    assert torch.allclose(out.double(), _oracle(q, joined, sink, scale), atol=2e-5)


def put(store: Rows, rows: torch.Tensor, values: torch.Tensor) -> None:
    if isinstance(store, torch.Tensor):
        store[rows] = values.to(store.dtype)
    else:
        store.put(rows, values)


@pytest.mark.parametrize("name", PACKED)
def test_stored_rows_are_the_quantised_rows_of_the_exact_run(name: str) -> None:
    """Layer 0 sees the same input whatever the pool holds, so its ring is the exact one, quantised."""
    runner, plain = make_runner(**FORMS[name]), make_runner()
    prompt = tokens(7, 300)
    for r in (runner, plain):
        r.forward([BatchItem(1, (1, 2), 0, prompt[:299])], "prefill")
        r.forward([BatchItem(1, (1, 2), 299, prompt[299:])], "decode")
    positions = torch.arange(173, 300)
    rows = [g.ring_row(1, positions) for g in (runner.geometry, plain.geometry)]  # type: ignore[type-var]
    exact = plain.pool.unified[0][rows[1]]
    scratch = make_runner(**FORMS[name]).pool.unified[0]
    put(scratch, rows[0], exact)
    assert torch.equal(runner.pool.unified[0][rows[0]].float(), scratch[rows[0]].float())


def test_what_does_not_go_together_is_refused() -> None:
    for changes, text in (
        ({"kv_layout": "three_pool", "kv_cache_dtype": "bf16"}, "the three_pool layout holds fp8 rows; it takes auto"),
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype: got 'int8', expected auto, float32, bf16 or fp8"),
        ({"index_cache_dtype": "fp2"}, "index_cache_dtype: got 'fp2'"),
        ({"kv_layout": "paged"}, "kv_layout: got 'paged', expected unified or three_pool"),
        ({"verify_tokens": 0}, "verify_tokens: got 0"),
    ):
        with pytest.raises(ConfigError, match=text):
            make_runner(**changes)
    with pytest.raises(ConfigError, match="keys of 48 values; it takes a power of two"):
        PoolFormat.choose(replace(MODEL, index_head_dim=48), index="fp8")
    with pytest.raises(ConfigError, match="keys of 16 values; it takes a multiple of 32"):
        PoolFormat.choose(replace(MODEL, index_head_dim=16), index="fp4")
    form = PoolFormat.choose(MODEL, kv="fp8")
    with pytest.raises(PoolError, match="a pool of fp8 rows and float32 index keys needs a backend's packed memory"):
        KvPool(Geometry.plan(MODEL, 1, 256), torch.float32, form=form)
    former = PoolFormat.choose(MODEL, layout="three_pool")
    with pytest.raises(PoolError, match="rings of 128 rows do not fit the three_pool layout"):
        KvPool(Geometry.plan(MODEL, 1, 256), torch.float32, form=former, packed=PACKED_ROWS)


def test_a_pool_beyond_memory_is_refused_with_what_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    need = make_runner().pool.nbytes
    monkeypatch.setattr(host, "memory_bytes", lambda: need)
    assert make_runner().pool.nbytes == need
    monkeypatch.setattr(host, "memory_bytes", lambda: need - 1)
    text = (
        r"3 requests and 2048 tokens take .* what would fit: 2 requests with 2048 tokens or 3 requests with 1792 tokens"
    )
    with pytest.raises(PoolError, match=text):
        make_runner()
    monkeypatch.setattr(host, "memory_bytes", lambda: None)
    assert make_runner().pool.nbytes == need


def test_defaults_by_device() -> None:
    chosen = {d: PoolFormat.choose(MODEL, dtype="bfloat16", device=d) for d in ("cpu", "cuda", "hip:1")}
    assert [(f.kv, f.index) for f in chosen.values()] == [("bf16", "bf16"), ("bf16", "fp8"), ("bf16", "fp8")]
    assert PoolFormat.choose(MODEL, layout="three_pool").kv == "fp8"
    assert (PoolFormat.choose(MODEL).kv, PoolFormat.choose(MODEL).index) == ("float32", "float32")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="compares a GPU with the CPU, and there is no GPU")
@pytest.mark.parametrize("name", list(FORMS))
def test_a_gpu_pool_holds_the_same_rows(name: str) -> None:
    here = make_runner(**FORMS[name]).pool
    there = KvPool(here.geometry, torch.float32, "cuda", here.form, PACKED_ROWS)
    rows = torch.randperm(here.unified[1].shape[0], generator=torch.Generator().manual_seed(1))[:300]
    values = torch.randn(300, MODEL.head_dim, generator=torch.Generator().manual_seed(2))
    put(here.unified[1], rows, values)
    put(there.unified[1], rows.cuda(), values.cuda())
    assert torch.equal(here.unified[1][rows], there.unified[1][rows.cuda()].cpu())
    there.poison()
    there.release(1, (1,))
