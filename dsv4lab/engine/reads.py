"""Which rows a query reads: at once where that follows from the position, else with the next forward."""

from __future__ import annotations

from collections.abc import Callable

from dsv4lab.engine.messages import Failed, GetReads, Message, Reads
from dsv4lab.engine.protocol import ForwardResult, ModelRunner
from dsv4lab.engine.scheduler import Scheduler
from dsv4lab.engine.step import Step
from dsv4lab.errors import PoolError, RequestError
from dsv4lab.kv.snapshot import query_reads


class ReadsDesk:
    """Answers :class:`GetReads`. A call without a position waits for the request's next forward, and tells the rows of
    the last token in it; what the indexer chooses is known only while it runs.
    """

    def __init__(self, runner: ModelRunner, scheduler: Scheduler, send: Callable[[Message], None]) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._send = send
        self._waiting: list[GetReads] = []

    def ask(self, call: GetReads) -> None:
        """Answer, or keep the call. Raises ``RequestError`` for an unknown request, ``PoolError`` for a layer."""
        if call.position is None:
            self._check(call)
            self._waiting.append(call)
            self._watch()
            return
        request = self._scheduler.find(call.request_id)
        if request is None:
            raise self._unknown(call.request_id)
        reads = query_reads(self._runner.geometry, request.lease, call.position, call.layer)
        self._send(Reads(call.call, reads))

    def on_step(self, step: Step, result: ForwardResult, start_ns: int, dur_ns: int) -> None:
        """See :class:`dsv4lab.engine.loop.StepListener`."""
        if self._waiting:
            watched = self._waiting[0].layer
            self._waiting = [c for c in self._waiting if c.layer != watched or not self._answer(c, step, result)]
            self.forget_ended()

    def on_idle(self) -> None:
        """No request is left to wait for."""
        self.forget_ended()

    def forget_ended(self) -> None:
        """Refuse the calls whose request has no forward to come."""
        for call in [c for c in self._waiting if not self._scheduler.knows(c.request_id)]:
            self._waiting.remove(call)
            self._send(Failed(call.call, RequestError.__name__, str(self._unknown(call.request_id))))
        self._watch()

    def _answer(self, call: GetReads, step: Step, result: ForwardResult) -> bool:
        first = 0
        for chunk in step.chunks:
            if chunk.spec.request_id == call.request_id:
                break
            first += chunk.width
        else:
            return False
        row = first + len(chunk.tokens) - 1
        chosen = None
        if self._runner.geometry.compress_ratios[call.layer] == 4 and result.selection is not None:
            chosen = [int(entry) for entry in result.selection[row] if entry >= 0]
        position = chunk.start + len(chunk.tokens) - 1
        self._send(Reads(call.call, query_reads(self._runner.geometry, chunk.lease, position, call.layer, chosen)))
        return True

    def _watch(self) -> None:
        """Have the selection of the layer kept that the oldest call asks for."""
        ratios = self._runner.geometry.compress_ratios
        layer = self._waiting[0].layer if self._waiting else -1
        self._runner.watch_selection(layer if layer >= 0 and ratios[layer] == 4 else None)

    def _check(self, call: GetReads) -> None:
        layers = len(self._runner.geometry.compress_ratios)
        if not 0 <= call.layer < layers:
            raise PoolError(f"layer {call.layer}: takes a layer in 0..{layers - 1}")
        if not self._scheduler.knows(call.request_id):
            raise self._unknown(call.request_id)

    def _unknown(self, request_id: int) -> RequestError:
        running = ", ".join(str(r.spec.request_id) for r in self._scheduler.running) or "none"
        return RequestError(f"request {request_id} is not running; running are: {running}")
