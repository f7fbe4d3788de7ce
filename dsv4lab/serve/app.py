"""The HTTP application: routes, who may use them, and answers that stream."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from dsv4lab.errors import LabError
from dsv4lab.serve.asked import chat_asked, completion_asked
from dsv4lab.serve.desk import Desk, State
from dsv4lab.serve.fields import decode_object
from dsv4lab.serve.follow import Follower, in_thread, merged
from dsv4lab.serve.jobs import Job, submit_chat, submit_completion, tokenizer_of
from dsv4lab.serve.metrics import CONTENT_TYPE
from dsv4lab.serve.problems import Problem, problem_of
from dsv4lab.serve.profiles import Profiler
from dsv4lab.serve.settings import ServeSettings

_log = logging.getLogger(__name__)
_STREAM = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_OPEN = frozenset({"/health"})

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _SlowReaderError(ConnectionResetError):
    """The client takes nothing, and its connection was cut."""


class Server:
    """The endpoints over one desk; :attr:`app` is the application."""

    def __init__(self, desk: Desk, settings: ServeSettings) -> None:
        self._desk = desk
        self._settings = settings
        self._tokenizer = tokenizer_of(desk.client)
        self._jobs: dict[str, Job] = {}
        self.profiler = Profiler(desk.client, settings.profile_dir)
        self.app = web.Application(middlewares=[self._guard], client_max_size=settings.max_body_bytes)
        self.app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/v1/models", self._models),
                web.get("/metrics", self._metrics),
                web.post("/v1/completions", self._completions),
                web.post("/v1/chat/completions", self._chat),
                web.post("/start_profile", self._start_profile),
                web.post("/stop_profile", self._stop_profile),
            ]
        )

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        data = await self._data(request)
        asked = completion_asked(data)
        work = partial(submit_completion, self._desk.client, asked, self._settings.model_name)
        return await self._run(request, work, len(asked.prompts) * asked.common.n)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        data = await self._data(request)
        asked = chat_asked(data)
        work = partial(submit_chat, self._desk.client, asked, self._settings.model_name)
        return await self._run(request, work, asked.common.n)

    async def _run(self, request: web.Request, submit: Callable[..., Job], count: int) -> web.StreamResponse:
        """Submit and answer; whatever happens, nothing of it stays in the engine."""
        metrics = self._desk.metrics
        with self._desk.seats(count):
            try:
                return await self._answer(request, submit)
            except _SlowReaderError:
                metrics.slow_readers += 1
                raise
            except (asyncio.CancelledError, ConnectionResetError):
                metrics.disconnects += 1
                raise

    async def _answer(self, request: web.Request, submit: Callable[..., Job]) -> web.StreamResponse:
        work = partial(submit, self._settings.max_prompt_tokens, self._tokenizer)
        job = await in_thread(work, Job.abandon)
        self._jobs[job.id] = job
        try:
            answer = await (self._stream if job.common.stream else self._whole)(request, job)
            job.count(self._desk.metrics)
            return answer
        finally:
            del self._jobs[job.id]
            job.abandon()

    def cut(self) -> None:
        """End everything in flight with the tokens that it has."""
        for job in self._jobs.values():
            job.abandon()

    async def _whole(self, request: web.Request, job: Job) -> web.StreamResponse:
        async with aclosing(merged(self._followers(job))) as told:
            async for place, news in told:
                job.add(place, news)
        return _json(job.whole())

    async def _stream(self, request: web.Request, job: Job) -> web.StreamResponse:
        """Status and headers come with the first news, so that what fails before it has a status of its own."""
        response = web.StreamResponse(headers=_STREAM)
        each = job.common.usage == "each"
        async with aclosing(merged(self._followers(job))) as told:
            try:
                async for place, news in told:
                    choice = job.add(place, news)
                    if not response.prepared:
                        await response.prepare(request)
                    await self._write(request, response, job.chunk([choice], usage=each))
                if job.common.usage != "none":
                    await self._write(request, response, job.chunk([], usage=True))
                await self._write(request, response, None)
            except LabError as error:
                if not response.prepared:
                    raise
                await self._write(request, response, problem_of(error).body())
        await response.write_eof()
        return response

    async def _write(self, request: web.Request, response: web.StreamResponse, chunk: dict[str, Any] | None) -> None:
        """One event; None is the last. A client that takes nothing for too long loses its connection."""
        text = b"[DONE]" if chunk is None else msgspec.json.encode(chunk)
        try:
            async with asyncio.timeout(self._settings.write_timeout_s):
                await response.write(b"data: " + text + b"\n\n")
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            raise _SlowReaderError("the client reads too slowly") from None

    def _followers(self, job: Job) -> list[Follower]:
        return [Follower(handle, self._desk.check_waiting) for handle in job.handles]

    async def _data(self, request: web.Request) -> dict[str, Any]:
        """The body as a JSON object for this model, if there is room for its request at all."""
        self._desk.check_open()
        if request.content_type != "application/json":
            raise Problem(415, f"the body is {request.content_type}: it takes application/json")
        try:
            async with asyncio.timeout(self._settings.read_timeout_s):
                body = await request.read()
        except TimeoutError:
            raise Problem(408, f"the body did not come within {self._settings.read_timeout_s:g} s") from None
        data = decode_object(body)
        model = data.get("model")
        if model is not None and model != self._settings.model_name:
            message = f"model: this server has {self._settings.model_name!r}"
            raise Problem(404, message, param="model", code="model_not_found")
        return data

    async def _health(self, request: web.Request) -> web.StreamResponse:
        ready = self._desk.state is State.READY and self._desk.client.alive
        state = "restarting" if self._desk.state is State.READY and not ready else str(self._desk.state)
        return _json({"status": state}, 200 if ready else 503)

    async def _models(self, request: web.Request) -> web.StreamResponse:
        client = self._desk.client
        longest = min(client.limits.pool_tokens, client.limits.max_position)
        entry = {"id": self._settings.model_name, "object": "model", "created": 0, "owned_by": "dsv4lab"}
        more = {"max_model_len": longest, "vocab_size": client.limits.vocab_size}
        return _json({"object": "list", "data": [{**entry, **more}]})

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        text = self._desk.metrics.text(await self._desk.gauges())
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def _start_profile(self, request: web.Request) -> web.StreamResponse:
        self._desk.check_open(0)
        await self.profiler.start()
        return _json({"status": "recording"})

    async def _stop_profile(self, request: web.Request) -> web.StreamResponse:
        trace, warnings = await self.profiler.stop()
        return _json({"trace": trace, **({"warnings": list(warnings)} if warnings else {})})

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Errors as OpenAI's bodies, for everything that is not a stream yet; and all answers counted."""
        try:
            self._check_origin(request)
            self._check_key(request)
            response = await handler(request)
        except ConnectionResetError:  # the client is gone, or was cut off
            response = web.Response(status=499)  # nobody gets it; what is raised here would be logged as a failure
        except web.HTTPException as error:
            problem = Problem(error.status, f"{request.method} {request.path}: {error.reason}")
            response = _json(problem.body(), error.status)
        except Exception as error:  # noqa: BLE001 - every failure has an answer
            problem = problem_of(error)
            if problem.code == "internal_error":
                _log.exception("%s failed", request.path)
            response = _json(problem.body(), problem.status, problem.headers)
        self._count(request, response.status)
        return response

    def _count(self, request: web.Request, status: int) -> None:
        resource = request.match_info.route.resource
        self._desk.metrics.requests[resource.canonical if resource is not None else "other", status] += 1

    def _check_key(self, request: web.Request) -> None:
        key = self._settings.api_key
        if key is None or request.path in _OPEN:
            return
        kind, _, given = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(
            given.strip().encode(errors="surrogateescape"), key.encode()
        ):
            raise Problem(401, "wrong or no API key: send Authorization: Bearer KEY", code="invalid_api_key")

    def _check_origin(self, request: web.Request) -> None:
        """A page in somebody's browser is no client: it would reach a loopback server that its author cannot."""
        origin = request.headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != request.host:
            raise Problem(403, "requests of web pages from elsewhere are not answered", code="origin_not_allowed")


def _json(data: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    body = msgspec.json.encode(data)
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")
