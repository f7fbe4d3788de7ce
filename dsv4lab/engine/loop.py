"""The engine loop: one forward at a time, from the scheduler's choice to the tokens it gave."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from dsv4lab.engine.choice import Chooser
from dsv4lab.engine.messages import Failed, Finished, Progress, failure
from dsv4lab.engine.protocol import ForwardResult, ModelRunner
from dsv4lab.engine.request import FinishReason, Limits, RequestSpec
from dsv4lab.engine.scheduler import Scheduler
from dsv4lab.engine.speculation import DraftRequest, Speculator
from dsv4lab.engine.step import Chunk, Outcome, Step
from dsv4lab.errors import EngineError, RequestError
from dsv4lab.kv.metadata import BatchItem

Clock = Callable[[], int]


class StepListener(Protocol):
    """Told of every forward that succeeded, and of running out of work."""

    def on_step(self, step: Step, result: ForwardResult, start_ns: int, dur_ns: int) -> None:
        """``step`` ran in ``[start_ns, start_ns + dur_ns)`` and gave ``result``."""
        ...

    def on_idle(self) -> None:
        """The engine has no work left."""
        ...


class EngineLoop:
    """Requests in, :class:`Progress` out through ``emit``. Used from one thread; never raises for a request's fault.

    ``debug`` checks after each forward that all live rows of its requests are finite.
    """

    def __init__(
        self,
        runner: ModelRunner,
        scheduler: Scheduler,
        limits: Limits,
        emit: Callable[[Progress], None],
        *,
        listeners: Sequence[StepListener] = (),
        clock: Clock = time.perf_counter_ns,
        debug: bool = False,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._limits = limits
        self._emit = emit
        self._listeners = tuple(listeners)
        self._clock = clock
        self._debug = debug
        self._chooser = Chooser(self._tokens_of)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to run."""
        return self._scheduler.idle

    def submit(self, spec: RequestSpec) -> None:
        """Queue a request; one that can never run ends at once with its error."""
        try:
            self._limits.check(spec)
            self._scheduler.submit(spec)
        except (RequestError, EngineError) as error:
            ended = Finished(spec.request_id, FinishReason.ERROR, type(error).__name__, str(error))
            self._emit(Progress(self._clock(), [], [ended]))

    def abort(self, request_id: int) -> None:
        """End a request, unless it has ended already."""
        outcome = self._scheduler.abort(request_id)
        if outcome is not None:
            self._report([outcome])

    def step(self) -> bool:
        """Run one forward; False if there was none to run."""
        step = self._scheduler.next_step()
        if step is None:
            return False
        start = self._clock()
        try:
            chosen, result = self._run(step)
        except Exception as error:  # noqa: BLE001 - one batch's failure must not take the engine down
            self._report(self._scheduler.fail(step), failure(0, error))
        else:
            duration = self._clock() - start
            self._report(self._scheduler.complete(step, chosen))
            for listener in self._listeners:
                listener.on_step(step, result, start, duration)
        if self._scheduler.idle:
            for listener in self._listeners:
                listener.on_idle()
        return True

    def _run(self, step: Step) -> tuple[Sequence[int | tuple[int, ...] | None], ForwardResult]:
        self._prepare_slots(step)
        speculator = self._runner.speculator
        decoding = [c for c in step.chunks if c.decodes]
        if speculator is not None and decoding:
            return self._run_speculatively(speculator, decoding, step.chunks[len(decoding) :])
        items = _items(step.chunks)
        result = self._runner.forward(items, step.forward)
        chosen = self._chooser.next(step.chunks, result)
        self._check_live(step.chunks, [len(c.tokens) for c in step.chunks])
        if speculator is not None:
            speculator.observe_prefill(items, _following(step.chunks, chosen))
        return chosen, result

    def _prepare_slots(self, step: Step) -> None:
        for freed in step.freed:
            self._runner.pool.release(freed.slot, freed.pages)
        for slot in step.fresh_slots:
            self._runner.pool.reset_slot(slot)
        for resume in step.resumes:
            self._runner.restore_slot(resume)

    def _run_speculatively(
        self, speculator: Speculator, decoding: Sequence[Chunk], prefill: Sequence[Chunk]
    ) -> tuple[list[int | tuple[int, ...] | None], ForwardResult]:
        """A verify step of the decoding requests, with the prefill chunks of others in the same forward."""
        first: list[int | None] = []

        def following(result: ForwardResult, row: int) -> list[int]:
            first.extend(self._chooser.next(prefill, result, row))
            return _following(prefill, first)

        requests = [
            DraftRequest(item, c.spec.sampling, c.spec.seed, c.generated, self._chooser.history(c))
            for c, item in zip(decoding, _items(decoding), strict=True)
        ]
        tokens, result = speculator.step(requests, _items(prefill), following)
        for at, (chunk, new) in enumerate(zip(decoding, tokens, strict=True)):
            self._chooser.note_rows(chunk, result, at * (speculator.drafts + 1), new)
        self._check_live([*decoding, *prefill], [*map(len, tokens), *(len(c.tokens) for c in prefill)])
        return [*tokens, *first], result

    def _check_live(self, chunks: Sequence[Chunk], counts: Sequence[int]) -> None:
        if self._debug:
            for chunk, count in zip(chunks, counts, strict=True):
                self._runner.pool.check_live(chunk.slot, chunk.pages, chunk.start + count)

    def _tokens_of(self, request_id: int) -> list[int]:
        running = self._scheduler.find(request_id)
        assert running is not None
        return running.tokens

    def _report(self, outcomes: list[Outcome], error: Failed | None = None) -> None:
        for outcome in outcomes:
            if outcome.released is not None:
                self._runner.pool.release(outcome.released.slot, outcome.released.pages)
        tokens = [(o.request_id, o.token) for o in outcomes if o.token is not None]
        logprobs = self._chooser.take_logprobs([request_id for request_id, _ in tokens])
        finished = [self._finished(o, error) for o in outcomes if o.finish is not None]
        if tokens or finished:
            self._emit(Progress(self._clock(), tokens, finished, logprobs))

    def _finished(self, outcome: Outcome, error: Failed | None) -> Finished:
        assert outcome.finish is not None
        kind, text = "", ""
        if outcome.finish is FinishReason.ERROR and error is not None:
            kind, text = error.kind, error.text
        return Finished(outcome.request_id, outcome.finish, kind, text, self._chooser.end(outcome.request_id))


def _items(chunks: Sequence[Chunk]) -> list[BatchItem]:
    return [BatchItem(c.slot, c.pages, c.start, c.tokens) for c in chunks]


def _following(chunks: Sequence[Chunk], chosen: Sequence[int | None]) -> list[int]:
    """The token after each chunk: the one just chosen, or the one that was known."""
    out = []
    for chunk, new in zip(chunks, chosen, strict=True):
        token = chunk.following if new is None else new
        assert token is not None
        out.append(token)
    return out
