"""The scheduler alone: who runs when, who must wait, and who is stopped."""

from __future__ import annotations

from typing import Any

import pytest

from dsv4lab.engine.request import FinishReason, RequestSpec, SamplingParams
from dsv4lab.engine.scheduler import Scheduler
from dsv4lab.engine.step import Outcome, Step
from dsv4lab.errors import EngineError
from dsv4lab.kv.allocator import Allocator
from dsv4lab.kv.geometry import Geometry

STOP = 99


def scheduler(slots: int = 4, pages: int = 8, budget: int = 64, **more: Any) -> Scheduler:
    geometry = Geometry(16, 16, slots + 1, pages + 1, 8, 8, (0, 4, 128), page_size=128)
    return Scheduler(Allocator(geometry), budget, **more)


def request(number: int, prompt: int, new: int = 4, generated: int = 0) -> RequestSpec:
    sampling = SamplingParams(stop_token_ids=(STOP,))
    return RequestSpec(number, tuple(range(1, prompt + 1)), new, sampling, generated=tuple(range(generated)))


def run(s: Scheduler, step: Step, token: int = 7) -> list[Outcome]:
    s.check()
    return s.complete(step, [token if chunk.samples else None for chunk in step.chunks])


def next_step(s: Scheduler) -> Step:
    step = s.next_step()
    assert step is not None
    return step


def test_a_request_is_prefilled_in_chunks_and_then_decoded() -> None:
    s = scheduler(budget=64)
    s.submit(request(1, prompt=150, new=2))
    seen = []
    while (step := s.next_step()) is not None:
        (chunk,) = step.chunks
        seen.append((step.mode, chunk.start, len(chunk.tokens), chunk.samples))
        run(s, step)
    assert seen == [
        ("prefill", 0, 64, False),
        ("prefill", 64, 64, False),
        ("prefill", 128, 22, True),
        ("decode", 150, 1, True),
    ]


def test_one_prefill_serves_several_requests_within_its_budget() -> None:
    s = scheduler(budget=64)
    for number, prompt in ((1, 30), (2, 30), (3, 30)):
        s.submit(request(number, prompt))
    step = next_step(s)
    assert [(c.spec.request_id, len(c.tokens), c.samples) for c in step.chunks] == [
        (1, 30, True),
        (2, 30, True),
        (3, 4, False),
    ]
    assert step.fresh_slots == tuple(c.slot for c in step.chunks)
    run(s, step)
    assert next_step(s).mode == "decode"


def test_whole_chunks_are_those_of_the_request_alone() -> None:
    """In one forward where they fit into the budget together; one that does not waits, and is not cut."""
    s = scheduler(whole_chunks=True, pages=12)
    lengths = {1: 100, 2: 40, 3: 20, 4: 70}
    for number, length in lengths.items():
        s.submit(request(number, length))
    found: dict[int, list[int]] = {number: [] for number in lengths}
    together = []
    while len(s.running) + s.waiting:
        step = s.next_step()
        assert step is not None
        if step.mode == "prefill":
            together.append([chunk.spec.request_id for chunk in step.chunks])
            for chunk in step.chunks:
                found[chunk.spec.request_id].append(len(chunk.tokens))
        run(s, step, STOP)
    assert found == {1: [64, 36], 2: [40], 3: [20], 4: [64, 6]}
    assert together[0] == [1]
    assert [2, 3] in together


def test_prefill_and_decode_alternate_while_there_is_work_of_both() -> None:
    s = scheduler(budget=16)
    s.submit(request(1, prompt=16, new=10))
    run(s, next_step(s))
    s.submit(request(2, prompt=64))
    modes = []
    for _ in range(6):
        step = next_step(s)
        modes.append(step.mode)
        run(s, step)
    assert modes == ["decode", "prefill", "decode", "prefill", "decode", "prefill"]


def test_the_first_in_line_is_not_overtaken_by_smaller_ones() -> None:
    s = scheduler(pages=4)
    s.submit(request(1, prompt=3 * 128 - 4, new=4))
    s.submit(request(2, prompt=2 * 128 - 4, new=4))
    s.submit(request(3, prompt=1, new=4))
    order: list[int] = []
    while (step := s.next_step()) is not None:
        order += [c.spec.request_id for c in step.chunks if c.start == 0]
        run(s, step)
    assert order == [1, 2, 3]


def test_slots_limit_admission() -> None:
    s = scheduler(slots=2)
    for number in (1, 2, 3):
        s.submit(request(number, prompt=4))
    assert len(next_step(s).chunks) == 2
    assert (s.waiting, len(s.running)) == (1, 2)


