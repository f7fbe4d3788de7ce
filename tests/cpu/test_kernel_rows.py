"""Packed rows: golden values, byte layouts, round trips, poison."""

from __future__ import annotations

import math

import pytest
import torch
from dsv4_kernels.formats import decode_e2m1, dequantise_e2m1, quantise_e2m1
from dsv4_kernels.hadamard import hadamard
from dsv4_kernels.paged_rows import Fp8Pages, IndexFp4Pages, IndexFp8Pages, PagedRows
from dsv4_kernels.rows import (
    Fp8Rows,
    JoinedRows,
    RowStore,
    nope_row_bytes,
    poison_rows,
    put_rows,
    quantise_tiles,
    scale_bytes,
)
from hypothesis import given
from hypothesis import strategies as st


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3


def two_pools(rows: int, width: int = 512, rope: int = 64) -> Fp8Rows:
    nope = width - rope
    empty = torch.zeros(rows, nope_row_bytes(nope), dtype=torch.uint8)
    return Fp8Rows(empty, torch.zeros(rows, rope, dtype=torch.bfloat16), nope)


def former(pages: int, per_page: int, width: int = 512, rope: int = 64) -> Fp8Pages:
    page = Fp8Pages.page_bytes(per_page, width, rope)
    return Fp8Pages(torch.zeros(pages, page, dtype=torch.uint8), per_page, width, rope)


def index_pages(kind: type[PagedRows], pages: int, dim: int, per_page: int = 64) -> PagedRows:
    row = dim + 4 if kind is IndexFp8Pages else dim // 2 + dim // 32
    return kind(torch.zeros(pages, per_page * row, dtype=torch.uint8), per_page, dim)


def stores() -> dict[str, RowStore]:
    joined = JoinedRows(former(2, 256), former(3, 64), 2 * 256)
    index = {k.__name__: index_pages(k, 3, 128) for k in (IndexFp8Pages, IndexFp4Pages)}
    return {"two pools": two_pools(192), "former": former(3, 64), "joined": joined, **index}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("values", "scale", "decoded", "codes"),
    [
        ((1.0, 0.3, -0.07), 119, (1.0, 0.3125, -0.0703125), (120, 106, 217)),
        ((448.0, 3.0), 127, (448.0, 3.0), (126, 68)),
        ((450.0, 4.25), 128, (448.0, 4.0), (118, 64)),
        ((0.0,), 105, (0.0,), (0,)),
        ((1e-6,), 105, (9.5367431640625e-07,), (72,)),
    ],
)
def test_golden_values_of_a_tile(
    values: tuple[float, ...], scale: int, decoded: tuple[float, ...], codes: tuple[int, ...]
) -> None:
    """dsv4-spec 12.2, through the quantiser and through a row of each layout."""
    row = torch.zeros(1, 512)
    row[0, 64 : 64 + len(values)] = torch.tensor(values)
    got, scales = quantise_tiles(row[:, :448])
    assert got[0, 64 : 64 + len(codes)].tolist() == list(codes)
    assert scales.tolist() == [[105, scale, 105, 105, 105, 105, 105]]
    for store in (two_pools(4), former(1, 4)):
        store.put(torch.tensor([2]), row)
        out = store[torch.tensor([2])][0, 64 : 64 + len(values)]
        if values != (450.0, 4.25) and values != (1e-6,):  # rows are quantised from bf16 values
            assert out.tolist() == list(decoded)


def test_golden_values_of_fp4() -> None:
    x = torch.zeros(32)
    x[:4] = torch.tensor([6.5, 5.0, 0.3, -1.0])
    packed, scale = quantise_e2m1(x)
    assert packed[:2].tolist() == [5 | 4 << 4, 0 | 9 << 4]
    assert scale.tolist() == [128]
    assert dequantise_e2m1(packed, scale)[:4].tolist() == [6.0, 4.0, 0.0, -1.0]


def test_fp4_ties_go_to_even_codes() -> None:
    x = torch.zeros(32)
    x[:8] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    packed, _ = quantise_e2m1(x)
    assert decode_e2m1(packed)[:8].tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0]


def test_bytes_of_a_two_pool_row() -> None:
    """448 values, seven scales each twice, 50 bytes that nobody writes; rope apart, in bf16."""
    store, x = two_pools(3), noise(1, 512)
    store.nope.fill_(7)
    store.put(torch.tensor([1]), x)
    codes, scale = quantise_tiles(x.bfloat16()[:, :448])
    row = store.nope[1]
    assert nope_row_bytes(448) == store.nope.shape[1] == 512
    assert torch.equal(row[:448], codes[0])
    assert torch.equal(row[448:462:2], scale[0])
    assert torch.equal(row[449:463:2], scale[0])
    assert row[462:].tolist() == [7] * 50
    assert torch.equal(store.rope[1], x.bfloat16()[0, 448:])
    assert store.nope[0].tolist() == store.nope[2].tolist() == [7] * 512


