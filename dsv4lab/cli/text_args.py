"""Arguments of text: prompts, chats, and how tokens are chosen."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4lab.errors import RequestError, UsageError
from dsv4lab.text.effort import EFFORTS

if TYPE_CHECKING:
    from dsv4lab.engine.sampling_params import SamplingParams
    from dsv4lab.text.encoding import ChatOptions


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """``--prompt``, ``--chat``, ``--messages`` and what goes with them."""
    group = parser.add_argument_group("text, instead of a synthetic load")
    what = group.add_mutually_exclusive_group()
    what.add_argument("--prompt", action="append", metavar="TEXT", help="a raw prompt; may be given several times")
    what.add_argument("--chat", metavar="TEXT", help="what a user says; printed as the model answers")
    what.add_argument(
        "--messages",
        type=Path,
        metavar="FILE",
        help="a conversation: JSON with messages, and perhaps tools, as OpenAI's",
    )
    group.add_argument("--system", metavar="TEXT", help="system text of --chat")
    group.add_argument("--no-thinking", action="store_true", help="answer --chat or --messages without reasoning")
    group.add_argument(
        "--reasoning-effort", choices=EFFORTS, help="how hard to think (default: the checkpoint's own default)"
    )


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Fields of ``SamplingParams``, under their names."""
    group = parser.add_argument_group("choice of the next token (default: the likeliest)")
    for option, kind, text in (
        ("--temperature", float, "0 is greedy (default: 0)"),
        ("--top-k", int, "only the N likeliest tokens; 0: all (default)"),
        ("--top-p", float, "only tokens that this much of the probability needs (default: 1)"),
        ("--min-p", float, "only tokens this likely, relative to the likeliest (default: 0)"),
        ("--repetition-penalty", float, "above 1: tokens of prompt and answer become less likely (default: 1)"),
        ("--presence-penalty", float, "taken off the logits of the answer's tokens (default: 0)"),
        ("--frequency-penalty", float, "the same, for each time that they occur (default: 0)"),
        ("--sampling-seed", int, "fixes the noise (default: from --seed)"),
        ("--min-new-tokens", int, "no end token before so many (default: 0)"),
        ("--logprobs", int, "log-probabilities of each token and of the N likeliest"),
    ):
        group.add_argument(option, type=_number(option, kind), metavar="X" if kind is float else "N", help=text)
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; may be given several times"
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on after the end token")


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """The parameters that ``args`` ask for. Raises :class:`UsageError`, naming the option."""
    from dsv4lab.engine.sampling_params import SamplingParams

    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    fields: dict[str, Any] = {name: getattr(args, name) for name in (*names, "min_new_tokens", "logprobs")}
    fields |= {"seed": args.sampling_seed, "stop": None if args.stop is None else tuple(args.stop)}
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return SamplingParams(**given, ignore_eos=args.ignore_eos)
    except RequestError as error:
        name, _, rest = str(error).partition(" ")
        option = "--sampling-seed" if name == "seed" else f"--{name.replace('_', '-')}"
        raise UsageError(f"{option} {rest}") from None


def chat_options(args: argparse.Namespace) -> ChatOptions:
    """How a chat is put to the model."""
    from dsv4lab.text.encoding import ChatOptions

    return ChatOptions(thinking=not args.no_thinking, effort=args.reasoning_effort)


def conversation(args: argparse.Namespace) -> tuple[Any, Any] | None:
    """Messages and tools of ``--chat`` or ``--messages``; None if there is neither. Raises :class:`UsageError`."""
    if args.chat is None and args.messages is None:
        for name in ("system", "reasoning_effort", "no_thinking"):
            if getattr(args, name):
                raise UsageError(f"--{name.replace('_', '-')}: it needs --chat or --messages")
        return None
    if args.messages is None:
        system = [{"role": "system", "content": args.system}] if args.system is not None else []
        return [*system, {"role": "user", "content": args.chat}], None
    if args.system is not None:
        raise UsageError("--system: it needs --chat; a file of --messages has its own")
    return _read(args.messages)


def _read(path: Path) -> tuple[Any, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--messages {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--messages {path}: not JSON: {error}") from None
    if isinstance(data, dict):
        return data.get("messages"), data.get("tools")
    return data, None


def _number(option: str, kind: type[int | float]) -> Any:
    """An argparse type: one number."""

    def parse(text: str) -> int | float:
        try:
            return kind(text)
        except ValueError:
            raise UsageError(
                f"{option}: got {text!r}, it takes {'an integer' if kind is int else 'a number'}"
            ) from None

    return parse
