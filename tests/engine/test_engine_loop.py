"""The loop in this process, over a runner without a model: tokens, failures, telemetry, recordings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.presets import PRESETS
from dsv4lab.engine import messages as m
from dsv4lab.engine.fingerprints import fingerprint
from dsv4lab.engine.payloads import unpack_timeline
from dsv4lab.engine.reads import ReadsDesk
from dsv4lab.engine.request import FinishReason, RequestSpec, SamplingParams
from dsv4lab.engine.service import Service
from dsv4lab.engine.step import Step
from dsv4lab.engine.telemetry import LIVE_PERIOD_NS
from dsv4lab.overlap.plan import PRESETS as PLANS
from tests.engine.fake_runner import RAISE, REFUSE, FakeResult, FakeRunner

HOT = SamplingParams(temperature=1.0, top_k=50, top_p=0.95, seed=1)


class Bench:
    """A service with all that it sent."""

    def __init__(self, **fields: Any) -> None:
        small = {"max_running_requests": 4, "max_total_tokens": 4096, "chunked_prefill_size": 64}
        config = EngineConfig("tiny", **{**small, **fields})
        self.sent: list[m.Message] = []
        self.runner = FakeRunner(PRESETS["tiny"], config)
        self.service = Service(config, PRESETS["tiny"], self.runner, self.sent.append)

    def submit(self, *specs: RequestSpec) -> None:
        self.service.handle(m.Submit(list(specs)))

    def run(self) -> Bench:
        while not self.service.idle:
            self.service.step()
        return self

    def tokens(self, request_id: int) -> list[int]:
        return [token for p in self.of(m.Progress) for number, token in p.tokens if number == request_id]

    def end(self, request_id: int) -> m.Finished:
        (end,) = [end for p in self.of(m.Progress) for end in p.finished if end.request_id == request_id]
        return end

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.sent if isinstance(message, kind)]

    def ask(self, make: Callable[[int], m.Call]) -> Any:
        self.service.handle(make(77))
        (answer,) = [x for x in self.sent if isinstance(x, m.Reply) and x.call == 77]
        self.sent.remove(answer)
        return answer


def spec(
    number: int, prompt: Sequence[int], new: int = 8, sampling: SamplingParams | None = None, **rest: Any
) -> RequestSpec:
    params = sampling or SamplingParams()
    return RequestSpec(number, tuple(prompt), new, params, params.seed or 0, **rest)


def prompt(number: int, length: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(number).integers(20, 400, length).tolist())


def alone(request: RequestSpec, **fields: Any) -> list[int]:
    bench = Bench(**fields)
    bench.submit(request)
    return bench.run().tokens(request.request_id)


@pytest.mark.parametrize("sampling", [SamplingParams(), HOT], ids=["greedy", "sampled"])
def test_batched_equals_alone(sampling: SamplingParams) -> None:
    requests = [spec(i, prompt(i, 10 + 61 * i), sampling=replace(sampling, seed=i)) for i in range(7)]
    bench = Bench()
    bench.submit(*requests)
    bench.run()
    for request in requests:
        assert bench.tokens(request.request_id) == alone(request)
        assert bench.end(request.request_id).reason is FinishReason.LENGTH
    assert max(items for _, _, items in bench.runner.forwards) == 4


@given(st.integers(1, 200), st.integers(1, 200))
def test_the_chunk_size_does_not_matter(length: int, chunk: int) -> None:
    request = spec(1, prompt(length, length), new=3, sampling=HOT)
    assert alone(request, chunked_prefill_size=chunk) == alone(request, chunked_prefill_size=4096)


@given(st.integers(0, 7), st.sampled_from([SamplingParams(), HOT]))
def test_a_replayed_request_makes_the_same_tokens(cut: int, sampling: SamplingParams) -> None:
    request = spec(1, prompt(5, 40), sampling=sampling)
    whole = alone(request)
    assert whole[:cut] + alone(replace(request, generated=tuple(whole[:cut]))) == whole


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others() -> None:
    numbers_and_seeds = ((1, 5), (2, 5), (3, 6))
    first, again, other = (alone(spec(n, prompt(5, 40), sampling=replace(HOT, seed=s))) for n, s in numbers_and_seeds)
    assert first == again
    assert first != other


def test_a_request_that_cannot_run_ends_with_its_error() -> None:
    bench = Bench()
    bench.submit(spec(1, (20, 100_000)), spec(2, (20,)))
    end = bench.run().end(1)
    assert (end.reason, end.kind) == (FinishReason.ERROR, "RequestError")
    assert "prompt[1] is 100000" in end.text
    assert bench.end(2).reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("order", "kind", "text"), [(RAISE, "EngineError", "planted failure"), (REFUSE, "PoolError", "planted refusal")]
)
def test_a_forward_that_fails_ends_its_requests_and_the_engine_goes_on(
    order: int, kind: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench(chunked_prefill_size=4)
    bench.submit(spec(1, prompt(1, 4), new=20))
    bench.service.step()
    bench.submit(spec(2, (order, 30)), spec(3, prompt(3, 10)))
    bench.run()
    assert (bench.end(2).reason, bench.end(2).kind) == (FinishReason.ERROR, kind)
    assert text in bench.end(2).text
    assert bench.end(1).reason is FinishReason.LENGTH
    status = bench.ask(m.GetStatus).value
    assert (status["free_slots"], status["free_pages"]) == (4, 16)
    assert ("Traceback" in capsys.readouterr().err) == (kind == "EngineError")


def test_what_a_gpu_says_has_a_key_that_the_client_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeRunner, "device_status", lambda self: {"auto": [], "captures": 2})
    status = Bench().ask(m.GetStatus).value
    assert status["graphs"] == {"auto": [], "captures": 2}
    assert "device" not in status, "there the client gives the device's name"


def test_an_abort_ends_a_request_and_releases_its_memory() -> None:
    bench = Bench()
    bench.submit(spec(1, prompt(1, 10), new=100), spec(2, prompt(2, 10), new=5))
    bench.service.step()
    bench.service.handle(m.Abort(1))
    assert bench.end(1).reason is FinishReason.ABORT
    assert [slot for slot, _ in bench.runner.pool.released] == [1]
    bench.service.handle(m.Abort(1))
    bench.service.handle(m.Abort(999))
    assert bench.run().tokens(2) == alone(spec(2, prompt(2, 10), new=5))


def test_slots_are_cleared_before_they_are_used_again() -> None:
    bench = Bench(max_running_requests=1)
    bench.submit(*(spec(i, prompt(i, 5), new=2) for i in range(4)))
    bench.run()
    assert [bench.tokens(i) for i in range(4)] == [alone(spec(i, prompt(i, 5), new=2)) for i in range(4)]


def test_debug_mode_checks_live_rows() -> None:
    bench = Bench(debug_poison=True)
    checked: list[tuple[int, int]] = []
    bench.runner.pool.check_live = lambda slot, pages, tokens: checked.append((slot, tokens))  # type: ignore[method-assign]
    bench.submit(spec(1, prompt(1, 70), new=2))
    bench.run()
    assert checked == [(1, 64), (1, 70), (1, 71)]


def test_the_plan_changes_between_two_forwards_and_a_bad_one_changes_nothing() -> None:
    bench = Bench(plan="hip", side_streams=1)
    assert bench.ask(m.GetStatus).value["plan"] == "hip/1"
    bench.submit(spec(1, prompt(1, 10)))
    bench.service.handle(m.Record(5, 100, until_idle=True))
    bench.service.step()
    assert isinstance(bench.ask(lambda call: m.SetPlan(call, PLANS["cuda"].to_json())), m.Done)
    bad = bench.ask(lambda call: m.SetPlan(call, {"name": "bad", "rules": [{"ops": "nonsense", "stream": "side0"}]}))
    assert (bad.kind, "no op matches" in bad.text) == ("PlanError", True)
    (recorded,) = bench.run().of(m.Recorded)
    assert [step.plan for step in recorded.steps] == ["hip/1"] + ["cuda"] * 7


def test_the_queue_policy_changes_live() -> None:
    bench = Bench()
    assert isinstance(bench.ask(lambda call: m.SetPolicy(call, "refcount")), m.Done)
    assert bench.runner.streams == ("queue", 4, "refcount", 1)
    assert bench.ask(lambda call: m.SetPolicy(call, "alphabetical")).kind == "ConfigError"
    assert bench.ask(m.GetStatus).value["queue_policy"] == "refcount"


def test_questions_are_answered() -> None:
    bench = Bench()
    bench.submit(spec(1, prompt(1, 300), new=10))
    bench.service.step()
    snapshot = bench.ask(m.GetSnapshot).snapshot
    (owner,) = snapshot.requests
    assert (owner.request_id, owner.slot, owner.tokens, owner.pages) == (1, 1, 64, (1, 2))
    assert len(snapshot.free_pages) == 14
    reads = bench.ask(lambda call: m.GetReads(call, 1, 63, 1)).reads
    assert (reads.ratio, len(reads.window_rows), len(reads.compressed_rows)) == (4, 64, 16)
    assert "running are: 1" in bench.ask(lambda call: m.GetReads(call, 5, 0, 0)).text
    assert "layer" in bench.ask(lambda call: m.GetReads(call, 1, 0, 99)).text
    assert bench.ask(m.GetOps).value["ops"][0]["name"] == "work"
    assert bench.ask(lambda call: m.GetProgram(call, "decode", 3)).program.tokens == 3
    status = bench.ask(m.GetStatus).value
    assert (status["steps"], status["running"], status["waiting"]) == (1, 1, 0)


def test_what_the_indexer_chose_is_told_with_the_next_forward() -> None:
    bench = Bench()
    bench.submit(spec(1, prompt(1, 70), new=3), spec(2, prompt(2, 20), new=20))
    for call, (request_id, layer) in enumerate(((2, 1), (1, 2), (1, 1), (2, 3)), start=10):
        bench.service.handle(m.GetReads(call, request_id, None, layer))
    assert bench.runner.watched == 1
    bench.run()
    reads = {answer.call: answer.reads for answer in bench.of(m.Reads)}
    assert [(reads[c].request_id, reads[c].layer) for c in (10, 11, 12, 13)] == [(2, 1), (1, 2), (1, 1), (2, 3)]
    assert len(reads[10].compressed_rows) == 2 < (reads[10].position + 1) // 4
    assert reads[11].compressed_rows == ()
    assert reads[12].position == 63
    assert bench.runner.watched is None


def test_a_question_about_a_request_that_ends_is_refused() -> None:
    bench = Bench()
    assert "is not running" in bench.ask(lambda call: m.GetReads(call, 5, None, 1)).text
    bench.submit(spec(1, prompt(1, 70)), spec(2, prompt(2, 10), new=1))
    assert "layer 99" in bench.ask(lambda call: m.GetReads(call, 1, None, 99)).text
    bench.service.handle(m.GetReads(8, 1, None, 1))
    bench.service.handle(m.Abort(1))
    (refused,) = bench.of(m.Failed)
    assert (refused.call, refused.kind) == (8, "RequestError")
    bench.run()


def test_a_recording_has_the_steps_asked_for_with_their_columns() -> None:
    bench = Bench()
    bench.submit(spec(1, prompt(1, 100), new=20))
    bench.service.handle(m.Record(5, 6))
    bench.run()
    (recorded,) = bench.of(m.Recorded)
    assert [s.step for s in recorded.steps] == list(range(6))
    assert [s.mode for s in recorded.steps] == ["prefill"] * 2 + ["decode"] * 4
    assert [s.tokens for s in recorded.steps] == [64, 36, 1, 1, 1, 1]
    assert recorded.program.mode == "decode"
    timeline = unpack_timeline(recorded.timeline)
    assert sorted(set(timeline.step.tolist())) == list(range(6))
    assert set(timeline.layer.tolist()) == {0}
    assert timeline.main_stream == "main"
    assert timeline.meta["manifest"]["preset"] == "tiny"
    assert timeline.meta["manifest"]["settings"]["plan"] == "off"
    assert recorded.steps[0].busy_ns == {"main": 1000, "side0": 1000}
    assert recorded.steps[0].hidden_ns == 1000


def test_a_recording_can_wait_for_a_decode_of_so_many_requests() -> None:
    bench = Bench()
    bench.service.handle(m.Record(5, 3, decoding=2))
    bench.submit(spec(1, prompt(1, 60), new=20), spec(2, prompt(2, 60), new=20))
    bench.run()
    (recorded,) = bench.of(m.Recorded)
    assert [(s.mode, s.requests) for s in recorded.steps] == [("decode", 2)] * 3


def test_a_recording_ends_when_told_or_when_there_is_no_work() -> None:
    bench = Bench()
    assert bench.ask(lambda call: m.Record(call, 3, until_idle=True)).program is None
    bench.submit(spec(1, prompt(1, 10), new=4))
    bench.service.handle(m.Record(5, 100))
    bench.run()
    assert bench.of(m.Recorded) == []
    assert bench.ask(lambda call: m.Record(call, 3)).text.startswith("a profile is being recorded already")
    assert isinstance(bench.ask(m.EndRecord), m.Done)
    (recorded,) = bench.of(m.Recorded)
    assert len(recorded.steps) == 4
    assert isinstance(bench.ask(m.EndRecord), m.Done)


@pytest.mark.parametrize("steps", [0, -1, 10**6])
def test_a_recording_of_no_or_too_many_steps_is_refused(steps: int) -> None:
    assert "takes 1 to" in Bench().ask(lambda call: m.Record(call, steps)).text


def test_live_steps_come_in_batches_and_only_while_watched() -> None:
    bench = Bench()
    now = [0]

    def clock() -> int:
        now[0] += LIVE_PERIOD_NS // 8
        return now[0]

    bench.service._loop._clock = clock
    bench.submit(spec(1, prompt(1, 10), new=40))
    for _ in range(5):
        bench.service.step()
    assert bench.of(m.Steps) == []
    bench.service.handle(m.Watch(True))
    bench.run()
    batches = bench.of(m.Steps)
    told = [record.step for batch in batches for record in batch.records]
    assert told == list(range(5, 40))
    ends = [batch.records[-1].start_ns + batch.records[-1].dur_ns for batch in batches[:-1]]
    assert len(batches) > 3
    assert all(later - earlier >= LIVE_PERIOD_NS for earlier, later in pairwise(ends))
    recent = unpack_timeline(batches[0].recent)
    assert set(recent.step.tolist()) <= {record.step for record in batches[0].records}
    bench.service.handle(m.Watch(False))
    count = len(batches)
    bench.submit(spec(2, prompt(2, 10)))
    bench.run()
    assert len(bench.of(m.Steps)) == count


def test_a_command_out_of_place_is_refused() -> None:
    with pytest.raises(Exception, match="takes no Start here"):
        Bench().service.handle(m.Start({}))


def test_fingerprints_tell_logits_apart_and_are_given_to_those_who_ask() -> None:
    bench = Bench()
    bench.submit(spec(1, prompt(1, 30), 5, fingerprints=True), spec(2, prompt(2, 30), 5))
    bench.run()
    again = Bench()
    again.submit(spec(1, prompt(1, 30), 5, fingerprints=True), spec(2, prompt(3, 30), 5, fingerprints=True))
    again.run()
    marks = bench.end(1).fingerprints
    assert len(marks) == 5
    assert len(set(marks)) == 5
    assert bench.end(2).fingerprints == ()
    assert again.end(1).fingerprints == marks
    assert again.end(2).fingerprints != marks


def test_a_fingerprint_sees_the_last_bit() -> None:
    row = np.linspace(-1, 1, 99, dtype=np.float32)
    other = row.copy()
    other[40] = np.nextafter(other[40], np.float32(2))
    assert fingerprint(row) == fingerprint(row.copy())
    assert fingerprint(row) != fingerprint(other)
    assert fingerprint(np.repeat(row, 2)[::2]) == fingerprint(row)


def test_with_drafts_the_row_of_a_request_is_that_of_its_last_known_token() -> None:
    """A verify step of two requests, three rows each: the second one's last token is row 3."""
    bench = Bench()
    bench.submit(spec(1, prompt(1, 30)), spec(2, prompt(2, 30)))
    bench.service.step()
    scheduler, runner = bench.service._scheduler, bench.runner
    sent: list[m.Message] = []
    desk = ReadsDesk(runner, scheduler, sent.append)
    desk.ask(m.GetReads(9, 2, None, 1))
    step = Step(7, "decode", tuple(r.decode_chunk(drafts=2) for r in scheduler.running), ())
    selection = np.full((6, 4), -1, np.int32)
    selection[3, :2] = (5, 1)
    desk.on_step(step, FakeResult(np.zeros((6, 1), np.float32), runner._record("decode", 6, 0), selection), 0, 1)
    (reads,) = [message.reads for message in sent if isinstance(message, m.Reads)]
    assert (reads.request_id, reads.position, len(reads.compressed_rows)) == (2, 30, 2)
    bench.run()
