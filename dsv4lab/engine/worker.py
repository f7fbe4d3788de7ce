"""The worker process: ``python -m dsv4lab.engine.worker --fd N`` serves one client over the socket that it inherited.

It ends when told to, when the connection ends, and when its parent is gone; standard streams carry no protocol.
"""

from __future__ import annotations

import argparse
import importlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, NoReturn

from dsv4lab.engine.child import Line, start_ranks
from dsv4lab.engine.messages import (
    Booting,
    Command,
    Failed,
    Message,
    Ready,
    Shutdown,
    Start,
    decode_command,
    encode,
    failure,
)
from dsv4lab.engine.orphan import EXIT_GRACE_S, end_with_parent
from dsv4lab.engine.wire import Channel
from dsv4lab.env import read_launch
from dsv4lab.errors import EngineError, LabError
from dsv4lab.parallel.layout import Layout, led_by

if TYPE_CHECKING:
    from dsv4lab.config.model import ModelConfig
    from dsv4lab.engine.groups import GroupedService
    from dsv4lab.engine.protocol import ModelRunner
    from dsv4lab.engine.service import Service

    RunnerFactory = Callable[..., tuple[ModelRunner, ModelConfig]]  # configuration, stage, and with several ranks seat

DEFAULT_FACTORY = "dsv4lab.engine.factory:make_runner"


class Worker:
    """Moves commands from the socket to the service, between forwards."""

    def __init__(self, channel: Channel, factory: str) -> None:
        self._channel = channel
        self._factory = factory
        self._inbox: SimpleQueue[Command | None] = SimpleQueue()  # None: the connection has ended
        self._done = threading.Event()

    def run(self) -> int:
        """Serve until the end; the exit code of the process."""
        end_with_parent(self._channel, self._done)
        threading.Thread(target=self._receive, name="receive", daemon=True).start()
        try:
            service = self._boot()
            if service is None:
                return 2
            try:
                self._serve(service)
            finally:
                service.close()
        finally:
            self._done.set()
            self._channel.end()
        return 0

    def _boot(self) -> Service | GroupedService | None:
        start = self._inbox.get()
        if not isinstance(start, Start):
            return None
        try:
            service = self._make_service(start)
        except Exception as error:  # noqa: BLE001 - the client must learn why, whatever it was
            self._send(failure(0, error))
            return None
        self._send(Ready(service.limits, service.model, service.manifest))
        return service

    def _make_service(self, start: Start) -> Service | GroupedService:
        from dsv4lab.config.engine import EngineConfig

        config = EngineConfig.from_json(start.config)
        launch = read_launch()
        first = Layout(config.tp_size, config.dp_size, config.ep_size)
        processes: Sequence[Line] = start_ranks(len(led_by(first))) if launch is None else ()
        self._stage("loading torch")
        import torch

        from dsv4lab.engine.service import Service

        torch.set_num_threads(1)  # the runner's streams set their own
        module, _, name = self._factory.partition(":")
        factory: RunnerFactory = getattr(importlib.import_module(module), name)
        if config.world_size > 1:
            from dsv4lab.engine.ranks import open_ranks

            if launch is not None:
                from dsv4lab.engine.launched import gather_first

                processes = gather_first(launch, config)
            return open_ranks(config, factory, self._stage, self._send, self._on_death, processes)
        runner, model = factory(config, self._stage)
        return Service(config, model, runner, self._send)

    def _serve(self, service: Service | GroupedService) -> None:
        while True:
            while service.idle or not self._inbox.empty():
                command = self._inbox.get()
                if command is None or isinstance(command, Shutdown):
                    return
                service.handle(command)
            service.step()

    def _on_death(self, error: LabError, secondary: bool) -> NoReturn:
        """The run over several ranks is over; this thread may be the only one that is not blocked in a collective."""
        self._send(failure(0, error))
        os._exit(4)

    def _stage(self, text: str) -> None:
        self._send(Booting(text))

    def _send(self, message: Message) -> None:
        try:
            self._channel.send(encode(message))
        except OSError:
            self._inbox.put(None)  # nobody listens any more; the loop ends at its next turn

    def _receive(self) -> None:
        try:
            while (payload := self._channel.receive()) is not None:
                self._inbox.put(decode_command(payload))
        except EngineError as error:
            sys.stderr.write(f"dsv4lab worker: {error}\n")
            self._send(Failed(0, "EngineError", str(error)))
        self._inbox.put(None)
        if not self._done.wait(EXIT_GRACE_S):
            os._exit(3)  # the forward in flight does not come back


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(prog="dsv4lab.engine.worker")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--runner-factory", default=DEFAULT_FACTORY)
    options = parser.parse_args(argv)
    return Worker(Channel(socket.socket(fileno=options.fd)), options.runner_factory).run()


if __name__ == "__main__":
    sys.exit(main())
