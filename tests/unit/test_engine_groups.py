"""Calls that every attention group answers, over leaders that answer at once."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

import pytest

from dsv4lab.config.engine import EngineConfig
from dsv4lab.engine import messages as m
from dsv4lab.engine import rank_messages as r
from dsv4lab.engine.groups import GroupedService
from dsv4lab.engine.load import check_room
from dsv4lab.engine.request import Limits
from dsv4lab.errors import UsageError

STATUS = {"steps": 3, "waiting": 1, "running": 2, "free_slots": 0, "free_pages": 5}
CACHE = {"pages": 4, "hits": 1}


class Own:
    """The first group's service."""

    model = manifest = None
    limits = Limits(vocab_size=512, pool_tokens=512, page_size=256, max_requests=2, max_position=4096)

    def __init__(self, send: Any) -> None:
        self._send = send

    def handle(self, command: Any) -> None:
        self._send(answer(command))


class Leader:
    """Of another group: something else is said before the answer."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.process = self
        self.news: SimpleQueue[r.Said | r.Ticked] = SimpleQueue()

    def send_bytes(self, payload: bytes) -> None:
        told = r.decode_command(payload)
        assert isinstance(told, r.Handle)
        self.news.put(r.Said(m.encode(m.Progress(1, [(self.rank, 7)], []))))
        self.news.put(r.Said(m.encode(answer(m.decode_command(told.command)))))


def answer(command: Any) -> m.Reply:
    if isinstance(command, m.GetStatus):
        return m.Info(command.call, {**STATUS, "prefix_cache": CACHE})
    return m.Done(command.call)


@pytest.mark.parametrize("groups", [2, 3, 8])
def test_a_call_of_all_has_one_answer_however_many_groups_there_are(groups: int) -> None:
    sent: list[Any] = []
    config = EngineConfig("tiny", dp_size=groups)
    leaders = tuple(Leader(rank) for rank in range(1, groups))
    service = GroupedService(config, Own, None, leaders, sent.append)  # type: ignore[arg-type]
    service.handle(m.SetPlan(4, {}))
    service.handle(m.GetStatus(5))
    done, status = (message for message in sent if not isinstance(message, m.Progress))
    assert done == m.Done(4)
    assert (status.value["running"], status.value["free_pages"]) == (2 * groups, 5 * groups)
    assert status.value["prefix_cache"] == {"pages": 4 * groups, "hits": groups}
    assert sum(isinstance(message, m.Progress) for message in sent) == 2 * (groups - 1)


def test_room_is_that_of_all_groups() -> None:
    service = GroupedService(EngineConfig("tiny", dp_size=4), Own, None, (), lambda _: None)  # type: ignore[arg-type]
    assert (service.limits.max_requests, service.limits.groups) == (8, 4)
    check_room(service.limits, 8, 256)
    with pytest.raises(UsageError, match="2 requests of 257 tokens need 4 pages of 256, the pool has 2: open the"):
        check_room(service.limits, 8, 257)
