"""Synthetic loads: whether one fits, and one that goes on until it is stopped."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from dsv4lab.engine.handle import OnEnd, RequestHandle
from dsv4lab.engine.prompts import positive
from dsv4lab.engine.request import FinishReason, Limits
from dsv4lab.errors import LabError, UsageError


def check_room(limits: Limits, concurrency: int, tokens: int) -> None:
    """Raise ``UsageError`` unless ``concurrency`` requests of ``tokens`` tokens can be in flight at once."""
    positive(concurrency, "concurrency")
    if concurrency > limits.max_requests:
        raise UsageError(
            f"concurrency is {concurrency}: this engine runs at most {limits.max_requests} requests at once; "
            f"open it with max_running_requests={concurrency}"
        )
    together = -(-concurrency // limits.groups)
    pages = together * -(-tokens // limits.page_size)
    if pages * limits.page_size > limits.pool_tokens:
        raise UsageError(
            f"{together} requests of {tokens} tokens need {pages} pages of {limits.page_size}, the "
            f"pool has {limits.pool_tokens // limits.page_size}: open the engine with "
            f"max_total_tokens={pages * limits.page_size} or more"
        )


@dataclass(frozen=True, slots=True)
class LoadShape:
    """A continuous load: so many requests at once, of so many tokens each, with prompts drawn from ``seed``."""

    concurrency: int
    prompt_tokens: int
    max_new_tokens: int
    seed: int


Submit = Callable[[tuple[int, ...], OnEnd], RequestHandle]


class ContinuousLoad:
    """Keeps one request per prompt in flight, from a thread of its own: each that ends by itself is submitted again.

    Raises what the first submissions raise. A request that fails (its worker has died, say) ends the load, which
    ``on_end`` is told.
    """

    def __init__(
        self,
        submit: Submit,
        prompts: Sequence[tuple[int, ...]],
        patience_s: float,
        shape: LoadShape,
        on_end: Callable[[], None],
    ) -> None:
        self.shape = shape
        self.running = True
        self._submit = submit
        self._prompts = prompts
        self._patience_s = patience_s
        self._on_end = on_end
        self._due: SimpleQueue[int | None] = SimpleQueue()  # places of prompts to submit; None: no more
        self._handles: dict[int, RequestHandle] = {}  # by place of the prompt
        self._thread = threading.Thread(target=self._run, name="dsv4lab-load", daemon=True)
        try:
            for place in range(len(prompts)):
                self._start(place)
        except LabError:
            self._abort()
            raise
        self._thread.start()

    def stop(self) -> None:
        """Submit nothing any more, abort what is in flight, and wait until it has ended."""
        self.forget()
        self._thread.join(self._patience_s)
        self._abort()

    def forget(self) -> None:
        """Submit nothing any more."""
        self.running = False
        self._due.put(None)

    def _abort(self) -> None:
        for handle in list(self._handles.values()):
            with contextlib.suppress(LabError):  # a worker that is gone has ended them all
                handle.abort()
                handle.result(self._patience_s)

    def _start(self, place: int) -> None:
        self._handles[place] = self._submit(self._prompts[place], partial(self._ended, place))

    def _run(self) -> None:
        while (place := self._due.get()) is not None:
            try:
                self._start(place)
            except LabError:
                break  # the worker is gone; its end is told elsewhere
        self.running = False

    def _ended(self, place: int, handle: RequestHandle) -> None:
        if handle.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._due.put(place)
        elif handle.finish_reason is FinishReason.ERROR and self.running:
            self.forget()
            self._on_end()
