"""Golden numbers of the pool: dsv4-spec 2.11, 3.11 and 4.7."""

from __future__ import annotations

import pytest
import torch

from dsv4lab.errors import ConfigError, PoolError
from dsv4lab.kv.formats import PoolFormat
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.metadata import BatchItem, IndexStream, StepMetadata, build_metadata

FLASH = (0, 0, *(4, 128) * 20, 4)
PRO = (128, 128, *(4, 128) * 29, 4)

# dsv4-spec 4.7: four slots, verify of four tokens, 1536 tokens
SPEC = Geometry(
    window=128,
    ring_rows=131,
    slots=4,
    pages=7,
    head_dim=512,
    index_head_dim=128,
    compress_ratios=(0, 4, 128),
    state4_ring=16,
    state128_ring=256,
)
PAGES = (5, 3)


def rows(stream: IndexStream, token: int) -> list[int]:
    return stream.indices[stream.indptr[token] : stream.indptr[token + 1]].tolist()


def decode(position: int, count: int = 1) -> StepMetadata:
    return build_metadata(SPEC, 512, [BatchItem(2, PAGES, position, tuple(range(count)))], "decode")


def csa_rows(meta: StepMetadata, token: int, pages: tuple[int, ...] = PAGES) -> list[int]:
    """What the token's ratio-4 stream holds if top-k takes every visible entry in order."""
    assert meta.csa is not None
    indices = meta.csa.indices.clone()
    picks = [SPEC.compressed_row(pages, w, 4) for n in meta.csa_len.tolist() for w in range(n)]
    indices[meta.csa.tail] = torch.tensor(picks, dtype=torch.int32)
    return rows(IndexStream(meta.csa.indptr, indices), token)


def test_layer_sizes() -> None:
    assert SPEC.swa_rows == 524
    assert [SPEC.rows(r) for r in (0, 4, 128)] == [524, 972, 538]
    assert SPEC.capacity_tokens == 1536
    assert SPEC.max_verify_tokens == 4


def test_decode_of_position_300() -> None:
    meta = decode(300)
    window = [*range(304, 393), *range(262, 301)]
    assert meta.ring_row.tolist() == [300]
    assert rows(meta.window, 0) == window
    assert rows(meta.streams[128], 0) == [*window, 534, 535]
    assert meta.visible4.tolist() == [75]
    assert csa_rows(meta, 0) == [*window, *range(844, 908), *range(716, 727)]
    assert meta.csa_indptr.tolist() == [0, 203]
    assert (meta.compress[4].n, meta.compress[128].n) == (0, 0)
    assert meta.last_rows.tolist() == [0]
    assert meta.ring_store_dst.tolist() == [300]


def test_compressed_writes_of_positions_303_and_383() -> None:
    ratio4 = decode(303).compress[4]
    assert (ratio4.out_slot.tolist(), ratio4.out_row.tolist(), ratio4.position.tolist()) == ([203], [727], [300])
    assert ratio4.from_flat.tolist() == [[False] * 7 + [True]]
    assert ratio4.gather_state[0, :7].tolist() == [2 * 16 + p % 16 for p in range(296, 303)]
    ratio128 = decode(383).compress[128]
    assert (ratio128.out_slot.tolist(), ratio128.out_row.tolist(), ratio128.position.tolist()) == ([6], [530], [256])


def test_prefill_chunk_256_to_300() -> None:
    meta = build_metadata(SPEC, 512, [BatchItem(2, PAGES, 256, tuple(range(45)))], "prefill")
    assert meta.extend is not None
    last = [*range(304, 387)]
    assert rows(meta.extend, 44) == list(range(45))
    assert rows(meta.prefix[0], 44) == last
    assert rows(meta.prefix[128], 44) == [*last, 534, 535]
    assert csa_rows(meta, 44) == [*last, *range(844, 908), *range(716, 727)]
    assert rows(meta.extend, 2) == [0, 1, 2]
    assert rows(meta.prefix[0], 2) == list(range(262, 387))
    assert csa_rows(meta, 2) == [*range(262, 387), *range(844, 908)]
    assert rows(meta.prefix[128], 2) == [*range(262, 387), 534, 535]
    assert meta.ring_store_src.tolist() == list(range(45))
    assert meta.ring_store_dst.tolist() == [*range(387, 393), *range(262, 301)]


def test_verify_of_301_to_304() -> None:
    meta = decode(301, 4)
    assert meta.ring_row.tolist() == [301, 302, 303, 304]
    assert rows(meta.window, 0)[0] == 305
    assert meta.visible4.tolist() == [75, 75, 76, 76]
    assert meta.compress[4].out_row.tolist() == [727]
    assert all(304 not in rows(meta.window, t) for t in range(3))
    assert meta.slots.tolist() == [2] * 4


def test_verify_is_refused_where_it_would_corrupt_the_ring() -> None:
    tight = Geometry(128, 130, 4, 7, 512, 128, (0, 4, 128), state4_ring=16, state128_ring=256)
    assert tight.ring_row(2, 304) == tight.ring_row(2, 174)
    with pytest.raises(PoolError, match="has 4 tokens; these rings take at most 3"):
        build_metadata(tight, 512, [BatchItem(2, PAGES, 301, (1, 2, 3, 4))], "decode")


