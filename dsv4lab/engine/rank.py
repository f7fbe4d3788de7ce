"""A rank beside the worker: ``python -m dsv4lab.engine.rank --fd N`` serves the rank that started it.

It ends when told to, when that connection ends, and when its parent is gone; a collective that it is blocked in then
does not keep it. Standard streams carry no protocol: their last lines are shown when the rank dies.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, NoReturn

from dsv4lab.engine.child import Line, start_ranks
from dsv4lab.engine.orphan import EXIT_GRACE_S, end_with_parent
from dsv4lab.engine.rank_messages import (
    Command,
    FromRank,
    Handle,
    Join,
    Joined,
    RankFailed,
    Said,
    Stop,
    Ticked,
    decode_command,
    encode,
)
from dsv4lab.engine.wire import Channel
from dsv4lab.errors import CollectiveError, LabError
from dsv4lab.parallel.layout import Layout, led_by

if TYPE_CHECKING:
    from dsv4lab.config.engine import EngineConfig
    from dsv4lab.engine.launched import Lines
    from dsv4lab.engine.seat import Seat

FAILED, ORPHANED = 5, 3


def started(layout: Layout, timeout_s: float) -> Sequence[Line]:
    """New processes for the ranks that ``layout.rank`` leads."""
    return start_ranks(len(led_by(layout)))


class Rank:
    """Moves commands from the socket to whatever part this rank plays. ``lines`` gives it the ranks that it leads."""

    def __init__(self, channel: Channel, lines: Lines = started) -> None:
        self._channel = channel
        self._lines = lines
        self._inbox: SimpleQueue[Command | None] = SimpleQueue()  # None: the connection has ended
        self._done = threading.Event()

    def run(self) -> int:
        """Serve until the end; the exit code of the process."""
        end_with_parent(self._channel, self._done)
        threading.Thread(target=self._receive, name="receive", daemon=True).start()
        try:
            join = self._inbox.get()
            if isinstance(join, Join):
                self._play(join)
        except Exception as error:  # noqa: BLE001 - the leader must learn why, whatever it was
            self._fail(error)
            return FAILED
        finally:
            self._done.set()
            self._channel.end()
        return 0

    def _play(self, join: Join) -> None:
        from dsv4lab.config.engine import EngineConfig

        config = EngineConfig.from_json(join.config)
        layout = Layout(config.tp_size, config.dp_size, config.ep_size, join.rank)
        processes = self._lines(layout, config.collective_timeout_s)
        import torch

        from dsv4lab.engine.seat import take_seat

        torch.set_num_threads(1)  # the runner's streams set their own
        config, seat = take_seat(config, join.rank, join.store, self._on_death, lambda _stage: None, processes)
        if layout.tp_rank:
            self._follow(config, seat)
        else:
            self._lead(config, seat)

    def _follow(self, config: EngineConfig, seat: Seat) -> None:
        from dsv4lab.engine.factory import build
        from dsv4lab.engine.follower import Follower

        runner, _, drafter = build(config, lambda _stage: None, seat)
        self._say(Joined())
        try:
            Follower(runner, drafter, self._inbox.get, self._say).serve()
        finally:
            runner.close()

    def _lead(self, config: EngineConfig, seat: Seat) -> None:
        """Lead a group of data parallel attention."""
        from dsv4lab.engine import messages
        from dsv4lab.engine.factory import make_runner
        from dsv4lab.engine.groups import run_round
        from dsv4lab.engine.mirror import LeadRunner
        from dsv4lab.engine.service import Service

        runner, model = make_runner(config, lambda _stage: None, seat)
        assert isinstance(runner, LeadRunner)
        seat.crew.wait_for_all()
        rank = seat.parallel.layout.rank
        service = Service(config, model, runner, lambda message: self._say(Said(messages.encode(message))), rank)
        self._say(Joined())
        try:
            while (command := self._inbox.get()) is not None and not isinstance(command, Stop):
                if isinstance(command, Handle):
                    service.handle(messages.decode_command(command.command))
                else:
                    run_round(service, runner)
                    self._say(Ticked(service.idle))
        finally:
            service.close()

    def _say(self, message: FromRank) -> None:
        try:
            self._channel.send(encode(message))
        except OSError:
            self._inbox.put(None)  # nobody listens any more

    def _fail(self, error: Exception) -> None:
        traceback.print_exception(error)
        told = str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}"
        self._say(RankFailed(told, secondary=isinstance(error, CollectiveError)))

    def _on_death(self, error: LabError, secondary: bool) -> NoReturn:
        """A rank that this one leads has ended, or this one cannot go on."""
        self._say(RankFailed(str(error), secondary))
        os._exit(FAILED)

    def _receive(self) -> None:
        try:
            while (payload := self._channel.receive()) is not None:
                self._inbox.put(decode_command(payload))
        except LabError as error:
            sys.stderr.write(f"dsv4lab rank: {error}\n")
        self._inbox.put(None)
        if not self._done.wait(EXIT_GRACE_S):
            os._exit(ORPHANED)  # blocked in a collective that nobody else takes part in


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(prog="dsv4lab.engine.rank")
    parser.add_argument("--fd", type=int, required=True)
    options = parser.parse_args(argv)
    return Rank(Channel(socket.socket(fileno=options.fd))).run()


if __name__ == "__main__":
    sys.exit(main())
