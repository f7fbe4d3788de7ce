"""``dsv4lab run`` with words: raw prompts, or a chat that is printed as it comes."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from rich.text import Text

from dsv4lab.cli import model_args, text_args
from dsv4lab.cli.output import console, emit_json, note, progress, table
from dsv4lab.cli.run_json import document, extras
from dsv4lab.cli.safe import clean, clip
from dsv4lab.config.presets import PRESETS
from dsv4lab.text.parser import Delta, Kind

if TYPE_CHECKING:
    from dsv4lab.config.engine import EngineConfig
    from dsv4lab.engine.chat import ChatResult
    from dsv4lab.engine.client import EngineClient
    from dsv4lab.engine.results import RequestStats
    from dsv4lab.text.tokenizer import TextTokenizer


def run_text(args: argparse.Namespace) -> int:
    """Carry out ``run`` with ``--prompt``, ``--chat`` or ``--messages``."""
    chat = text_args.conversation(args)
    tokenizer = _tokenizer(args)
    if chat is None:
        prompts = [tokenizer.encode(prompt) for prompt in args.prompt]
        args.prompt_tokens = max(map(len, prompts))
        config = _config(args, len(prompts))
        return _prompts(args, config)
    from dsv4lab.text.encoding import encode_chat

    # The profile of a checkpoint may lengthen the prompt; the longest prefix is some 150 tokens.
    prompt = encode_chat(*chat, text_args.chat_options(args))
    args.prompt_tokens = len(tokenizer.encode_prompt(prompt)) + model_args.PAGE
    return _chat(args, _config(args, 1), chat)


def _tokenizer(args: argparse.Namespace) -> TextTokenizer:
    from dsv4lab.config.from_json import load_model_config
    from dsv4lab.config.presets import preset
    from dsv4lab.engine.texts import model_tokenizer

    model = args.preset if args.checkpoint is None else str(args.checkpoint)
    config = preset(model) if args.checkpoint is None else load_model_config(args.checkpoint)
    if model in PRESETS and not args.json:
        note(f"preset {model}: random weights and a made-up tokenizer; what it says means nothing")
    return model_tokenizer(model, config.vocab_size)


def _config(args: argparse.Namespace, concurrency: int) -> EngineConfig:
    plan = model_args.plan_setting(args.plan)
    return model_args.engine_config(args, concurrency, plan=plan, hw_queues=args.hw_queues)


def _open(config: EngineConfig) -> EngineClient:
    from dsv4lab.engine.client import EngineClient

    with progress(None, "starting a worker") as advance:
        return EngineClient(config, progress=lambda _fraction, stage: advance(0, note=stage))


def _prompts(args: argparse.Namespace, config: EngineConfig) -> int:
    params = text_args.sampling_params(args)
    with _open(config) as client:
        if not args.json and len(args.prompt) == 1:
            handle = client.submit(args.prompt[0], max_new_tokens=args.max_new_tokens, sampling=params)
            for piece in handle.pieces():
                _say(piece)
            _end(client, handle.stats)
            return 0
        result = client.generate(args.prompt, max_new_tokens=args.max_new_tokens, sampling=params, profile=True)
        if args.json:
            found = document(result, config, len(args.prompt)) | extras(client, params.logprobs, result.requests)
            ends = [str(request.finish_reason) for request in result.requests]
            emit_json(found | {"texts": result.texts, "finish_reasons": ends})
            return 0
        for prompt, text, request in zip(args.prompt, result.texts or (), result.requests, strict=True):
            console().print(Text(harmless(prompt), style="bold"), end="")
            _say(text)
            _end(client, request)
    return 0


def _chat(args: argparse.Namespace, config: EngineConfig, chat: tuple[Any, Any]) -> int:
    messages, tools = chat
    params, options = text_args.sampling_params(args), text_args.chat_options(args)
    screen = _Screen()
    with _open(config) as client:
        found = client.chat(
            messages,
            tools=tools,
            options=options,
            max_new_tokens=args.max_new_tokens,
            sampling=params,
            on_delta=None if args.json else screen.show,
        )
        if args.json:
            emit_json(_document(found) | extras(client, params.logprobs, [found.request]))
            return 0
        _end(client, found.request)
        if found.turn.problem is not None:
            note(f"tool calls: {found.turn.problem}", style="lab.warn")
    return 0


def _document(found: ChatResult) -> dict[str, Any]:
    turn, request = found.turn, found.request
    calls = [call.to_json() for call in turn.tool_calls]
    message = {"role": "assistant", "content": turn.content, "reasoning_content": turn.reasoning, "tool_calls": calls}
    return {
        "tokens": [found.tokens],
        "texts": [found.text],
        "message": message,
        "problem": turn.problem,
        "finish_reasons": [str(request.finish_reason)],
        "prompt_tokens": found.prompt_tokens,
        "ttft_ms": request.ttft_ms,
        "tpot_ms": request.tpot_ms,
    }


class _Screen:
    """Prints a turn as it comes: reasoning under its heading, then the answer, then calls."""

    def __init__(self) -> None:
        self._kind: Kind | None = None

    def show(self, delta: Delta) -> None:
        """Print more of the turn."""
        if delta.kind is not self._kind and not (delta.kind is Kind.ARGUMENTS and self._kind is Kind.CALL):
            if self._kind is not None:
                sys.stdout.write("\n")
            if delta.kind is Kind.REASONING:
                console().print("reasoning", style="lab.head")
            elif delta.kind is Kind.CONTENT:
                console().print("answer", style="lab.head")
        if delta.kind is Kind.CALL:
            console().print(Text(f"call {clean(delta.text)} ", style="lab.key"), end="")
        else:
            _say(delta.text)
        self._kind = delta.kind


def harmless(text: str) -> str:
    """``text`` with its lines, tabs and joined emoji, other control characters shown as escapes: what a model writes
    must not steer a terminal.
    """
    return "".join(letter if letter in "\n\t\u200d" else clean(letter) for letter in text)


def _say(text: str) -> None:
    sys.stdout.write(harmless(text))
    sys.stdout.flush()


def _end(client: EngineClient, request: RequestStats) -> None:
    """End the line at hand, and tell how the request went."""
    sys.stdout.write("\n")
    sys.stdout.flush()
    ttft = "-" if request.ttft_ms is None else f"{request.ttft_ms:.1f} ms"
    tpot = "-" if request.tpot_ms is None else f"{request.tpot_ms:.1f} ms"
    note(f"{request.tokens} tokens, ended by {request.finish_reason}, TTFT {ttft}, TPOT {tpot}")
    if not request.logprobs:
        return

    def word(token: int) -> str:
        return clip(repr(client.tokenizer.decode([token])), 24)

    rows = [
        [
            str(place),
            word(found.token),
            f"{found.logprob:.3f}",
            "  ".join(f"{word(t)} {v:.2f}" for t, v in found.top[:3]),
        ]
        for place, found in enumerate(request.logprobs)
    ]
    table(("", "token", "logprob", "likeliest"), rows, left=2)