@pytest.mark.parametrize(
    ("position", "oldest", "visible4", "visible128"),
    [
        (0, 0, 0, 0),
        (2, 0, 0, 0),
        (3, 0, 1, 0),
        (6, 0, 1, 0),
        (7, 0, 2, 0),
        (126, 0, 31, 0),
        (127, 0, 32, 1),
        (128, 1, 32, 1),
        (254, 127, 63, 1),
        (255, 128, 64, 2),
    ],
)
def test_visibility_table(position: int, oldest: int, visible4: int, visible128: int) -> None:
    meta = decode(position)
    window = [SPEC.ring_row(2, p) for p in range(oldest, position + 1)]
    assert rows(meta.window, 0) == window
    assert meta.visible4.tolist() == [visible4]
    assert meta.visible128.tolist() == [visible128]
    assert rows(meta.streams[128], 0) == window + [SPEC.compressed_row(PAGES, w, 128) for w in range(visible128)]
    assert csa_rows(meta, 0) == window + [SPEC.compressed_row(PAGES, w, 4) for w in range(visible4)]


def test_rows_of_one_prefill_see_only_ended_groups() -> None:
    meta = build_metadata(SPEC, 512, [BatchItem(1, (2,), 0, tuple(range(8)))], "prefill")
    assert meta.visible4.tolist() == [0, 0, 0, 1, 1, 1, 1, 2]
    assert meta.compress[4].position.tolist() == [0, 4]
    assert meta.compress[4].from_flat.tolist() == [[False] * 4 + [True] * 4, [True] * 8]
    assert meta.compress[4].gather_state[0, :4].tolist() == [SPEC.state_rows(4) - 1] * 4
    assert decode(6, 3).visible4.tolist() == [1, 2, 2]


@pytest.mark.parametrize(
    ("ratios", "token_bytes", "ring", "state4", "state128"),
    [
        (FLASH, (6229, 5893, 4153, 3817), (5636096, 5856256), (1720320, 3440640), (10485760, 20971520)),
        (PRO, (8918, 8438, 5945, 5465), (7995392, 8307712), (2457600, 4915200), (16252928, 32505856)),
    ],
    ids=["flash", "pro"],
)
def test_memory_table(
    ratios: tuple[int, ...],
    token_bytes: tuple[int, ...],
    ring: tuple[int, int],
    state4: tuple[int, int],
    state128: tuple[int, int],
) -> None:
    def make(rows: int, ring4: int, ring128: int) -> Geometry:
        return Geometry(128, rows, 9, 5, 512, 128, ratios, state4_ring=ring4, state128_ring=ring128)

    plain, spec = make(128, 8, 128), make(133, 16, 256)
    forms = [PoolFormat(kv, index, "unified", 512, 128, 64) for kv in ("bf16", "fp8") for index in ("fp8", "fp4")]
    assert tuple(f.token_bytes(plain) for f in forms) == token_bytes
    assert [(f.row_bytes, f.index_bytes) for f in forms] == [(1024, 132), (1024, 68), (640, 132), (640, 68)]
    assert (forms[0].ring_bytes(plain), forms[0].ring_bytes(spec)) == ring
    assert (plain.state_bytes(4), spec.state_bytes(4)) == state4
    assert (plain.state_bytes(128), spec.state_bytes(128)) == state128
    assert forms[0].slot_bytes(plain) == ring[0] + state4[0] + state128[0]
    gib = {FLASH: 6.08, PRO: 8.71}[ratios]
    assert forms[0].page_bytes(plain) / plain.page_size * 2**20 / 2**30 == pytest.approx(gib, abs=0.006)


def test_former_pages() -> None:
    """584 bytes a row; pages of 256, 64 and 2 rows padded to multiples of 576."""
    form = PoolFormat("fp8", "fp8", "three_pool", 512, 128, 64)
    assert form.row_bytes == 584
    assert [form.rows_bytes(n) for n in (256, 64, 2)] == [260 * 576, 65 * 576, 3 * 576]
    plain = form.fit(Geometry(128, 128, 9, 5, 512, 128, FLASH))
    assert plain.ring_rows == 512, "a window touches two pages"
    assert form.fit(plain) == plain
    assert form.page_bytes(plain) == 21 * (65 * 576 + 64 * 132) + 20 * 3 * 576
    assert form.ring_bytes(plain) == 43 * 2 * 260 * 576


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"window": 0}, "window = 0: takes an integer >= 1"),
        ({"ring_rows": 127}, "ring_rows = 127: takes an integer >= 128"),
        ({"slots": 1}, "slots = 1: takes an integer >= 2"),
        ({"pages": True}, "pages = True: takes an integer >= 2"),
        ({"page_size": 192}, "page_size = 192: takes a multiple of 128"),
        ({"compress_ratios": (0, 2)}, r"compress_ratios = \(0, 2\): takes 0, 4 or 128"),
        ({"compress_ratios": ()}, "takes 0, 4 or 128"),
        ({"state4_ring": 7}, "state4_ring = 7: takes an integer >= 8"),
        ({"pages": 2**26}, "rows in a layer; at most"),
    ],
)
def test_bad_geometry(changes: dict[str, object], text: str) -> None:
    good = {"window": 128, "ring_rows": 128, "slots": 3, "pages": 3, "head_dim": 8, "index_head_dim": 4}
    with pytest.raises(ConfigError, match=text):
        Geometry(**{**good, "compress_ratios": (0, 4, 128), **changes})  # type: ignore[arg-type]
