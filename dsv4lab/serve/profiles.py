"""Recording forwards between two HTTP requests, into a file that TensorBoard's plugin finds."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

from dsv4lab.engine.client import EngineClient
from dsv4lab.engine.results import Recording
from dsv4lab.serve.problems import Problem


class Profiler:
    """One recording at a time. ``directory`` is a log directory of TensorBoard; each recording becomes a run in it."""

    def __init__(self, client: EngineClient, directory: Path) -> None:
        self._client = client
        self.directory = directory
        self._running: tuple[threading.Event, asyncio.Future[Recording]] | None = None
        self._busy = False

    @property
    def running(self) -> bool:
        """Whether forwards are being recorded, or written down."""
        return self._busy

    async def start(self) -> None:
        """Record from now on. Raises :class:`Problem` 409 while a recording runs, and what the engine raises."""
        if self._busy:
            raise Problem(409, "a profile is being recorded: POST /stop_profile ends it", code="profile_running")
        self._busy = True
        loop = asyncio.get_running_loop()
        stop, begun, recorded = threading.Event(), loop.create_future(), loop.create_future()

        def tell(future: asyncio.Future[Recording], value: Recording | None, error: Exception | None) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(value)  # type: ignore[arg-type]

        def run() -> None:
            loop.call_soon_threadsafe(tell, begun, None, None)
            stop.wait()

        def record() -> None:
            recording, error = None, None
            try:
                recording = self._client.record_while(run, directory=self.directory / "dsv4lab")
            except Exception as caught:  # noqa: BLE001 - raised where the recording is waited for
                error = caught
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(tell, begun, None, error)
                loop.call_soon_threadsafe(tell, recorded, recording, error)

        recorded.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may be told of elsewhere
        threading.Thread(target=record, name="dsv4lab-profile", daemon=True).start()
        self._running = (stop, recorded)
        try:
            await begun
        except BaseException:
            stop.set()
            self._running, self._busy = None, False
            raise

    async def stop(self) -> tuple[str, tuple[str, ...]]:
        """End the recording; the file's path inside the directory, and what the recording warns of.

        Raises :class:`Problem` 409 where there is none.
        """
        if self._running is None:
            raise Problem(409, "no profile is being recorded: POST /start_profile begins one", code="no_profile")
        (stop, recorded), self._running = self._running, None
        stop.set()
        try:
            recording = await recorded
        finally:
            self._busy = False
        assert recording.path is not None
        return recording.path.relative_to(self.directory.expanduser()).as_posix(), recording.warnings

    def forget(self) -> None:
        """End a recording that nobody will ask for."""
        if self._running is not None:
            self._running[0].set()
            self._running, self._busy = None, False