@pytest.mark.parametrize(("per_page", "size"), [(256, 260 * 576), (64, 65 * 576), (2, 3 * 576), (1, 2 * 576)])
def test_bytes_of_a_former_page(per_page: int, size: int) -> None:
    """584 bytes a row, all values first, then all scales; the page is padded to a multiple of 576."""
    store, x = former(2, per_page), noise(1, 512)
    assert scale_bytes(448) == 8
    assert store.pages.shape[1] == size == -(-per_page * 584 // 576) * 576
    last = per_page - 1
    store.put(torch.tensor([per_page + last]), x)
    page = store.pages[1]
    codes, scale = quantise_tiles(x.bfloat16()[:, :448])
    assert torch.equal(page[last * 576 : last * 576 + 448], codes[0])
    assert torch.equal(page[last * 576 + 448 : last * 576 + 576].view(torch.bfloat16), x.bfloat16()[0, 448:])
    begin = per_page * 576 + last * 8
    assert page[begin : begin + 8].tolist() == [*scale[0].tolist(), 0]
    assert not page[begin + 8 :].any()
    assert not store.pages[0].any()


@pytest.mark.parametrize(("kind", "size"), [(IndexFp8Pages, 132), (IndexFp4Pages, 68)])
def test_bytes_of_index_pages(kind: type[PagedRows], size: int) -> None:
    store, x = index_pages(kind, 2, 128), noise(1, 128)
    assert store.pages.shape[1] == 64 * size
    store.put(torch.tensor([64 + 5]), x)  # type: ignore[attr-defined]
    assert not store.pages[0].any()
    page, rotated = store.pages[1], hadamard(x.bfloat16())
    if kind is IndexFp8Pages:
        (scale,) = page[64 * 128 + 20 : 64 * 128 + 24].view(torch.float32).tolist()
        assert scale == pytest.approx(float(rotated.abs().max()) / 448, rel=1e-6)
        assert math.frexp(scale)[0] != 0.5, "no power of two"
        assert page[5 * 128 : 6 * 128].view(torch.float8_e4m3fn).float().abs().max() == 448
    else:
        packed, scales = quantise_e2m1(rotated)
        assert torch.equal(page[5 * 64 : 6 * 64], packed[0])
        assert torch.equal(page[64 * 64 + 20 : 64 * 64 + 24], scales[0])


@given(width=st.sampled_from([(64, 16), (512, 64), (192, 64), (96, 32)]), seed=st.integers(0, 99))
def test_round_trip_errors_are_those_of_the_format(width: tuple[int, int], seed: int) -> None:
    d, rope = width
    x = noise(5, d, seed=seed)
    rows = torch.tensor([7, 0, 3, 11, 2])
    a, b = two_pools(12, d, rope), former(3, 4, d, rope)
    for store in (a, b):
        put_rows(store, rows, x)
        got = store[rows]
        assert torch.equal(got[:, d - rope :], x[:, d - rope :].bfloat16().float())
        assert bool(((got - x).abs() <= x.abs() * 2**-4 + 2**-8 * x.abs().amax()).all())
        put_rows(store, rows, got)
        assert torch.equal(store[rows], got), "what was read can be written back"
    assert torch.equal(a[rows], b[rows]), "both layouts hold the same values"


@pytest.mark.parametrize("name", list(stores()))
def test_rows_are_apart_and_poison_shows(name: str) -> None:
    store = stores()[name]
    count, d = store.shape
    rows = torch.arange(count)
    put_rows(store, rows, noise(count, d))
    before = store[rows]
    assert bool(torch.isfinite(before).all())
    assert store[rows.view(2, -1)].shape == (2, count // 2, d)
    some = torch.tensor([0, 63, 64, count - 1])
    put_rows(store, some, noise(4, d, seed=1))
    rest = torch.ones(count, dtype=torch.bool).index_fill_(0, some, False)
    assert torch.equal(store[rows[rest]], before[rest])
    poison_rows(store, some)
    assert bool(store[some].isnan().all(-1).all())
    assert torch.equal(store[rows[rest]], before[rest])


@pytest.mark.parametrize(("kind", "bound"), [(IndexFp8Pages, 0.03), (IndexFp4Pages, 0.2)])
def test_scores_of_rotated_keys_are_those_of_plain_ones(kind: type[PagedRows], bound: float) -> None:
    keys, q = noise(64, 128), noise(9, 128, seed=1)
    store = index_pages(kind, 1, 128)
    store.put(torch.arange(64), keys)  # type: ignore[attr-defined]
    exact = q.double() @ keys.double().T
    got = hadamard(q).double() @ store[torch.arange(64)].double().T  # type: ignore[index]
    assert float((got - exact).norm() / exact.norm()) < bound


def test_hadamard_is_orthonormal() -> None:
    eye = hadamard(torch.eye(128))
    assert torch.allclose(eye @ eye.T, torch.eye(128), atol=1e-6)
    assert torch.equal(eye, eye.T)
    assert eye[1, :4].tolist() == [eye[0, 0], -eye[0, 0], eye[0, 0], -eye[0, 0]], "Sylvester order"
    with pytest.raises(ValueError, match="power of two of values, got 96"):
        hadamard(torch.zeros(96))


def test_a_pair_that_does_not_match_is_refused() -> None:
    with pytest.raises(ValueError, match=r"fp8 rows take \[rows, 512\]"):
        Fp8Rows(torch.zeros(3, 512, dtype=torch.uint8), torch.zeros(4, 64, dtype=torch.bfloat16), 448)
    with pytest.raises(ValueError, match="fp8 rows are uint8 and bfloat16"):
        Fp8Rows(torch.zeros(3, 512, dtype=torch.uint8), torch.zeros(3, 64), 448)
