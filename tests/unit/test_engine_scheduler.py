"""The scheduler alone: who runs when, and that everything comes back."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.engine.request import FinishReason, RequestSpec, SamplingParams
from dsv4lab.engine.scheduler import Outcome, Scheduler, Step
from dsv4lab.errors import EngineError
from dsv4lab.kv.allocator import Allocator
from dsv4lab.kv.geometry import Geometry

STOP = 99


def scheduler(slots: int = 4, pages: int = 8, budget: int = 64) -> Scheduler:
    geometry = Geometry(16, 16, slots + 1, pages + 1, 8, 8, (0, 4, 128), page_size=128)
    return Scheduler(Allocator(geometry), budget)


def request(number: int, prompt: int, new: int = 4, generated: int = 0) -> RequestSpec:
    sampling = SamplingParams(stop_token_ids=(STOP,))
    return RequestSpec(number, tuple(range(1, prompt + 1)), new, sampling, generated=tuple(range(generated)))


def run(s: Scheduler, step: Step, token: int = 7) -> list[Outcome]:
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
    s = scheduler()
    s.submit(request(1, prompt=10, new=4, generated=3))
    (chunk,) = next_step(s).chunks
    assert chunk.tokens == (*range(1, 11), 0, 1, 2)
    assert (chunk.samples, chunk.generated) == (True, 3)


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


@dataclass
class Model:
    """What must hold of one scheduler, checked from outside while it runs."""

    scheduler: Scheduler
    lengths: dict[int, int] = field(default_factory=dict)  # tokens in the pool, by request
    generated: dict[int, int] = field(default_factory=dict)
    ended: dict[int, FinishReason] = field(default_factory=dict)
    admitted: list[int] = field(default_factory=list)
    starved: dict[str, int] = field(default_factory=lambda: {"prefill": 0, "decode": 0})

    def begin(self, step: Step) -> None:
        assert step.mode == "decode" or step.tokens <= self.scheduler.chunked_prefill_size
        assert len({c.slot for c in step.chunks}) == len(step.chunks)
        assert 0 not in {c.slot for c in step.chunks}
        for chunk in step.chunks:
            number = chunk.spec.request_id
            if chunk.start == 0:
                self.admitted.append(number)
                assert chunk.slot in step.fresh_slots
            assert chunk.start == self.lengths.get(number, 0), "positions are contiguous"
            assert len(chunk.pages) * 128 >= chunk.spec.total_tokens, "all pages are there from the start"
            assert chunk.generated == self.generated.get(number, 0)
        self._check_turns(step)

    def _check_turns(self, step: Step) -> None:
        kinds = {"decode" if r.prefilled else "prefill" for r in self.scheduler.running}
        for kind in ("prefill", "decode"):
            self.starved[kind] = 0 if step.mode == kind or kind not in kinds else self.starved[kind] + 1
        assert max(self.starved.values()) <= 1, "no kind of work waits for two forwards"

    def end(self, step: Step, outcomes: list[Outcome]) -> None:
        for chunk in step.chunks:
            number = chunk.spec.request_id
            self.lengths[number] = chunk.start + len(chunk.tokens)
        self.take(outcomes)

    def take(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            assert outcome.request_id not in self.ended, "nothing comes after the end"
            if outcome.token is not None:
                self.generated[outcome.request_id] = self.generated.get(outcome.request_id, 0) + 1
            if outcome.finish is not None:
                self.ended[outcome.request_id] = outcome.finish


actions = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 300), st.integers(1, 12)),
        st.tuples(st.just("abort"), st.integers(0, 20), st.booleans()),
        st.tuples(st.just("step"), st.sampled_from([7, 7, 7, STOP]), st.sampled_from([True, True, True, False])),
    ),
    max_size=60,
)


@given(actions, st.integers(1, 4), st.integers(3, 9), st.integers(1, 200))
def test_any_mix_of_requests_ends_and_gives_everything_back(
    script: list[tuple[str, int, int]], slots: int, pages: int, budget: int
) -> None:
    s = scheduler(slots, pages, budget)
    model = Model(s)
    specs: dict[int, RequestSpec] = {}
    for action, first, second in script:
        if action == "submit":
            spec = request(len(specs), prompt=first, new=second)
            specs[spec.request_id] = spec
            s.submit(spec)
        elif action == "abort":
            _abort(s, model, first, in_flight=bool(second))
        elif (step := s.next_step()) is not None:
            model.begin(step)
            model.end(step, run(s, step, first) if second else s.fail(step))
        s.check()
    steps = 0
    while (step := s.next_step()) is not None:
        model.begin(step)
        model.end(step, run(s, step))
        steps += 1
        assert steps <= 2 * sum(len(r.prompt) + r.max_new_tokens for r in specs.values()), "every forward is progress"
    assert s.idle
    assert set(model.ended) == set(specs)
    assert model.admitted == sorted(model.admitted), "first come, first served"
    assert (s.allocator.free_slots, s.allocator.free_pages) == (slots, pages)
    for number, reason in model.ended.items():
        if reason is FinishReason.LENGTH:
            assert model.generated[number] == specs[number].max_new_tokens


def _abort(s: Scheduler, model: Model, number: int, *, in_flight: bool) -> None:
    step = s.next_step() if in_flight else None
    if step is not None:
        model.begin(step)
    outcome = s.abort(number)
    if outcome is not None:
        model.take([outcome])
    if step is not None:
        model.end(step, run(s, step))
