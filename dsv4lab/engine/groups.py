"""Data parallel attention: groups of ranks with requests and pools of their own, and experts that all of them share.

A request lives in one group, the one with the fewest tokens promised when it comes (the first of equals), and is
scheduled there alone. Forwards run in rounds: every group runs one, or takes part in the others' experts without
tokens, because every round's collectives need everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from queue import Empty

from dsv4lab.config.engine import EngineConfig
from dsv4lab.engine import messages as m
from dsv4lab.engine import rank_messages as r
from dsv4lab.engine.crew import Member
from dsv4lab.engine.merge import merged
from dsv4lab.engine.mirror import LeadRunner
from dsv4lab.engine.request import RequestSpec
from dsv4lab.engine.service import Send, Service
from dsv4lab.errors import EngineError

_PATIENCE_S = 60.0
_OF_ALL = (m.SetPlan, m.SetPolicy, m.Record, m.EndRecord, m.GetStatus)
"""Calls that every group answers; others are answered by the first group, or by the request's."""


def run_round(service: Service, runner: LeadRunner) -> None:
    """One forward of this group, or its part of the others'."""
    before = runner.rounds
    if not service.idle:
        service.step()
    if runner.rounds == before:
        ran = runner.idle_round()
        if ran is not None:
            service.on_idle_round(*ran)


class GroupedService:
    """What :class:`Service` is for one group, for all of them: this process leads the first, ``leaders`` the others."""

    def __init__(
        self,
        config: EngineConfig,
        make: Callable[[Send], Service],
        runner: LeadRunner,
        leaders: tuple[Member, ...],
        send: Send,
    ) -> None:
        self._runner = runner
        self._leaders = leaders
        self._send = send
        self._groups = config.dp_size
        self._home: dict[int, tuple[int, int]] = {}  # request: its group and its tokens
        self._replies: dict[int, list[m.Reply]] = {}  # call: what groups have answered so far
        self._own = make(self._take)
        self.model = self._own.model
        self.manifest = self._own.manifest
        each = self._own.limits
        self.limits = replace(each, max_requests=each.max_requests * self._groups, groups=self._groups)

    @property
    def idle(self) -> bool:
        """Whether no group has work."""
        return self._own.idle and not self._home

    def step(self) -> None:
        """One round of all groups."""
        for leader in self._leaders:
            leader.process.send_bytes(r.encode(r.Tick()))
        run_round(self._own, self._runner)
        for leader in self._leaders:
            while not isinstance(self._hear(leader, None), r.Ticked):
                pass

    def handle(self, command: m.Command) -> None:
        """Carry out one command; see :meth:`Service.handle`."""
        if isinstance(command, m.Submit):
            self._submit(command.requests)
        elif isinstance(command, m.Abort | m.Watch):
            self._tell_all(command)
        elif isinstance(command, m.GetReads):
            self._tell(self._home.get(command.request_id, (0, 0))[0], command)
        elif isinstance(command, _OF_ALL):
            self._call_all(command)
        else:
            self._own.handle(command)

    def close(self) -> None:
        """Let all ranks go."""
        self._own.close()

    def _submit(self, specs: Iterable[RequestSpec]) -> None:
        for spec in specs:
            promised = [0] * self._groups
            for group, tokens in self._home.values():
                promised[group] += tokens
            group = promised.index(min(promised))
            self._home[spec.request_id] = (group, spec.total_tokens)
            self._tell(group, m.Submit([spec]))

    def _call_all(self, call: m.SetPlan | m.SetPolicy | m.Record | m.EndRecord | m.GetStatus) -> None:
        if isinstance(call, m.Record):
            call = m.Record(call.call, call.steps, -(-call.decoding // self._groups), call.until_idle)
        self._replies[call.call] = []
        self._tell_all(call)
        if not isinstance(call, m.Record):  # that one is answered in a later round
            for answers, leader in enumerate(self._leaders, 2):  # with this group's own
                while len(self._replies.get(call.call, ())) in range(1, answers):
                    self._hear(leader, _PATIENCE_S)

    def _tell_all(self, command: m.Command) -> None:
        for group in range(self._groups):
            self._tell(group, command)

    def _tell(self, group: int, command: m.Command) -> None:
        if group == 0:
            self._own.handle(command)
        else:
            self._leaders[group - 1].process.send_bytes(r.encode(r.Handle(m.encode(command))))

    def _hear(self, leader: Member, patience_s: float | None) -> r.Said | r.Ticked:
        try:
            news = leader.news.get(timeout=patience_s)
        except Empty:
            raise EngineError(f"rank {leader.rank} did not answer within {patience_s:g} s") from None
        if isinstance(news, r.Said):
            self._take(m.decode_from_worker(news.message))
        return news

    def _take(self, message: m.Message) -> None:
        """What a group says: on to the client, joined with what the other groups say where it answers a call of all."""
        if isinstance(message, m.Progress):
            for ended in message.finished:
                self._home.pop(ended.request_id, None)
        if not isinstance(message, m.Reply) or message.call not in self._replies:
            self._send(message)
            return
        replies = self._replies[message.call]
        replies.append(message)
        if len(replies) == self._groups:
            del self._replies[message.call]
            self._send(merged(replies))
