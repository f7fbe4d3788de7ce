"""Rank 0 of a run over several ranks: it starts the others, and serves the client for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dsv4lab.config.engine import EngineConfig
from dsv4lab.engine.child import Line
from dsv4lab.engine.crew import OnDeath
from dsv4lab.engine.groups import GroupedService
from dsv4lab.engine.mirror import LeadRunner
from dsv4lab.engine.seat import Meeting, check, take_seat
from dsv4lab.engine.service import Send, Service
from dsv4lab.errors import LabError

if TYPE_CHECKING:
    from dsv4lab.engine.worker import RunnerFactory


def open_ranks(
    config: EngineConfig,
    factory: RunnerFactory,
    stage: Callable[[str], None],
    send: Send,
    on_death: OnDeath,
    processes: Sequence[Line],
) -> Service | GroupedService:
    """The service of all ranks, of which ``processes`` become those that rank 0 leads.

    Raises ``LabError`` for what these ranks cannot run.
    """
    check(config)
    meeting = Meeting()

    def leave(error: LabError, secondary: bool) -> None:
        meeting.close()
        on_death(error, secondary)

    try:
        own, seat = take_seat(config, 0, meeting.path, leave, stage, processes)
        runner, model = factory(own, stage, seat)
        stage("waiting for the other ranks")
        seat.crew.wait_for_all()
    finally:
        meeting.close()
    if config.dp_size == 1:
        return Service(config, model, runner, send, 0)
    assert isinstance(runner, LeadRunner)
    leaders = seat.crew.leaders(seat.parallel.layout)
    return GroupedService(config, lambda own: Service(config, model, runner, own, 0), runner, leaders, send)
