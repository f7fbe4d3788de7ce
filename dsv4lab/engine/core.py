"""What every client call stands on: one worker behind a lock, the requests in flight, restarts, callbacks."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.model import ModelConfig
from dsv4lab.engine import messages as m
from dsv4lab.engine.callbacks import Callbacks
from dsv4lab.engine.handle import OnEnd, OnToken, RequestHandle
from dsv4lab.engine.link import Link, OnProgress, Patience
from dsv4lab.engine.payloads import unpack_timeline
from dsv4lab.engine.plans import effective_plan
from dsv4lab.engine.profiling import CaptureKind, How, record
from dsv4lab.engine.prompts import whole
from dsv4lab.engine.request import Limits, RequestSpec, SamplingParams
from dsv4lab.engine.requests import LiveRequests
from dsv4lab.engine.results import Recording
from dsv4lab.engine.sampler import derived_seed
from dsv4lab.errors import EngineError, LabError
from dsv4lab.overlap.plan import OverlapPlan, resolve_plan
from dsv4lab.text.stream import TextStream
from dsv4lab.timeline.records import Manifest, StepRecord
from dsv4lab.timeline.timeline import Timeline

OnStep = Callable[[tuple[StepRecord, ...], Timeline], object]
"""Called with the forwards since the last call, and a timeline of the latest of them."""

_STEP_BACKLOG = 2


class ClientCore:
    """The state of :class:`dsv4lab.engine.client.EngineClient`.

    ``_lock`` orders submissions against restarts and is never held while an answer is awaited, since the reader may
    need it; ``_changing`` serialises changes of settings and restarts.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        environ: Mapping[str, str | None] | None = None,
        patience: Patience | None = None,
        progress: OnProgress | None = None,
        _worker_arguments: Sequence[str] = (),
    ) -> None:
        self._config = config
        self._environ = dict(environ or {})
        self._callbacks = Callbacks()
        self._live = LiveRequests(self._callbacks)
        self._watchers: list[OnStep] = []
        self._mourners: list[Callable[[LabError], object]] = []
        self._observers: list[Callable[[], object]] = []
        self._held = False  # a new worker is on its way; requests wait for it
        self._lock = threading.Lock()
        self._changing = threading.Lock()
        self._link = Link(_worker_arguments, patience or Patience(), self._take, self._mourn)
        self._ready = self._link.connect(config, self._environ, progress)
        weakref.finalize(self, _end, self._link, self._callbacks)

    @property
    def config(self) -> EngineConfig:
        """The configuration in force."""
        return self._config

    @property
    def model_config(self) -> ModelConfig:
        """The model that runs."""
        return self._ready.model

    @property
    def limits(self) -> Limits:
        """What fits into this engine."""
        return self._ready.limits

    @property
    def manifest(self) -> Manifest:
        """What the worker was made with."""
        return self._ready.manifest

    @property
    def plan(self) -> OverlapPlan:
        """The overlap plan in force, before folding onto :attr:`side_streams`."""
        return resolve_plan(self._config.plan)

    @property
    def side_streams(self) -> int | None:
        """How many side streams the plan is folded onto; None: as it says."""
        return self._config.side_streams

    @property
    def hw_queues(self) -> int:
        """Hardware queues of the worker."""
        return self._config.hw_queues

    @property
    def pid(self) -> int | None:
        """Process id of the worker; None if there is none."""
        return self._link.pid

    @property
    def alive(self) -> bool:
        """Whether a worker takes commands."""
        return self._link.alive

    @property
    def callback_errors(self) -> tuple[Exception, ...]:
        """The latest exceptions that callbacks raised."""
        return tuple(self._callbacks.errors)

    @property
    def stall_s(self) -> float:
        """Seconds without a sign of life after which waiting for a request is given up."""
        return self._link.patience.stall_s

    def silent_for(self) -> float:
        """Seconds since the worker was last heard."""
        return self._link.silent_for()

    def abort(self, request_id: int) -> None:
        """End a request; nothing happens if it has ended."""
        with self._lock:
            if self._held:
                self._live.abort(request_id)
            elif self._link.alive:
                self._link.send(m.Abort(request_id))

    def on_step(self, callback: OnStep) -> Callable[[], None]:
        """Call ``callback(records, timeline)`` about ten times a second while the engine runs. Returns how to end that.

        A callback that is still busy when the next ones come loses those (``status()["dropped_updates"]``).
        """
        with self._lock:
            self._watchers.append(callback)
            self._watch()
        return partial(self._unwatch, callback)

    def on_exit(self, callback: Callable[[LabError], object]) -> Callable[[], None]:
        """Call ``callback(error)`` whenever the worker dies unasked. Returns how to end that."""
        self._mourners.append(callback)
        return lambda: self._mourners.remove(callback) if callback in self._mourners else None

    def on_change(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call ``callback()`` after plan, streams, queues, policy, load or worker changed. Returns how to end that.

        Changes that come while one waits to be told are told once.
        """
        self._observers.append(callback)
        return lambda: self._observers.remove(callback) if callback in self._observers else None

    def record_while(
        self,
        run: Callable[[], object],
        *,
        capture: CaptureKind | None = None,
        directory: str | Path | None = None,
    ) -> Recording:
        """The first 4096 forwards, with torch's profiler 256, while ``run()`` runs; see :meth:`EngineClient.profile`.

        Raises what ``run()`` raises, and the worker's end.
        """
        return record(self._link, run, how=How.of(self._config, capture, directory))[2]

    def _tell_change(self) -> None:
        for callback in list(self._observers):
            self._callbacks.post(callback, room=1)

    def _spec(
        self, prompt: tuple[int, ...], max_new_tokens: int, sampling: SamplingParams, *, fingerprints: bool = False
    ) -> RequestSpec:
        max_new_tokens = whole(max_new_tokens, "max_new_tokens")
        number = self._live.number()
        seed = derived_seed(self._config.seed, number) if sampling.seed is None else sampling.seed
        spec = RequestSpec(number, prompt, max_new_tokens, sampling, seed, fingerprints=fingerprints)
        self.limits.check(spec)
        return spec

    def _submit(
        self,
        specs: Sequence[RequestSpec],
        on_tokens: Sequence[OnToken | None],
        on_end: OnEnd | None = None,
        streams: Sequence[TextStream | None] | None = None,
    ) -> list[RequestHandle]:
        now = time.perf_counter_ns()
        handles = [
            RequestHandle(spec, self, now, on_token, on_end, stream)
            for spec, on_token, stream in zip(specs, on_tokens, streams or [None] * len(specs), strict=True)
        ]
        with self._lock:
            self._live.add(handles)
            if not self._held:
                try:
                    self._link.send(m.Submit(list(specs)))
                except BaseException:
                    self._live.discard(handles)
                    raise
        return handles

    def _abandon(self, specs: Sequence[RequestSpec]) -> None:
        """End requests that nobody waits for any more, whatever the worker knows of them."""
        for spec in specs:
            if not self._held:
                with contextlib.suppress(LabError):  # a worker that is gone has ended them all
                    self._link.send(m.Abort(spec.request_id))
            self._live.abort(spec.request_id)

    def _replan(self, **changes: Any) -> None:
        with self._changing:
            config = replace(self._config, **changes)
            plan = effective_plan(config.plan, config.side_streams).to_json()
            self._link.call(lambda call: m.SetPlan(call, plan), m.Done)
            self._config = config
        self._tell_change()

    def _restart(
        self,
        change: Callable[[EngineConfig], EngineConfig],
        environ: Mapping[str, str | None],
        progress: OnProgress | None,
    ) -> None:
        """A new worker with the changed configuration; the old configuration stays when that cannot be had."""
        with self._changing:
            config, environ = change(self._config), {**self._environ, **environ}
            with self._lock:
                self._held = True
            try:
                self._link.disconnect()
                self._ready = self._link.connect(config, environ, progress)
                with self._lock:
                    self._config, self._environ = config, environ
                    self._resume()
            except BaseException as error:
                with self._lock:
                    self._held = False
                self._live.fail(error if isinstance(error, LabError) else EngineError("the restart was interrupted"))
                raise
            finally:
                self._tell_change()

    def _resume(self) -> None:
        if self._watchers:
            self._watch()
        if len(self._live):
            self._link.send(m.Submit(self._live.replays()))
        self._held = False

    def _watch(self) -> None:
        if self._link.alive:
            self._link.send(m.Watch(bool(self._watchers)))

    def _unwatch(self, callback: OnStep) -> None:
        with self._lock:
            if callback in self._watchers:
                self._watchers.remove(callback)
                if not self._watchers:
                    self._watch()

    def _take(self, event: m.Progress | m.Steps) -> None:
        if isinstance(event, m.Progress):
            self._live.take(event)
            return
        recent = unpack_timeline(event.recent)
        for callback in list(self._watchers):
            self._callbacks.post(callback, event.records, recent, room=_STEP_BACKLOG)

    def _mourn(self, error: LabError) -> None:
        self._live.fail(error)
        for callback in list(self._mourners):
            self._callbacks.post(callback, error)
        self._tell_change()


def _end(link: Link, callbacks: Callbacks) -> None:
    link.close()
    callbacks.close()