def test_a_stop_token_ends_the_request_and_is_its_last_token() -> None:
    s = scheduler()
    s.submit(request(1, prompt=4, new=50))
    (outcome,) = run(s, next_step(s), STOP)
    assert (outcome.token, outcome.finish) == (STOP, FinishReason.STOP)
    assert s.idle


def test_a_replayed_request_goes_on_where_it_was() -> None:
    """All but its last token are prefilled, and nothing is chosen: it then decodes, as it would have."""
    s = scheduler()
    s.submit(request(1, prompt=10, new=4, generated=3))
    (chunk,) = (step := next_step(s)).chunks
    assert chunk.tokens == (*range(1, 11), 0, 1)
    assert (step.mode, chunk.samples, chunk.following, chunk.generated) == ("prefill", False, 2, 3)
    run(s, step)
    (chunk,) = (step := next_step(s)).chunks
    assert (step.mode, chunk.tokens, chunk.samples, chunk.generated) == ("decode", (2,), True, 3)
    (outcome,) = run(s, step)
    assert outcome.finish is FinishReason.LENGTH


def test_a_mixed_step_decodes_everybody_and_fills_up_with_prompts() -> None:
    s = scheduler(budget=64, mixed=True)
    s.submit(request(1, prompt=20, new=10))
    s.submit(request(2, prompt=20, new=10))
    run(s, next_step(s))
    s.submit(request(3, prompt=100))
    s.submit(request(4, prompt=3))
    shapes = []
    for _ in range(3):
        step = next_step(s)
        shapes.append((step.mode, step.forward, [(c.spec.request_id, len(c.tokens), c.decodes) for c in step.chunks]))
        run(s, step)
    assert shapes == [
        ("mixed", "prefill", [(1, 1, True), (2, 1, True), (3, 62, False)]),
        ("mixed", "prefill", [(1, 1, True), (2, 1, True), (3, 38, False), (4, 3, False)]),
        ("decode", "decode", [(n, 1, True) for n in (1, 2, 3, 4)]),
    ]


def test_drafts_count_against_the_budget_of_a_mixed_step() -> None:
    s = scheduler(budget=8, mixed=True, lookahead=3)
    for number in (1, 2):
        s.submit(request(number, prompt=2, new=60))
    run(s, next_step(s))
    s.submit(request(3, prompt=40))
    steps = []
    for _ in range(4):
        steps.append(next_step(s))
        s.complete(steps[-1], [(7, 7) if c.decodes else None for c in steps[-1].chunks])
    assert [step.mode for step in steps] == ["decode", "prefill", "decode", "prefill"], "no room beside 8 tokens"
    assert [c.width for c in steps[0].chunks] == [4, 4]


def test_pages_come_as_a_request_grows() -> None:
    s = scheduler(pages=8, budget=512)
    s.submit(request(1, prompt=100, new=200))
    assert len(next_step(s).chunks[0].pages) == 1
    s.complete(s._in_flight, [7])  # type: ignore[arg-type]
    held = []
    while (step := s.next_step()) is not None:
        held.append((step.chunks[0].start, len(step.chunks[0].pages)))
        run(s, step)
    assert [held[i] for i in (0, 27, 28, 156)] == [(100, 1), (127, 1), (128, 2), (256, 3)]


def test_a_decode_step_has_room_for_its_drafts() -> None:
    s = scheduler(pages=8, budget=512, lookahead=6)
    s.submit(request(1, prompt=121, new=50))
    (chunk,) = (step := next_step(s)).chunks
    assert len(chunk.pages) == 1
    run(s, step)
    assert len(next_step(s).chunks[0].pages) == 1, "positions 121 to 127"
    s.complete(s._in_flight, [7])  # type: ignore[arg-type]
    assert len(next_step(s).chunks[0].pages) == 2


def test_when_pages_run_out_the_youngest_stops_and_goes_on_first() -> None:
    s = scheduler(slots=3, pages=4, budget=512)
    s.submit(request(1, prompt=120, new=200))
    s.submit(request(2, prompt=120, new=200))
    run(s, next_step(s))
    while s.preemptions == 0:
        run(s, next_step(s))
    s.submit(request(3, prompt=1, new=2))
    assert (s._waiting[0].spec.request_id, [r.spec.request_id for r in s.running]) == (2, [1])
    order = []
    while (step := s.next_step()) is not None:
        order += [c.spec.request_id for c in step.chunks if c.slot in step.fresh_slots]
        run(s, step)
    assert order == [2, 3], "request 3 does not overtake"
    assert (s.allocator.free_pages, s.allocator.free_slots) == (4, 3)


