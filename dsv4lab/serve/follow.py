"""Requests of the engine as an event loop follows them: news when there are any, whoever reads how slowly."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import TypeVar

from dsv4lab.engine.handle import News, RequestHandle

_WAKE_S = 5.0
T = TypeVar("T")


class Follower:
    """The news of one request, each once. What comes while nobody asks is told together.

    ``check`` is called every few seconds of silence, and raises where waiting makes no sense any more.
    """

    def __init__(self, handle: RequestHandle, check: Callable[[], None]) -> None:
        self._handle = handle
        self._check = check
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._ringing = False
        handle.watch(self._ring)

    async def __aiter__(self) -> AsyncIterator[News]:
        place = 0
        while True:
            self._changed.clear()
            news = self._handle.news(place)
            place += len(news.tokens)
            if news.tokens or news.done:
                yield news
            if news.done:
                return
            if not news.tokens:
                await self._wait()

    async def _wait(self) -> None:
        while not self._changed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WAKE_S):
                    await self._changed.wait()
                return
            self._check()

    def _ring(self) -> None:
        """From the client's reader: wake the loop, unless that is on its way already."""
        if not self._ringing:
            self._ringing = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
                self._loop.call_soon_threadsafe(self._rung)

    def _rung(self) -> None:
        self._ringing = False
        self._changed.set()


async def merged(followers: Sequence[Follower]) -> AsyncGenerator[tuple[int, News], None]:
    """News of all of them as they come, with their place. Raises what the first to fail raises."""
    if len(followers) == 1:
        async for news in followers[0]:
            yield 0, news
        return
    queue: asyncio.Queue[tuple[int, News] | BaseException] = asyncio.Queue(1)

    async def pump(place: int, follower: Follower) -> None:
        try:
            async for news in follower:
                await queue.put((place, news))
        except Exception as error:  # noqa: BLE001 - raised below, by whoever reads
            await queue.put(error)

    tasks = [asyncio.create_task(pump(place, follower)) for place, follower in enumerate(followers)]
    try:
        left = len(followers)
        while left:
            item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            left -= item[1].done
            yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def in_thread(work: Callable[[], T], undo: Callable[[T], object]) -> T:
    """What ``work()`` gives on a thread. If nobody waits for it any more when it is there, ``undo`` gets it."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(lambda done: undo(done.result()) if _worked(done) else None)
        raise


def _worked(task: asyncio.Future[T]) -> bool:
    return not task.cancelled() and task.exception() is None
