"""Requests as OpenAI's API has them, read into what the engine takes. Pure: no engine, no sockets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from dsv4lab.engine.sampling_params import MAX_LOGPROBS, MAX_SEED, SamplingParams
from dsv4lab.serve.fields import Fields
from dsv4lab.text.encoding import ChatOptions

MAX_CHOICES = 64
"""Most choices of one request, over all of its prompts."""
COMPLETION_TOKENS = 16
CHAT_TOKENS = 256
"""New tokens where a request does not say how many."""

Usage = Literal["none", "last", "each"]
"""Which chunks of a stream tell the usage."""

_NAMELESS = ("metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user")
"""Fields that say who asks and why; they do not change an answer."""


@dataclass(frozen=True, slots=True)
class Common:
    """What completions and chats share. ``n`` choices of each prompt; ``token_ids`` adds them to the choices."""

    sampling: SamplingParams
    max_tokens: int
    n: int
    stream: bool
    usage: Usage
    token_ids: bool

    def sampling_of(self, choice: int) -> SamplingParams:
        """Of one choice of ``n``: with a seed, each has its own, counted from it."""
        seed = self.sampling.seed
        return self.sampling if seed is None else replace(self.sampling, seed=(seed + choice) % (MAX_SEED + 1))


@dataclass(frozen=True, slots=True)
class CompletionAsked:
    """``POST /v1/completions``: prompts are texts or token ids."""

    prompts: tuple[str | tuple[int, ...], ...]
    common: Common


@dataclass(frozen=True, slots=True)
class ChatAsked:
    """``POST /v1/chat/completions``. Messages and tools are checked when they are encoded."""

    messages: Any
    tools: Any
    options: ChatOptions
    common: Common


def completion_asked(data: Mapping[str, Any]) -> CompletionAsked:
    """Read the fields of a completion, ``model`` excepted. Raises :class:`Problem` or ``RequestError``."""
    fields = Fields(data)
    fields.ignore("model")
    prompts = _prompts(fields)
    fields.only("echo", False)
    fields.only("suffix", "")
    logprobs = fields.maybe_whole("logprobs", 0, MAX_LOGPROBS)
    common = _common(fields, len(prompts), logprobs, fields.whole("max_tokens", COMPLETION_TOKENS, 1))
    fields.only("best_of", common.n)
    fields.finish()
    return CompletionAsked(prompts, common)


def chat_asked(data: Mapping[str, Any]) -> ChatAsked:
    """Read the fields of a chat, ``model`` excepted. Raises :class:`Problem` or ``RequestError``."""
    fields = Fields(data)
    fields.ignore("model")
    messages, tools = fields.raw("messages"), fields.raw("tools")
    if messages is None:
        raise fields.wrong("messages", "a list of messages")
    top = fields.maybe_whole("top_logprobs", 0, MAX_LOGPROBS)
    logprobs = fields.flag("logprobs")
    if top is not None and not logprobs:
        raise fields.wrong("top_logprobs", "a number only where logprobs is true")
    most = fields.whole("max_tokens", CHAT_TOKENS, 1)
    most = fields.whole("max_completion_tokens", most, 1)
    common = _common(fields, 1, (top or 0) if logprobs else None, most)
    options = _options(fields)
    fields.only("parallel_tool_calls", True)
    fields.finish()
    return ChatAsked(messages, tools, options, common)


def _common(fields: Fields, prompts: int, logprobs: int | None, max_tokens: int) -> Common:
    n = fields.whole("n", 1, 1, MAX_CHOICES)
    if n * prompts > MAX_CHOICES:
        raise fields.wrong("n", f"at most {MAX_CHOICES} choices over all prompts, which are {prompts}")
    stream = fields.flag("stream")
    fields.only("logit_bias", {})
    fields.ignore(*_NAMELESS)
    return Common(
        sampling=_sampling(fields, logprobs),
        max_tokens=max_tokens,
        n=n,
        stream=stream,
        usage=_usage(fields, stream),
        token_ids=fields.flag("return_token_ids"),
    )


def _sampling(fields: Fields, logprobs: int | None) -> SamplingParams:
    """The default temperature is 1, as in OpenAI's API; ``top_k`` -1 is no cut, as elsewhere."""
    return SamplingParams(
        temperature=fields.number("temperature", 1.0),
        top_k=max(0, fields.whole("top_k", 0, -1)),
        top_p=fields.number("top_p", 1.0),
        seed=fields.maybe_whole("seed", 0, MAX_SEED),
        stop_token_ids=_ids(fields, "stop_token_ids", fields.raw("stop_token_ids") or []),
        min_p=fields.number("min_p", 0.0),
        repetition_penalty=fields.number("repetition_penalty", 1.0),
        presence_penalty=fields.number("presence_penalty", 0.0),
        frequency_penalty=fields.number("frequency_penalty", 0.0),
        min_new_tokens=fields.whole("min_tokens", 0, 0),
        stop=_stop(fields),
        ignore_eos=fields.flag("ignore_eos"),
        logprobs=logprobs,
    )


