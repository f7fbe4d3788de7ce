"""The metadata against a pool that remembers, row by row, which token or entry it holds.

Every token gets a serial number when a forward brings it, so a row left over from a rolled back draft, from another
request or from an older position never passes for the right one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv4lab.config.presets import preset
from dsv4lab.kv.geometry import STATE_WINDOW, Geometry
from dsv4lab.kv.metadata import BatchItem, IndexStream, Mode, StepMetadata, build_metadata

Held = tuple[int, ...] | None  # serial numbers of the tokens that made the row


@dataclass
class Request:
    slot: int
    pages: tuple[int, ...]
    serials: list[int] = field(default_factory=list)

    def entry(self, w: int, ratio: int) -> tuple[int, ...]:
        last = w * ratio + ratio
        return tuple(self.serials[max(0, last - STATE_WINDOW[ratio]) : last])

    def visible(self, position: int, ratio: int) -> list[Held]:
        ended = [w for w in range(position + 1) if w * ratio + ratio - 1 <= position]
        return [self.entry(w, ratio) for w in ended]


class Oracle:
    """Plays forwards on bookkeeping instead of tensors, in the order that the model keeps."""

    def __init__(self, geometry: Geometry, topk: int) -> None:
        self.g = geometry
        self.topk = topk
        self.pool: dict[int, list[Held]] = {r: [None] * geometry.rows(r) for r in (0, *geometry.ratios)}
        self.state: dict[int, list[Held]] = {r: [None] * geometry.state_rows(r) for r in geometry.ratios}
        self.next_serial = 0

    def forward(self, batch: list[tuple[Request, int]], mode: Mode) -> StepMetadata:
        items = []
        for request, count in batch:
            start = len(request.serials)
            request.serials += range(self.next_serial, self.next_serial + count)
            self.next_serial += count
            items.append(BatchItem(request.slot, request.pages, start, tuple(request.serials[start:])))
        meta = build_metadata(self.g, self.topk, items, mode)
        flat = [
            (request, p) for request, count in batch for p in range(len(request.serials) - count, len(request.serials))
        ]
        self.check_tokens(meta, flat)
        for ratio in self.g.ratios:
            self.compress(meta, [(r, len(r.serials) - n, len(r.serials)) for r, n in batch], flat, ratio)
        if mode == "decode":
            self.store_ring(meta, flat)
        for t, (request, position) in enumerate(flat):
            self.check_reads(meta, flat, t, request, position)
        if mode == "prefill":
            self.store_ring(meta, flat)
        return meta

    def check_tokens(self, meta: StepMetadata, flat: list[tuple[Request, int]]) -> None:
        assert len(flat) == meta.T
        assert meta.token_ids.tolist() == [r.serials[p] for r, p in flat]
        assert meta.positions.tolist() == [p for _, p in flat]
        assert meta.slots.tolist() == [r.slot for r, _ in flat]
        ends = [t for t in range(len(flat)) if t + 1 == len(flat) or flat[t + 1][0] is not flat[t][0]]
        assert meta.last_rows.tolist() == ends
        assert meta.request.tolist() == [sum(e < t for e in ends) for t in range(len(flat))]

    def compress(
        self, meta: StepMetadata, spans: list[tuple[Request, int, int]], flat: list[tuple[Request, int]], ratio: int
    ) -> None:
        plan = meta.compress[ratio]
        due = [(r, p // ratio) for r, start, end in spans for p in range(start, end) if (p + 1) % ratio == 0]
        assert plan.n == len(due)
        sentinel = self.g.state_rows(ratio) - 1
        for i, (request, w) in enumerate(due):
            sources = zip(
                plan.gather_state[i].tolist(), plan.gather_flat[i].tolist(), plan.from_flat[i].tolist(), strict=True
            )
            got: list[int] = []
            missing = 0
            for state_row, flat_row, from_flat in sources:
                if not from_flat and state_row == sentinel:
                    missing += 1
                    continue
                r, p = flat[flat_row]
                held = (r.serials[p],) if from_flat else self.state[ratio][state_row]
                assert held is not None
                got += held
            assert tuple(got) == request.entry(w, ratio)
            assert missing == STATE_WINDOW[ratio] - len(got)
            assert plan.position[i] == w * ratio
            assert plan.out_row[i] == self.g.swa_rows + plan.out_slot[i]
        for (request, w), row in zip(due, plan.out_row.tolist(), strict=True):
            assert row >= self.g.swa_rows + self.g.entries_per_page(ratio), "page 0 is reserved"
            self.pool[ratio][row] = request.entry(w, ratio)
        targets = plan.state_dst.tolist()
        assert len(set(targets)) == len(targets)
        for source, target in zip(plan.state_src.tolist(), targets, strict=True):
            r, p = flat[source]
            assert r.slot * self.g.state_ring(ratio) <= target < (r.slot + 1) * self.g.state_ring(ratio)
            self.state[ratio][target] = (r.serials[p],)

    def store_ring(self, meta: StepMetadata, flat: list[tuple[Request, int]]) -> None:
        targets = meta.ring_store_dst.tolist()
        assert len(set(targets)) == len(targets)
        newest = {r.slot: p for r, p in flat}
        kept = [t for t, (r, p) in enumerate(flat) if meta.mode == "decode" or p > newest[r.slot] - self.g.window]
        assert meta.ring_store_src.tolist() == kept
        for source, target in zip(kept, targets, strict=True):
            r, p = flat[source]
            assert target == meta.ring_row[source]
            assert r.slot * self.g.ring_rows <= target < (r.slot + 1) * self.g.ring_rows
            for rows in self.pool.values():
                rows[target] = (r.serials[p],)

    def read(self, stream: IndexStream, t: int, ratio: int) -> list[Held]:
        return [self.pool[ratio][row] for row in stream.indices[stream.indptr[t] : stream.indptr[t + 1]].tolist()]

    def check_reads(
        self, meta: StepMetadata, flat: list[tuple[Request, int]], t: int, r: Request, position: int
    ) -> None:
        window: list[Held] = [(s,) for s in r.serials[max(0, position + 1 - self.g.window) : position + 1]]
        fresh: list[Held] = []
        streams = meta.streams
        if meta.mode == "prefill":
            assert meta.extend is not None
            streams = meta.prefix
            own = meta.extend.indices[meta.extend.indptr[t] : meta.extend.indptr[t + 1]].tolist()
            fresh = [(flat[row][0].serials[flat[row][1]],) for row in own]
        stored = self.read(streams[0], t, 0)
        assert stored + fresh == window
        assert set(streams) == {0, 128} & {0, *self.g.ratios}
        if 128 in self.g.ratios:
            entries = r.visible(position, 128)
            assert self.read(streams[128], t, 128) == stored + entries
            assert meta.visible128[t] == len(entries)
        if 4 in self.g.ratios:
            self.check_csa(meta, t, r, position, stored)

    def check_csa(self, meta: StepMetadata, t: int, r: Request, position: int, stored: list[Held]) -> None:
        """Top-k takes the newest entries here; whatever it takes, its rows must fit exactly behind the window."""
        assert meta.csa is not None
        entries = r.visible(position, 4)
        count = min(len(entries), self.topk)
        assert (meta.visible4[t], meta.csa_len[t]) == (len(entries), count)
        begin = int(meta.csa_len[:t].sum())
        indices = meta.csa.indices.clone()
        table = meta.page_table[meta.request[t]].tolist()
        chosen = range(len(entries) - count, len(entries))
        for place, w in zip(meta.csa.tail[begin : begin + count].tolist(), chosen, strict=True):
            assert indices[place] == -1
            indices[place] = self.g.compressed_row(table, w, 4)
        expected = stored + entries[len(entries) - count :]
        assert self.read(IndexStream(meta.csa.indptr, indices), t, 4) == expected
        assert int(meta.csa.indptr[t + 1] - meta.csa.indptr[t]) == len(expected)


def geometry(window: int, ratios: tuple[int, ...], verify: int = 1, pages: int = 13, page_size: int = 256) -> Geometry:
    config = replace(preset("tiny"), sliding_window=window, compress_ratios=ratios)
    return Geometry.plan(config, 3, (pages - 1) * page_size, verify_tokens=verify, page_size=page_size)


Forward = tuple[Mode, list[tuple[int, int, int]]]
Scene = tuple[Geometry, int, list[Request], list[Forward]]


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """A pool, requests with scattered slots and pages, and forwards of ``(request, tokens, tokens kept)`` items."""
    window = draw(st.sampled_from([1, 2, 3, 7, 8, 9, 17, 64, 128]))
    ratios = draw(st.sampled_from([(0, 4, 128), (0, 4), (0, 128), (4,), (128,), (0,)]))
    verify = draw(st.sampled_from([1, 1, 2, 3, 4, 6, 11]))
    g = geometry(window, ratios, verify, pages=13, page_size=draw(st.sampled_from([128, 256])))
    spare = st.sampled_from([0, 0, 1, 5])
    g = replace(
        g,
        ring_rows=g.ring_rows + draw(spare),
        state4_ring=g.state4_ring + draw(spare),
        state128_ring=g.state128_ring + draw(spare),
    )
    slots, pages = draw(st.permutations(range(1, 4))), draw(st.permutations(range(1, 13)))
    requests = [Request(slot, tuple(pages[4 * i : 4 * i + 4])) for i, slot in enumerate(slots)]
    room = [4 * g.page_size] * 3
    forwards: list[Forward] = []
    for _ in range(draw(st.integers(1, 9))):
        mode: Mode = draw(st.sampled_from(["prefill", "decode"]))
        members = draw(st.lists(st.sampled_from(range(3)), min_size=1, max_size=3, unique=True))
        sizes = st.one_of(st.integers(1, 12), st.integers(120, 140), st.integers(1, 300))
        items = []
        for member in members:
            count = draw(st.integers(1, verify) if mode == "decode" else sizes)
            count = min(count, room[member])
            kept = draw(st.integers(1, count)) if mode == "decode" and count else count
            room[member] -= kept
            items += [(member, count, kept)] if count else []
        if items:
            forwards.append((mode, items))
    return g, draw(st.sampled_from([1, 2, 5, 16, 512])), requests, forwards


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(scenes())
def test_streams_hold_exactly_what_a_query_may_see(
    scene: Scene,
) -> None:
    g, topk, requests, forwards = scene
    oracle = Oracle(g, topk)
    for mode, items in forwards:
        oracle.forward([(requests[i], count) for i, count, _ in items], mode)
        for i, count, kept in items:
            del requests[i].serials[len(requests[i].serials) - count + kept :]


@pytest.mark.parametrize(("window", "verify"), [(128, 1), (8, 1), (8, 3), (128, 4)])
def test_long_decode_after_prefill_with_rollbacks(window: int, verify: int) -> None:
    """Crosses every alignment of both ratios, with a verify step at each and a different number kept each time."""
    g = geometry(window, (0, 4, 128), verify)
    oracle = Oracle(g, 8)
    first, second = Request(3, (7, 2, 11, 4)), Request(1, (5, 12, 1, 3))
    oracle.forward([(first, 131), (second, 254)], "prefill")
    for step in range(140):
        batch = [(first, verify), (second, 1 + step % verify)]
        oracle.forward(batch if step % 3 else batch[::-1], "decode")
        for request, count in batch:
            kept = 1 + (step * 7 + request.slot) % count
            del request.serials[len(request.serials) - count + kept :]


@pytest.mark.parametrize("verify", [1, 2, 3, 4])
def test_every_rollback_at_every_alignment(verify: int) -> None:
    for start in range(250, 260):
        for kept in range(1, verify + 1):
            oracle, request = Oracle(geometry(8, (4, 128), verify), 4), Request(1, (4, 6))
            oracle.forward([(request, start)], "prefill")
            oracle.forward([(request, verify)], "decode")
            del request.serials[start + kept :]
            oracle.forward([(request, 140)], "prefill")


@pytest.mark.parametrize(
    "cuts", [(129, 130, 131, 132, 133, 270), (1, 2, 3, 4, 5, 6, 7, 8, 9), (127, 128, 255, 256, 257)]
)
def test_prefill_in_chunks_then_a_slot_changes_hands(cuts: tuple[int, ...]) -> None:
    oracle = Oracle(geometry(128, (0, 4, 128)), 512)
    for pages in ((9, 1, 4), (4, 9, 2)):
        request = Request(2, pages)
        for begin, end in zip((0, *cuts), (*cuts, 300), strict=True):
            oracle.forward([(request, end - begin)], "prefill")
        oracle.forward([(request, 1)], "decode")


def retained(ring: int, window: int, ratio: int, verify: int) -> bool:
    """Whether state needed after any rollback of a verify step of ``verify`` tokens survives that step's writes."""
    for start in range(4 * window, 4 * window + 2 * ratio):
        written = start + verify - 1
        for committed in range(start + 1, start + verify + 1):
            oldest = committed // ratio * ratio + ratio - window
            if any(p + ring <= written for p in range(oldest, committed)):
                return False
    return True


@pytest.mark.parametrize(
    ("ratio", "ring", "limit"), [(4, 8, 2), (4, 16, 10), (4, 24, 18), (128, 128, 2), (128, 256, 130)]
)
def test_state_rings_take_the_documented_verify_width_and_no_more(ratio: int, ring: int, limit: int) -> None:
    window = STATE_WINDOW[ratio]
    assert retained(ring, window, ratio, limit)
    assert not retained(ring, window, ratio, limit + 1)
    rings = {"state4_ring": ring} if ratio == 4 else {"state128_ring": ring}
    assert replace(geometry(128, (ratio,)), ring_rows=1000, **rings).max_verify_tokens == limit


@pytest.mark.parametrize("verify", [1, 2, 3, 10, 11, 130, 131])
def test_planned_rings_take_what_they_were_planned_for(verify: int) -> None:
    g = geometry(8, (0, 4, 128), verify)
    assert g.max_verify_tokens == verify
    assert all(retained(g.state_ring(r), STATE_WINDOW[r], r, verify) for r in g.ratios)
    assert (g.state4_ring % 8, g.state128_ring % 128) == (0, 0)