def test_a_stopped_request_prefills_what_it_knew_and_continues_with_the_same_token_number() -> None:
    s = scheduler(slots=2, pages=3, budget=512)
    for number in (1, 2):
        s.submit(request(number, prompt=126, new=140))
    run(s, next_step(s))
    generated = {1: 1, 2: 1}
    resumed = []
    while (step := s.next_step()) is not None:
        for chunk in step.chunks:
            number = chunk.spec.request_id
            assert chunk.generated == generated[number]
            if chunk.slot in step.fresh_slots:
                resumed.append((number, chunk.start, len(chunk.tokens), chunk.samples))
                assert [freed.slot for freed in step.freed] in ([], [chunk.slot])
            generated[number] += chunk.samples
        run(s, step)
    assert s.preemptions >= 1
    assert all(start == 0 and not samples for _, start, _, samples in resumed)
    assert generated == {1: 140, 2: 140}


def test_what_a_stopped_request_held_is_told_with_the_next_step() -> None:
    s = scheduler(slots=2, pages=3, budget=512)
    for number in (1, 2):
        s.submit(request(number, prompt=126, new=140))
    step = next_step(s)
    leases = {c.spec.request_id: c.lease for c in step.chunks}
    run(s, step)
    while not (step := next_step(s)).freed:
        run(s, step)
    (freed,) = step.freed
    assert (freed.slot, set(freed.pages)) == (leases[2].slot, set(leases[2].pages))
    assert [c.spec.request_id for c in step.chunks] == [1]


def test_with_full_reservation_nobody_is_stopped_and_all_pages_are_there_from_the_start() -> None:
    s = scheduler(slots=3, pages=4, budget=512, reserve_full=True)
    for number in (1, 2):
        s.submit(request(number, prompt=120, new=200))
    while (step := s.next_step()) is not None:
        assert all(len(c.pages) == 3 for c in step.chunks)
        assert len(step.chunks) == 1
        run(s, step)
    assert s.preemptions == 0


def test_an_admission_beside_others_leaves_a_page_for_them_to_grow() -> None:
    s = scheduler(slots=3, pages=2, budget=512)
    s.submit(request(1, prompt=100, new=10))
    run(s, next_step(s))
    s.submit(request(2, prompt=100, new=10))
    assert next_step(s).mode == "decode"
    assert s.waiting == 1


def test_a_stopped_request_can_be_aborted() -> None:
    s = scheduler(slots=3, pages=3, budget=512)
    for number in (1, 2):
        s.submit(request(number, prompt=126, new=140))
    while s.preemptions == 0:
        run(s, next_step(s))
    outcome = s.abort(2)
    assert outcome == Outcome(2, finish=FinishReason.ABORT)
    assert not s.knows(2)


def test_an_abort_while_waiting_or_between_steps_is_immediate() -> None:
    s = scheduler(slots=1)
    s.submit(request(1, prompt=4))
    s.submit(request(2, prompt=4))
    run(s, next_step(s))
    waiting, running = s.abort(2), s.abort(1)
    assert waiting is not None
    assert (waiting.finish, waiting.released) == (FinishReason.ABORT, None)
    assert running is not None
    assert running.released is not None
    assert s.idle
    assert s.abort(1) is None


def test_an_abort_in_flight_gives_back_only_when_the_step_is_done() -> None:
    s = scheduler()
    s.submit(request(1, prompt=4))
    step = next_step(s)
    free = s.allocator.free_pages
    assert s.abort(1) is None
    assert s.allocator.free_pages == free
    (outcome,) = run(s, step)
    assert (outcome.token, outcome.finish) == (None, FinishReason.ABORT)
    assert s.allocator.free_pages == free + 1


def test_a_failed_step_ends_its_requests_and_no_other() -> None:
    s = scheduler(budget=16)
    s.submit(request(1, prompt=16))
    run(s, next_step(s))
    s.submit(request(2, prompt=16))
    assert (step := next_step(s)).mode == "decode"
    assert [o.finish for o in s.fail(step)] == [FinishReason.ERROR]
    assert [r.spec.request_id for r in s.running] == [2]


def test_misuse_is_refused() -> None:
    s = scheduler()
    s.submit(request(1, prompt=4))
    with pytest.raises(EngineError, match="request 1 exists"):
        s.submit(request(1, prompt=4))
    step = next_step(s)
    with pytest.raises(EngineError, match="still in flight"):
        s.next_step()
    with pytest.raises(EngineError, match="a token was due"):
        s.complete(step, [None])
    with pytest.raises(EngineError, match="not in flight"):
        s.complete(step, [1])
