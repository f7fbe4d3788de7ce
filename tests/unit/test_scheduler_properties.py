"""The scheduler under random mixes of requests, aborts, failures, small pools, drafts and shared prefixes.

A pool that remembers which token each page holds stands for the model: a request that reads a page which was given
away, not yet written or written by somebody else is found at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4lab.engine.request import FinishReason, RequestSpec, SamplingParams
from dsv4lab.engine.scheduler import Scheduler
from dsv4lab.engine.step import Outcome, Step
from dsv4lab.kv.allocator import Allocator
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.prefix_cache import PrefixCache

PAGE, STOP = 128, 99


@dataclass(frozen=True)
class Setting:
    slots: int
    pages: int
    budget: int
    lookahead: int
    mixed: bool
    reserve_full: bool
    cache_pages: int | None  # 0: no cache, None: no limit
    cache_snapshots: int


@dataclass(frozen=True)
class Ring:
    """A snapshot: the tokens that the slot had seen."""

    tokens: tuple[int, ...]
    nbytes: int = 10


@dataclass
class Model:
    """What must hold of one scheduler, checked from outside while it runs."""

    setting: Setting
    rows: dict[tuple[int, int], int] = field(default_factory=dict)
    rings: dict[int, list[int]] = field(default_factory=dict)
    texts: dict[int, list[int]] = field(default_factory=dict)
    generated: dict[int, int] = field(default_factory=dict)
    ended: dict[int, FinishReason] = field(default_factory=dict)
    waits: dict[str, int] = field(default_factory=lambda: {"prefill": 0, "decode": 0})
    oldest: tuple[int, int] = (-1, 0)  # request, forwards without it

    def __post_init__(self) -> None:
        s = self.setting
        geometry = Geometry(16, 16 + s.lookahead, s.slots + 1, s.pages + 1, 8, 8, (0, 4, 128), page_size=PAGE)
        allocator = Allocator(geometry)
        cache = None
        if s.cache_pages != 0:
            cache = PrefixCache(allocator, self.save, 10 * s.cache_snapshots, s.cache_pages)
        self.scheduler = Scheduler(
            allocator, s.budget, s.lookahead, mixed=s.mixed, reserve_full=s.reserve_full, cache=cache
        )

    def save(self, slot: int, length: int) -> Ring:
        ring = self.rings[slot]
        assert length <= len(ring) <= length + self.setting.lookahead
        return Ring(tuple(ring[:length]))

    def submit(self, spec: RequestSpec) -> None:
        self.texts[spec.request_id] = list(spec.prompt)
        self.scheduler.submit(spec)

    def begin(self, step: Step) -> None:
        self.scheduler.check()
        for freed in step.freed:
            self.release(freed.slot, freed.pages)
        for slot in step.fresh_slots:
            self.rings[slot] = []
        for resume in step.resumes:
            assert isinstance(resume.snapshot, Ring)
            assert len(resume.snapshot.tokens) == resume.length == len(resume.pages) * PAGE
            assert self.rings[resume.slot] == []
            self.rings[resume.slot] = list(resume.snapshot.tokens)
        self.check_shape(step)
        for chunk in step.chunks:
            text, stop = self.texts[chunk.spec.request_id], chunk.start + len(chunk.tokens)
            assert chunk.tokens == tuple(text[chunk.start : stop])
            assert chunk.following == (text[stop] if stop < len(text) else None)
            assert chunk.samples == (stop == len(text))
            assert chunk.generated == self.generated.get(chunk.spec.request_id, 0)
            assert len(chunk.pages) * PAGE >= chunk.start + chunk.width, "pages are there for all that is written"
            held = [self.rows.get((chunk.pages[p // PAGE], p % PAGE)) for p in range(chunk.start)]
            assert held == text[: chunk.start] == self.rings[chunk.slot], "all earlier tokens are in pages and ring"
        for chunk in step.chunks:
            written = [*chunk.tokens, *[-1] * chunk.drafts]
            for place, token in enumerate(written, start=chunk.start):
                self.rows[chunk.pages[place // PAGE], place % PAGE] = token
        self.check_turns(step)

    def check_shape(self, step: Step) -> None:
        budget = self.setting.budget
        assert step.mode == "decode" or sum(c.width for c in step.chunks) <= budget
        assert len({c.slot for c in step.chunks}) == len(step.chunks)
        assert 0 not in {c.slot for c in step.chunks}
        decoding = [c.decodes for c in step.chunks]
        assert decoding == sorted(decoding, reverse=True), "decoding requests come first"
        assert {c.decodes for c in step.chunks} == {"prefill": {False}, "decode": {True}}.get(step.mode, {True, False})
        if step.mode != "prefill":
            assert sum(decoding) == sum(r.prefilled for r in self.scheduler.running), "everybody decodes"

    def check_turns(self, step: Step) -> None:
        """No kind of work waits for two forwards, and neither does the oldest request."""
        running = self.scheduler.running
        kinds = {"decode" if r.prefilled else "prefill" for r in running}
        for kind in self.waits:
            served = step.mode in (kind, "mixed") or kind not in kinds
            self.waits[kind] = 0 if served else self.waits[kind] + 1
        assert max(self.waits.values()) <= 1
        first = running[0].spec.request_id
        assert first == min(r.spec.request_id for r in running), "first come, first served"
        missed = all(c.spec.request_id != first for c in step.chunks)
        self.oldest = (first, self.oldest[1] + 1 if missed and first == self.oldest[0] else int(missed))
        assert self.oldest[1] <= 1

    def end(self, step: Step, token: int, accepted: int, *, fails: bool) -> None:
        if fails:
            self.take(self.scheduler.fail(step))
            return
        chosen: list[tuple[int, ...] | None] = []
        for chunk in step.chunks:
            drafts = min(accepted, chunk.drafts)
            new = (*range(500, 500 + drafts), token) if chunk.samples else ()
            self.rings[chunk.slot] += [*chunk.tokens, *new[:-1]]
            for place, drafted in enumerate(new[:-1], start=chunk.start + 1):
                self.rows[chunk.pages[place // PAGE], place % PAGE] = drafted
            chosen.append(new or None)
        self.take(self.scheduler.complete(step, chosen))

    def take(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            number = outcome.request_id
            assert number not in self.ended, "nothing comes after the end"
            if outcome.token is not None:
                self.texts[number].append(outcome.token)
                self.generated[number] = self.generated.get(number, 0) + 1
            if outcome.finish is not None:
                self.ended[number] = outcome.finish
            if outcome.released is not None:
                self.release(outcome.released.slot, outcome.released.pages)
        self.scheduler.check()

    def release(self, slot: int | None, pages: tuple[int, ...]) -> None:
        if slot is not None:
            self.rings.pop(slot, None)
        self.rows = {key: token for key, token in self.rows.items() if key[0] not in pages}


def request(number: int, shared: int, length: int, new: int) -> RequestSpec:
    """The first ``shared`` tokens of the prompt are those of all others."""
    prompt = [*range(1000, 1000 + min(shared, length)), *[2000 + number] * max(0, length - shared)]
    return RequestSpec(number, tuple(prompt), new, SamplingParams(stop_token_ids=(STOP,)))


any_setting = st.builds(
    Setting,
    slots=st.integers(1, 4),
    pages=st.integers(4, 9),
    budget=st.integers(1, 200),
    lookahead=st.sampled_from([0, 0, 1, 3]),
    mixed=st.booleans(),
    reserve_full=st.sampled_from([False, False, True]),
    cache_pages=st.sampled_from([0, None, 2]),
    cache_snapshots=st.integers(1, 5),
)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.sampled_from([0, 128, 200, 300]), st.integers(1, 320), st.integers(1, 120)),
        st.tuples(st.just("abort"), st.integers(0, 12), st.booleans(), st.just(0)),
        st.tuples(st.just("step"), st.sampled_from([7, 7, 7, STOP]), st.integers(0, 3), st.sampled_from([1, 1, 1, 0])),
        st.tuples(st.just("run"), st.integers(1, 60), st.integers(0, 3), st.just(0)),
    ),
    max_size=40,
)


@given(actions, any_setting)
def test_any_mix_of_requests_ends_and_gives_everything_back(
    script: list[tuple[str, int, int, int]], setting: Setting
) -> None:
    model = Model(setting)
    specs: dict[int, RequestSpec] = {}
    for action, a, b, c in script:
        if action == "submit":
            spec = request(len(specs), a, b, c)
            if spec.total_tokens + setting.lookahead <= setting.pages * PAGE:
                specs[spec.request_id] = spec
                model.submit(spec)
        elif action == "abort":
            abort(model, a, in_flight=bool(b))
        elif action == "step":
            play(model, a, b, fails=not c)
        else:
            for _ in range(a):
                play(model, 7, b)
    run_out(model, specs)


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.sampled_from([0, 100, 200]), st.integers(20, 250), st.integers(80, 250)), min_size=3, max_size=6
    ),
    st.integers(2, 4),
    st.integers(4, 5),
    any_setting,
)
def test_pages_that_run_out_over_and_over(
    load: list[tuple[int, int, int]], slots: int, pages: int, setting: Setting
) -> None:
    """As many long requests as slots, on pages for one or two of them: somebody is stopped in nearly every example."""
    model = Model(replace(setting, slots=slots, pages=pages, reserve_full=False, budget=max(20, setting.budget)))
    specs = {number: request(number, *three) for number, three in enumerate(load)}
    for spec in specs.values():
        model.submit(spec)
    run_out(model, specs)
    assert set(model.ended.values()) == {FinishReason.LENGTH}


def run_out(model: Model, specs: dict[int, RequestSpec]) -> None:
    """Play until nothing is left, and look at what is."""
    steps = 0
    while play(model, 7, steps % 4):
        steps += 1
    bound = 2 * sum(spec.total_tokens for spec in specs.values()) * (1 + model.scheduler.preemptions)
    assert steps <= bound, "every forward is progress"
    assert model.scheduler.idle
    assert set(model.ended) == set(specs)
    for number, reason in model.ended.items():
        if reason is FinishReason.LENGTH:
            assert model.generated[number] == specs[number].max_new_tokens
    everything_is_back(model)


def everything_is_back(model: Model) -> None:
    allocator, cache = model.scheduler.allocator, model.scheduler.cache
    assert allocator.free_slots == model.setting.slots
    assert allocator.free_pages + allocator.idle_pages == model.setting.pages
    if cache is not None:
        assert cache.pages == allocator.idle_pages
        assert cache.snapshots <= model.setting.cache_snapshots
        assert model.setting.cache_pages is None or cache.pages <= model.setting.cache_pages
        cache.evict(cache.pages)
        cache.check()
        assert (cache.snapshot_bytes, cache.snapshots) == (0, 0)
    assert allocator.free_pages == model.setting.pages


def play(model: Model, token: int, accepted: int, *, fails: bool = False) -> bool:
    step = model.scheduler.next_step()
    if step is None:
        return False
    model.begin(step)
    model.end(step, token, accepted, fails=fails)
    return True


def abort(model: Model, number: int, *, in_flight: bool) -> None:
    step = model.scheduler.next_step() if in_flight else None
    if step is not None:
        model.begin(step)
    outcome = model.scheduler.abort(number)
    if outcome is not None:
        model.take([outcome])
    if step is not None:
        model.end(step, 7, 0, fails=False)
