"""Conversations: messages in, the model's turn out, while it is written or at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsv4lab.config.presets import PRESETS
from dsv4lab.engine.core import ClientCore
from dsv4lab.engine.handle import OnToken, RequestHandle
from dsv4lab.engine.request import RequestSpec
from dsv4lab.engine.results import RequestStats
from dsv4lab.engine.sampling_params import SamplingParams
from dsv4lab.engine.texts import Given, ending, given_prompt, model_tokenizer, stream_for
from dsv4lab.errors import RoomError
from dsv4lab.text.effort import detect_profile
from dsv4lab.text.encoding import ChatOptions, encode_chat
from dsv4lab.text.parser import Delta, Turn, TurnParser, parse_turn
from dsv4lab.text.stream import TextStream
from dsv4lab.text.tokenizer import TextTokenizer

OnDelta = Callable[[Delta], object]


@dataclass(frozen=True, slots=True)
class ChatResult:
    """The model's turn, the tokens and the text that it was read from, and how it went."""

    turn: Turn
    tokens: list[int]
    text: str
    prompt_tokens: int
    request: RequestStats


class ChatHandle:
    """A chat request: iterate it for the deltas of the turn, or wait for :meth:`result`. Each iteration is complete."""

    def __init__(self, handle: RequestHandle, *, thinking: bool, calling: bool) -> None:
        self.request = handle
        self._thinking = thinking
        self._calling = calling

    def parser(self) -> TurnParser:
        """A new parser for the request's text."""
        return TurnParser(thinking=self._thinking, calling=self._calling)

    def __iter__(self) -> Iterator[Delta]:
        parser = self.parser()
        for piece in self.request.pieces():
            yield from parser.feed(piece)
        yield from parser.finish()

    def result(self, timeout_s: float | None = None) -> ChatResult:
        """The turn, once it is over. Raises what the request failed with, and ``TimeoutExceededError``."""
        tokens = self.request.result(timeout_s)
        text = self.request.text or ""
        turn = parse_turn(text, thinking=self._thinking, calling=self._calling)
        return ChatResult(turn, tokens, text, len(self.request.prompt), self.request.stats)

    def follow(self, on_delta: OnDelta | None, timeout_s: float | None = None) -> ChatResult:
        """As :meth:`result`, calling ``on_delta`` with each delta as it comes."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        if on_delta is not None:
            for delta in self:
                on_delta(delta)
                if deadline is not None and time.monotonic() >= deadline:
                    break
        return self.result(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def abort(self) -> None:
        """End it; the turn stays as far as it has come."""
        self.request.abort()


class ChatClient(ClientCore):
    """The part of :class:`dsv4lab.engine.client.EngineClient` that deals in text."""

    _tokenizer: TextTokenizer | None = None

    @property
    def tokenizer(self) -> TextTokenizer:
        """The checkpoint's tokenizer; a preset has a made-up one. Raises ``CheckpointError`` where there is none."""
        if self._tokenizer is None:
            self._tokenizer = model_tokenizer(self._config.model, self.limits.vocab_size)
        return self._tokenizer

    def submit(
        self,
        prompt: Iterable[Any],
        *,
        max_new_tokens: int = 32,
        sampling: SamplingParams | None = None,
        on_token: OnToken | None = None,
        text: bool = False,
        max_prompt_tokens: int | None = None,
    ) -> RequestHandle:
        """Start one request, of a text or of token ids, and return at once. ``on_token`` is called with each token.

        ``text`` treats token ids as it does a text: the request has :attr:`RequestHandle.text`, and stops at the
        tokenizer's end token. Raises ``RoomError`` for a prompt of more than ``max_prompt_tokens``.
        """
        given = given_prompt(prompt, "prompt", lambda: self.tokenizer)
        given = replace(given, text=given.text or text)
        _check_length(given.tokens, max_prompt_tokens)
        spec, stream = self._asked(given, max_new_tokens, sampling or SamplingParams())
        (handle,) = self._submit([spec], [on_token], streams=[stream])
        return handle

    def chat(
        self,
        messages: object,
        *,
        tools: object = None,
        options: ChatOptions | None = None,
        max_new_tokens: int = 256,
        sampling: SamplingParams | None = None,
        on_delta: OnDelta | None = None,
        timeout_s: float | None = None,
    ) -> ChatResult:
        """The model's turn after ``messages`` (OpenAI's fields; :func:`dsv4lab.text.messages.messages_of`).

        ``on_delta`` is called with each :class:`~dsv4lab.text.parser.Delta` as it comes, on the calling thread.
        """
        handle = self.submit_chat(
            messages, tools=tools, options=options, max_new_tokens=max_new_tokens, sampling=sampling
        )
        try:
            return handle.follow(on_delta, timeout_s)
        except BaseException:
            handle.request.abandon()
            raise

    def submit_chat(
        self,
        messages: object,
        *,
        tools: object = None,
        options: ChatOptions | None = None,
        max_new_tokens: int = 256,
        sampling: SamplingParams | None = None,
        max_prompt_tokens: int | None = None,
    ) -> ChatHandle:
        """Start a chat request and return at once; arguments as for :meth:`chat`.

        Raises ``RoomError`` for a prompt of more than ``max_prompt_tokens``.
        """
        options = options or ChatOptions()
        if options.profile is None and self._config.model not in PRESETS:
            options = replace(options, profile=detect_profile(Path(self._config.model)))
        prompt = encode_chat(messages, tools, options)
        tokens = tuple(self.tokenizer.encode_prompt(prompt))
        _check_length(tokens, max_prompt_tokens)
        params = ending(sampling or SamplingParams(), self.tokenizer)
        spec = self._spec(tokens, max_new_tokens, params)
        # Reasoning and calls are told apart by special tokens, so the stream has to show them.
        stream = stream_for(params, True, lambda: self.tokenizer, special=True)
        (handle,) = self._submit([spec], [None], streams=[stream])
        return ChatHandle(handle, thinking=prompt.opens_reasoning, calling=prompt.opens_calls)

    def _asked(
        self, prompt: Given, max_new_tokens: int, sampling: SamplingParams, *, fingerprints: bool = False
    ) -> tuple[RequestSpec, TextStream | None]:
        params = ending(sampling, self.tokenizer) if prompt.text else sampling
        spec = self._spec(prompt.tokens, max_new_tokens, params, fingerprints=fingerprints)
        return spec, stream_for(params, prompt.text, lambda: self.tokenizer)


def _check_length(tokens: Sequence[int], most: int | None) -> None:
    if most is not None and len(tokens) > most:
        raise RoomError(f"prompt of {len(tokens)} tokens: it takes at most {most}")
