"""A server from its start to its end: bound, announced, stopped by a signal or by the loss of its engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable

from aiohttp import web

from dsv4lab.engine.client import EngineClient
from dsv4lab.errors import UnavailableError
from dsv4lab.serve.app import Server
from dsv4lab.serve.desk import Desk
from dsv4lab.serve.metrics import Metrics
from dsv4lab.serve.settings import ServeSettings

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Running:
    """A server that listens. Made by :func:`start`, on the event loop that it runs on."""

    def __init__(self, desk: Desk, server: Server, runner: web.AppRunner, watch: asyncio.Task[None]) -> None:
        self.desk = desk
        self._server = server
        self._runner = runner
        self._watch = watch
        self.pid = os.getpid()
        self.profile_dir = server.profiler.directory
        host, port = runner.addresses[0][:2]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def close(self, hurry: asyncio.Event | None = None) -> None:
        """Take nothing new, let what is in flight end within the drain time (or until ``hurry``), and stop listening.

        The engine's client stays open.
        """
        self.desk.drain()
        self._server.profiler.forget()
        closing = asyncio.create_task(self._runner.cleanup())
        if hurry is not None:
            hurrying = asyncio.create_task(hurry.wait())
            await asyncio.wait((closing, hurrying), return_when=asyncio.FIRST_COMPLETED)
            hurrying.cancel()
            if not closing.done():
                self._server.cut()
        await closing
        self._watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watch


async def start(client: EngineClient, settings: ServeSettings, tell: Callable[[str], None]) -> Running:
    """Listen. Raises :class:`UnavailableError` if the address cannot be had. ``tell`` takes a line for the operator."""
    desk = Desk(client, settings.max_queue, settings.max_restarts, Metrics(), tell)
    server = Server(desk, settings)
    runner = web.AppRunner(server.app, access_log=None, handler_cancellation=True, shutdown_timeout=settings.drain_s)
    await runner.setup()
    try:
        await web.TCPSite(runner, settings.host, settings.port, backlog=1024).start()
    except OSError as error:
        await runner.cleanup()
        raise UnavailableError(f"{settings.host}:{settings.port}: {error.strerror or error}") from None
    return Running(desk, server, runner, asyncio.create_task(desk.supervise()))


async def serve(
    client: EngineClient,
    settings: ServeSettings,
    tell: Callable[[str], None],
    announce: Callable[[Running], None],
) -> bool:
    """Serve until SIGINT or SIGTERM (True), or until the engine is given up (False).

    A second signal cuts off what is in flight.
    """
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def signalled() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, signalled)
    try:
        running = await start(client, settings, tell)
        announce(running)
        waits = [asyncio.create_task(event.wait()) for event in (stop, running.desk.ended)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        gone = running.desk.ended.is_set()
        if not gone:
            tell(f"stopping: {running.desk.in_flight} choices in flight have {settings.drain_s:g} s")
        await running.close(hurry)
        return not gone
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
