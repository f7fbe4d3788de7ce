"""The engine as a notebook holds it: one worker process behind calls that either answer or raise, and never hang."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, get_args

from dsv4lab.config.engine import EngineConfig, OverlapSetting
from dsv4lab.engine import messages as m
from dsv4lab.engine.chat import ChatClient
from dsv4lab.engine.gather import gather
from dsv4lab.engine.handle import OnEnd, RequestHandle
from dsv4lab.engine.link import OnProgress
from dsv4lab.engine.load import ContinuousLoad, LoadShape, check_room
from dsv4lab.engine.profiling import CaptureKind, How, own_load_profile, record, record_next
from dsv4lab.engine.prompts import positive, synthetic, whole
from dsv4lab.engine.request import SamplingParams
from dsv4lab.engine.results import GenerateResult, Profile
from dsv4lab.engine.settings import changed_by
from dsv4lab.engine.step import Mode
from dsv4lab.engine.texts import given_prompts, per_prompt
from dsv4lab.errors import EngineError, UsageError
from dsv4lab.overlap.plan import OverlapPlan, resolve_plan
from dsv4lab.timeline.program import StreamProgram
from dsv4lab.timeline.records import PoolSnapshot, QueryReads


class EngineClient(ChatClient):
    """An engine in a worker process of its own, started when the client is made.

    Plan, side streams and queue policy change between two forwards; the number of hardware queues and environment
    variables are read when a process starts, so changing them restarts the worker behind this object, and requests in
    flight go on from the tokens that they have. When the worker dies, waiting calls and requests in flight raise
    ``WorkerDiedError`` and so do later calls, until :meth:`restart`. Callbacks run one at a time on a thread of their
    own; an exception in one is logged and kept in :attr:`callback_errors`. All methods may be called from any thread.
    """

    _load: ContinuousLoad | None = None

    def __init__(self, config: EngineConfig, **options: Any) -> None:
        """``options`` as of :class:`ClientCore`."""
        self._loading = threading.Lock()  # one load at a time, whoever starts and stops it
        super().__init__(config, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.alive else "no worker"
        c = self._config
        return f"<EngineClient {c.model} on {c.device}, plan {self.plan.name}, {c.hw_queues} hardware queues, {state}>"

    def generate(
        self,
        prompts: Iterable[Any],
        *,
        max_new_tokens: int = 32,
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        on_token: Callable[[int, int], object] | None = None,
        timeout_s: float | None = None,
        fingerprints: bool = False,
        profile: bool = False,
    ) -> GenerateResult:
        """Run one prompt or several together to their ends. A prompt is a text or token ids.

        ``sampling`` is one for all, or one per prompt; ``on_token`` is called with the prompt's place and each token;
        ``fingerprints`` asks for those of the logits, in the results' ``requests``; with ``profile`` the result has the
        timeline of all forwards meanwhile.
        Raises ``RequestError`` for a prompt that cannot run, ``TimeoutExceededError`` when ``timeout_s`` is over or the
        worker falls silent, and the error that a request ended with; the other requests are aborted then.
        """
        rows = given_prompts(prompts, lambda: self.tokenizer)
        asked = [
            self._asked(row, max_new_tokens, params, fingerprints=fingerprints)
            for row, params in zip(rows, per_prompt(sampling, len(rows)), strict=True)
        ]
        specs = [spec for spec, _ in asked]
        on_tokens = [partial(on_token, i) if on_token is not None else None for i in range(len(specs))]
        streams = [stream for _, stream in asked]

        def run() -> GenerateResult:
            result = gather(self._submit(specs, on_tokens, streams=streams), timeout_s)
            self._callbacks.flush(self.stall_s)
            return result

        try:
            if not profile:
                return run()
            result, _, recording = record(self._link, run)
        except BaseException:
            self._abandon(specs)
            raise
        return replace(result, timeline=recording.timeline)

    def load(
        self,
        concurrency: int,
        prompt_tokens: int = 256,
        max_new_tokens: int = 32,
        seed: int = 0,
        *,
        sampling: SamplingParams | None = None,
        profile: bool = False,
        fingerprints: bool = False,
        on_token: Callable[[int, int], object] | None = None,
        timeout_s: float | None = None,
    ) -> GenerateResult:
        """Run ``concurrency`` synthetic requests together; a seed's prompt ``i`` is the same at any concurrency.

        They are greedy unless ``sampling`` says otherwise; the rest is as for :meth:`generate`. Raises ``UsageError``
        if so many requests cannot be in flight at once.
        """
        check_room(self.limits, concurrency, positive(prompt_tokens, "prompt_tokens") + max_new_tokens)
        rows = synthetic(self.limits.vocab_size, concurrency, prompt_tokens, seed)
        return self.generate(
            rows,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            on_token=on_token,
            timeout_s=timeout_s,
            fingerprints=fingerprints,
            profile=profile,
        )

    def profile(
        self,
        steps: int = 20,
        *,
        concurrency: int | None = None,
        prompt_tokens: int = 256,
        timeout_s: float = 300.0,
        capture: CaptureKind | None = None,
        directory: str | Path | None = None,
    ) -> Profile:
        """Record the next ``steps`` forwards, fewer if the engine runs out of work.

        With nothing in flight, or with ``concurrency`` given, it decodes a synthetic load of its own (``concurrency``
        requests, 1 by default) and records ``steps`` of its decode forwards.

        ``capture`` ``torch`` records kernels (on the CPU device ops and the operators in them) through torch's
        profiler, and warns in the result where that changed the step's time; ``ops`` has the rows that the engine
        times itself, on a GPU one per forward. By default a GPU is captured with ``torch``, the CPU device and several
        groups with ``ops``. ``directory`` keeps a file (of each rank), where TensorBoard's PyTorch plugin finds it.
        """
        steps, how = positive(steps, "steps"), How.of(self._config, capture, directory)
        if concurrency is None and len(self._live):
            found = record_next(self._link, steps, timeout_s, how)
            if found is not None:
                return found
        return own_load_profile(self, self._link, steps, concurrency or 1, prompt_tokens, timeout_s, how)

    @property
    def load_running(self) -> LoadShape | None:
        """What :meth:`start_load` keeps in flight; None once it was stopped, a request failed or the worker died."""
        load = self._load
        goes_on = self.alive or self._held
        return load.shape if load is not None and load.running and goes_on else None

    def start_load(
        self, concurrency: int, *, prompt_tokens: int = 256, max_new_tokens: int = 256, seed: int = 0
    ) -> None:
        """Keep ``concurrency`` synthetic requests in flight until :meth:`stop_load`; replaces a load that runs.

        Raises what keeps the first of them from being submitted, such as ``WorkerDiedError``.
        """
        check_room(self.limits, concurrency, positive(prompt_tokens, "prompt_tokens") + max_new_tokens)
        with self._loading:
            self._end_load()
            rows = synthetic(self.limits.vocab_size, concurrency, prompt_tokens, seed)
            shape = LoadShape(concurrency, prompt_tokens, max_new_tokens, seed)
            submit = partial(self._submit_one, max_new_tokens)
            self._load = ContinuousLoad(submit, rows, self.stall_s, shape, self._tell_change)
        self._tell_change()

    def stop_load(self) -> None:
        """End the load of :meth:`start_load`, if there is one, and wait for its requests to end."""
        with self._loading:
            self._end_load()
        self._tell_change()

    def _end_load(self) -> None:
        load, self._load = self._load, None
        if load is not None:
            load.stop()

    def set_plan(self, plan: OverlapSetting | OverlapPlan) -> None:
        """Use ``plan`` (preset name, plan data or plan) from the next forward on.

        Raises ``PlanError`` if it is unknown or does not fit the model's ops; the old one stays then.
        """
        resolved = resolve_plan(plan)
        self._replan(plan=plan if isinstance(plan, str) else resolved.to_json())

    def set_side_streams(self, side_streams: int | None) -> None:
        """Fold the plan onto so many side streams from the next forward on; None: as it says."""
        self._replan(side_streams=side_streams)

    def set_queue_policy(self, policy: str) -> None:
        """Map streams to hardware queues by ``policy`` from the next forward on."""
        with self._changing:
            config = replace(self._config, queue_policy=policy)
            self._link.call(lambda call: m.SetPolicy(call, policy), m.Done)
            self._config = config
        self._tell_change()

    def set_hw_queues(self, hw_queues: int, progress: OnProgress | None = None) -> None:
        """Restart the worker with so many hardware queues; requests in flight go on in the new one."""
        self._restart(partial(replace, hw_queues=hw_queues), {}, progress)

    def set_env(self, changes: Mapping[str, str | None], progress: OnProgress | None = None) -> None:
        """Restart the worker with these environment variables (None: unset); see :meth:`set_hw_queues`.

        ``GPU_MAX_HW_QUEUES`` and its kin set what they set at a start. Raises ``EnvError`` on a malformed value.
        """
        self._restart(partial(changed_by, changes), changes, progress)

    def restart(self, progress: OnProgress | None = None) -> None:
        """Start a new worker with the same settings, whether the old one is alive or dead."""
        self._restart(lambda config: config, {}, progress)

    def status(self) -> dict[str, Any]:
        """What the engine is doing, for people and dashboards. Does not raise when the worker is dead."""
        c = self._config
        own = {
            "alive": self.alive,
            "pid": self.pid,
            "error": str(self._link.error) if self._link.error is not None else None,
            "model": c.model,
            "device": c.device,
            "plan": self.plan.name,
            "side_streams": c.side_streams,
            "hw_queues": c.hw_queues,
            "queue_policy": c.queue_policy,
            "dropped_updates": self._callbacks.dropped,
        }
        engine = self._link.call(m.GetStatus, m.Info).value if own["alive"] else {}
        return {**engine, **own, "in_flight": len(self._live)}

    def ops(self) -> list[dict[str, Any]]:
        """Every op of a decode forward, in program order: ``name``, ``layer``, ``kind``, ``parts``."""
        ops: list[dict[str, Any]] = self._link.call(m.GetOps, m.Info).value["ops"]
        return ops

    def program(
        self, mode: Mode = "decode", tokens: int = 1, plan: OverlapSetting | OverlapPlan | None = None
    ) -> StreamProgram:
        """The compiled program of a ``prefill`` or ``decode`` forward of ``tokens`` tokens.

        It is under ``plan``, which is not put in force by that, or under the one that is. Raises ``PlanError`` if
        ``plan`` is unknown or does not fit the model's ops.
        """
        if mode not in get_args(Mode):
            raise UsageError(f"mode is {mode!r}: it takes prefill or decode")
        tokens = whole(tokens, "tokens")
        top = self._config.chunked_prefill_size if mode == "prefill" else self.limits.max_requests
        if not 1 <= tokens <= top:
            raise UsageError(f"tokens is {tokens!r}: a {mode} forward here takes 1 to {top}")
        asked = None if plan is None else resolve_plan(plan).to_json()
        return self._link.call(lambda call: m.GetProgram(call, mode, tokens, asked), m.Program).program

    def pool_snapshot(self) -> PoolSnapshot:
        """Who holds which slots and pages, between two forwards."""
        return self._link.call(m.GetSnapshot, m.Snapshot).snapshot

    def query_reads(self, request_id: int, position: int | None, layer: int) -> QueryReads:
        """Pool rows that one query token of a running request reads in ``layer``.

        With ``position`` None it is the last token of the request's next forward, whatever that is. In a ratio-4 layer
        only that tells what the indexer chose; with a position all compressed rows that the query may see are given.
        """
        request, layer = whole(request_id, "request_id"), whole(layer, "layer")
        place = None if position is None else whole(position, "position")
        return self._link.call(lambda call: m.GetReads(call, request, place, layer), m.Reads).reads

    def close(self) -> None:
        """End the worker and whatever is in flight. Later calls raise ``EngineError``."""
        load, self._load = self._load, None
        if load is not None:
            load.forget()
        self._link.close()
        self._live.fail(EngineError("the client was closed"))
        self._callbacks.close()

    def _submit_one(self, max_new_tokens: int, prompt: tuple[int, ...], on_end: OnEnd) -> RequestHandle:
        (handle,) = self._submit([self._spec(prompt, max_new_tokens, SamplingParams())], [None], on_end)
        return handle
