"""A load client for any OpenAI-compatible server: requests are sent in time, and the arrival of every chunk is kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import msgspec

from dsv4lab.errors import EngineError, TimeoutExceededError, UnavailableError
from dsv4lab.load.report import RequestRecord
from dsv4lab.load.spec import LoadSpec, Prompt
from dsv4lab.load.sse import EventReader

OnDone = Callable[[RequestRecord], object]
_ERROR_CHARS = 300
_DISCOVER_S = 60.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's base URL and what its requests need. ``body`` is added to each; no byte in ``silence_s`` is a hang."""

    url: str
    model: str | None = None
    api_key: str | None = None
    chat: bool = False
    body: dict[str, Any] = field(default_factory=dict)
    silence_s: float = 120.0

    @property
    def headers(self) -> dict[str, str]:
        """Of every request."""
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}

    def payload(self, prompt: Prompt, max_new_tokens: int) -> dict[str, Any]:
        """The body of one request: greedy, of exactly so many tokens where the server knows ``ignore_eos``."""
        if self.chat:
            asked: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]}
        else:
            asked = {"prompt": prompt}
        common = {"max_tokens": max_new_tokens, "temperature": 0.0, "ignore_eos": True}
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        return {**({} if self.model is None else {"model": self.model}), **asked, **common, **stream, **self.body}

    @property
    def path(self) -> str:
        """Where requests go."""
        return f"{self.url.rstrip('/')}/v1/{'chat/completions' if self.chat else 'completions'}"


@dataclass(slots=True)
class _Seen:
    """What has come of one request."""

    chunks_ns: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    complete: bool = False

    def take(self, event: bytes, now_ns: int) -> None:
        """One event. Raises :class:`EngineError` if it tells an error or is none of a completion."""
        if event == b"[DONE]":
            self.complete = True
            return
        data = msgspec.json.decode(event)
        if "error" in data:
            raise EngineError(f"the stream tells an error: {_short(data['error'])}")
        if choices := data["choices"]:
            self.chunks_ns.append(now_ns)
            choice = choices[0]
            delta = choice.get("delta") or {}
            self.text.append(choice.get("text") or delta.get("content") or "")
            self.token_ids += choice.get("token_ids") or ()
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self.usage = data.get("usage") or self.usage

    def record(self, index: int, sent_ns: int, error: str | None, *, hung: bool = False) -> RequestRecord:
        """As it stands now."""
        return RequestRecord(
            index=index,
            prompt_tokens=self.usage.get("prompt_tokens"),
            new_tokens=self.usage.get("completion_tokens"),
            sent_ns=sent_ns,
            chunks_ns=tuple(self.chunks_ns),
            ended_ns=time.perf_counter_ns(),
            text="".join(self.text),
            token_ids=tuple(self.token_ids),
            finish_reason=self.finish_reason,
            error=error,
            hung=hung,
        )


async def stream_one(
    session: aiohttp.ClientSession, endpoint: Endpoint, index: int, prompt: Prompt, max_new_tokens: int
) -> RequestRecord:
    """One streamed request. What goes wrong is in the record: a refusal, a broken stream, silence, nonsense."""
    payload = msgspec.json.encode(endpoint.payload(prompt, max_new_tokens))
    seen, events = _Seen(), EventReader()
    headers = {**endpoint.headers, "Content-Type": "application/json"}
    sent_ns = time.perf_counter_ns()
    try:
        async with session.post(endpoint.path, data=payload, headers=headers) as response:
            if response.status != 200:
                return seen.record(index, sent_ns, f"status {response.status}: {_short(await response.text())}")
            async for piece in response.content.iter_any():
                now_ns = time.perf_counter_ns()
                for event in events.feed(piece):
                    seen.take(event, now_ns)
    except TimeoutError:
        return seen.record(index, sent_ns, f"nothing came for {endpoint.silence_s:g} s", hung=True)
    except (aiohttp.ClientError, OSError) as error:
        return seen.record(index, sent_ns, f"connection: {_short(error) or type(error).__name__}")
    except EngineError as error:
        return seen.record(index, sent_ns, str(error))
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return seen.record(index, sent_ns, "the stream has an event that is no completion")
    if not seen.complete and seen.finish_reason is None:
        return seen.record(index, sent_ns, "the stream broke off")
    return seen.record(index, sent_ns, None if seen.chunks_ns else "the stream has no tokens")


async def run_load(
    endpoint: Endpoint, spec: LoadSpec, prompts: Sequence[Prompt], on_done: OnDone | None = None
) -> list[RequestRecord]:
    """Run ``spec`` with a prompt for each request; its records in that order. ``on_done`` is told each as it ends."""
    room = asyncio.Semaphore(spec.concurrency or spec.requests)
    begun = time.perf_counter()

    async def one(index: int, due_s: float, new: int) -> RequestRecord:
        await asyncio.sleep(max(0.0, begun + due_s - time.perf_counter()))
        async with room:
            record = await stream_one(session, endpoint, index, prompts[index], new)
        if on_done is not None:
            on_done(record)
        return record

    async with open_session(endpoint) as session:
        due = zip(spec.arrivals_s(), spec.new_tokens(), strict=True)
        return list(await asyncio.gather(*(one(index, *pair) for index, pair in enumerate(due))))


async def warm_up(endpoint: Endpoint, spec: LoadSpec, prompts: Sequence[Prompt], requests: int) -> None:
    """Send the first ``requests`` prompts together, before the load. Raises :class:`EngineError` if one fails."""
    async with open_session(endpoint) as session:
        first = prompts[:requests]
        runs = (stream_one(session, endpoint, at, prompt, spec.max_new_tokens) for at, prompt in enumerate(first))
        for record in await asyncio.gather(*runs):
            if record.error is not None:
                kind = TimeoutExceededError if record.hung else EngineError
                raise kind(f"warm-up: {record.error}")


def open_session(endpoint: Endpoint) -> aiohttp.ClientSession:
    """A session without bounds of its own but for silence."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=endpoint.silence_s, sock_read=endpoint.silence_s)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout, read_bufsize=1 << 18)


async def discover(endpoint: Endpoint) -> tuple[Endpoint, int | None]:
    """``endpoint`` with the served model's name, if it has none; and the vocabulary's size, where the server tells it.

    Raises :class:`UnavailableError` if there is no such server.
    """
    url = f"{endpoint.url.rstrip('/')}/v1/models"
    try:
        patient = replace(endpoint, silence_s=max(endpoint.silence_s, _DISCOVER_S))
        async with open_session(patient) as session, session.get(url, headers=endpoint.headers) as response:
            body = await response.read()
            if response.status != 200:
                raise UnavailableError(f"{url}: status {response.status}: {_short(body.decode(errors='replace'))}")
            (first, *_) = msgspec.json.decode(body)["data"]
            size = first.get("vocab_size")
            return replace(endpoint, model=endpoint.model or first["id"]), size if type(size) is int else None
    except (aiohttp.ClientError, OSError) as error:
        raise UnavailableError(f"{url}: {_short(error) or type(error).__name__}") from None
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError, AttributeError):
        raise UnavailableError(f"{url}: the answer is no list of models") from None


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _ERROR_CHARS else f"{text[:_ERROR_CHARS]}..."