def _stop(fields: Fields) -> tuple[str, ...]:
    value = fields.raw("stop")
    values = [value] if isinstance(value, str) else value if value is not None else []
    if not isinstance(values, list) or not all(isinstance(text, str) for text in values):
        raise fields.wrong("stop", "a string or a list of strings")
    return tuple(text for text in values if text)  # clients send "" for none


def _usage(fields: Fields, stream: bool) -> Usage:
    options = fields.inner("stream_options")
    if options is None:
        return "none"
    if not stream:
        raise fields.wrong("stream_options", "an object only where stream is true")
    last, each = options.flag("include_usage"), options.flag("continuous_usage_stats")
    options.only("include_obfuscation", False)
    options.finish()
    return "each" if last and each else "last" if last else "none"


def _prompts(fields: Fields) -> tuple[str | tuple[int, ...], ...]:
    value = fields.raw("prompt")
    takes = "a string, token ids, or a list of either"
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise fields.wrong("prompt", takes)
    if isinstance(value[0], int):
        return (_ids(fields, "prompt", value),)
    if len(value) > MAX_CHOICES:
        raise fields.wrong("prompt", f"at most {MAX_CHOICES} prompts")
    return tuple(row if isinstance(row, str) else _ids(fields, "prompt", row) for row in value)


def _ids(fields: Fields, name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(token) is not int for token in value):
        raise fields.wrong(name, "token ids: a list of integers")
    return tuple(value)


def _options(fields: Fields) -> ChatOptions:
    effort = fields.text("reasoning_effort")
    choice = fields.raw("tool_choice")
    if choice is not None and not isinstance(choice, str):
        raise fields.wrong("tool_choice", "'auto', 'none' or 'required': these models are not told which tool to call")
    return ChatOptions(
        thinking=_thinking(fields),
        effort=effort,
        tool_choice="auto" if choice is None else choice,
        response_format=_response_format(fields),
    )


def _thinking(fields: Fields) -> bool:
    """``thinking`` as DeepSeek's API has it, or ``chat_template_kwargs`` as vLLM and sglang take it."""
    thinks = True
    if (told := fields.inner("thinking")) is not None:
        if told.raw("type") not in ("enabled", "disabled"):
            raise told.wrong("type", "'enabled' or 'disabled'")
        told.finish()
        thinks = told.raw("type") == "enabled"
    if (told := fields.inner("chat_template_kwargs")) is not None:
        thinks = told.flag("enable_thinking", told.flag("thinking", thinks))
        told.finish()
    return thinks


def _response_format(fields: Fields) -> str | Mapping[str, Any] | None:
    """The format that the prompt asks for; an answer is not held to it, so ``strict`` is refused."""
    form = fields.inner("response_format")
    if form is None:
        return None
    kind, schema = form.raw("type"), form.inner("json_schema")
    form.finish()
    if kind == "json_schema" and schema is not None:
        value = schema.raw("schema")
        if not isinstance(value, dict):
            raise schema.wrong("schema", "an object, the schema")
        if schema.flag("strict"):
            raise schema.wrong("strict", "false: the prompt asks for the schema, answers are not held to it")
        schema.ignore("name", "description")
        schema.finish()
        return value
    if kind not in ("text", "json_object"):
        raise form.wrong("type", "'text', 'json_object', or 'json_schema' with a schema")
    return None if kind == "text" else "json_object"
