"""One HTTP request in the engine: its choices, and the objects that tell of them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dsv4lab.engine.client import EngineClient
from dsv4lab.engine.handle import News, RequestHandle
from dsv4lab.errors import CheckpointError
from dsv4lab.serve.asked import ChatAsked, Common, CompletionAsked
from dsv4lab.serve.metrics import Metrics
from dsv4lab.serve.problems import bad
from dsv4lab.serve.scribes import ChatScribe, CompletionScribe, Scribe, TokenNames
from dsv4lab.text.tokenizer import TextTokenizer


@dataclass(slots=True)
class Job:
    """Choices in flight with their scribes, in order."""

    chat: bool
    model: str
    common: Common
    handles: list[RequestHandle] = field(default_factory=list)
    scribes: list[Scribe] = field(default_factory=list)
    prompt_tokens: int = 0
    new_tokens: int = 0
    created: int = field(default_factory=lambda: int(time.time()))
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def abandon(self) -> None:
        """Nobody waits for what is still in flight."""
        for handle in self.handles:
            if not handle.done:
                handle.abandon()

    def add(self, place: int, news: News) -> dict[str, Any]:
        """What is new of a choice, for a chunk."""
        self.new_tokens += len(news.tokens)
        return self.scribes[place].add(news, self.handles[place].finish_reason if news.done else None)

    def chunk(self, choices: Sequence[dict[str, Any]], *, usage: bool) -> dict[str, Any]:
        """One object of a stream. Where usage is asked for, chunks that do not tell it have null."""
        told = {} if self.common.usage == "none" else {"usage": self.usage() if usage else None}
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self._head(kind), "choices": list(choices), **told}

    def whole(self) -> dict[str, Any]:
        """The answer that is no stream."""
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._head(kind), "choices": [scribe.whole() for scribe in self.scribes], "usage": self.usage()}

    def usage(self) -> dict[str, int]:
        """Tokens so far; a prompt counts once, however many choices it has."""
        total = self.prompt_tokens + self.new_tokens
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.new_tokens, "total_tokens": total}

    def count(self, metrics: Metrics) -> None:
        """Tell ``metrics`` what the choices took."""
        metrics.prompt_tokens += self.prompt_tokens
        for handle in self.handles:
            stats = handle.stats
            metrics.generated_tokens += stats.tokens
            if stats.ttft_ms is not None:
                metrics.ttft.observe(stats.ttft_ms / 1e3)
                metrics.e2e.observe((handle.ended_ns - handle.submitted_ns) / 1e9)
            if stats.tpot_ms is not None:
                metrics.tpot.observe(stats.tpot_ms / 1e3)

    def _head(self, kind: str) -> dict[str, Any]:
        prefix = "chatcmpl" if self.chat else "cmpl"
        return {"id": f"{prefix}-{self.id}", "object": kind, "created": self.created, "model": self.model}


def tokenizer_of(client: EngineClient) -> TextTokenizer | None:
    """The model's tokenizer, if it has one."""
    try:
        return client.tokenizer
    except CheckpointError:
        return None


def submit_completion(
    client: EngineClient,
    asked: CompletionAsked,
    model: str,
    max_prompt_tokens: int | None,
    tokenizer: TextTokenizer | None,
) -> Job:
    """Start all choices, or none. Raises what the engine raises, and :class:`Problem` for text without a tokenizer."""
    common = asked.common
    job, names = Job(False, model, common), TokenNames(tokenizer)
    if tokenizer is None and (common.sampling.stop or any(isinstance(prompt, str) for prompt in asked.prompts)):
        raise bad("prompt", "this model has no tokenizer: prompts are token ids, and there are no stop strings")
    try:
        for prompt in asked.prompts:
            for choice in range(common.n):
                handle = client.submit(
                    prompt,
                    max_new_tokens=common.max_tokens,
                    sampling=common.sampling_of(choice),
                    text=tokenizer is not None,
                    max_prompt_tokens=max_prompt_tokens,
                )
                job.handles.append(handle)
                job.scribes.append(
                    CompletionScribe(
                        len(job.scribes),
                        names,
                        logprobs=common.sampling.logprobs is not None,
                        token_ids=common.token_ids,
                    )
                )
            job.prompt_tokens += handle.prompt_tokens
    except BaseException:
        job.abandon()
        raise
    return job


def submit_chat(
    client: EngineClient, asked: ChatAsked, model: str, max_prompt_tokens: int | None, tokenizer: TextTokenizer | None
) -> Job:
    """As :func:`submit_completion`, of a chat."""
    common = asked.common
    job, names = Job(True, model, common), TokenNames(tokenizer)
    if tokenizer is None:
        raise bad("messages", "this model has no tokenizer: POST /v1/completions takes token ids")
    try:
        for choice in range(common.n):
            chat = client.submit_chat(
                asked.messages,
                tools=asked.tools,
                options=asked.options,
                max_new_tokens=common.max_tokens,
                sampling=common.sampling_of(choice),
                max_prompt_tokens=max_prompt_tokens,
            )
            job.handles.append(chat.request)
            logprobs = common.sampling.logprobs is not None
            job.scribes.append(ChatScribe(choice, names, chat.parser(), logprobs=logprobs, token_ids=common.token_ids))
        job.prompt_tokens = chat.request.prompt_tokens
    except BaseException:
        job.abandon()
        raise
    return job
