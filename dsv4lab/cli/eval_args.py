"""Arguments of ``dsv4lab eval ab``, and the plan that they ask for."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4lab.cli.model_args import positive
from dsv4lab.cli.serve import ServeCommand, api_key
from dsv4lab.config.presets import preset
from dsv4lab.errors import UsageError

if TYPE_CHECKING:
    from dsv4lab.evaluate.arms import ArmSpec
    from dsv4lab.evaluate.plan import Plan
    from dsv4lab.evaluate.questions import Question
    from dsv4lab.load.process import ServerSpec

ARMS = ("a", "b")


def add_arm_arguments(parser: argparse.ArgumentParser) -> None:
    """What the arms are: URLs, commands, or our own server with two sets of flags."""
    group = parser.add_argument_group("arms", "two of: a server that runs, one to be started, our own to be started")
    for arm in ARMS:
        name = arm.upper()
        group.add_argument(f"--url-{arm}", metavar="URL", help=f"arm {name} is a server that runs there")
    group.add_argument("--server", metavar="CMD", help="start the arms with this command; {host}, {port}, {flags}")
    for arm in ARMS:
        group.add_argument(f"--server-{arm}", metavar="CMD", help=f"the command of arm {arm.upper()} alone")
    own = group.add_mutually_exclusive_group()
    own.add_argument("--preset", help="start `dsv4lab serve` with this preset for the arms")
    own.add_argument("--checkpoint", type=Path, metavar="DIR", help="the same with a checkpoint")
    for arm in ARMS:
        name = arm.upper()
        group.add_argument(f"--flags-{arm}", default="", metavar="FLAGS", help=f"{{flags}} of arm {name}, in quotes")
        group.add_argument(
            f"--env-{arm}", action="append", default=[], metavar="NAME=VALUE", help=f"environment of arm {name}"
        )
        group.add_argument(f"--model-{arm}", metavar="NAME", help="default: the first that the server lists")
    group.add_argument("--api-key", metavar="KEY", help="sent as a bearer token; @FILE reads it from a file")
    group.add_argument("--start-timeout", type=float, default=1800.0, metavar="S", help="until healthy (default: 1800)")


def add_question_arguments(parser: argparse.ArgumentParser) -> None:
    """Which questions, and how they are asked."""
    parser.add_argument("questions", type=Path, metavar="QUESTIONS.jsonl", help="lines with question and answer")
    parser.add_argument("--limit", type=positive("--limit"), metavar="N", help="only the first N questions")
    parser.add_argument("--shots", type=int, default=0, metavar="N", help="worked examples in each prompt (default: 0)")
    parser.add_argument(
        "--shots-from", type=Path, metavar="FILE", help="default: the first of QUESTIONS, which then are not asked"
    )
    parser.add_argument("--chat", action="store_true", help="ask as a chat (default: as a text to be completed)")
    parser.add_argument("--instruction", metavar="TEXT", help="put to each prompt (default for a chat: end in #### N)")
    parser.add_argument("--body", default="{}", metavar="JSON", help="fields added to each request, as an object")
    count = positive
    parser.add_argument(
        "--max-new-tokens", type=count("--max-new-tokens"), default=512, metavar="N", help="limit (default: 512)"
    )
    parser.add_argument(
        "--concurrency", type=count("--concurrency"), default=8, metavar="N", help="in flight at once (default: 8)"
    )
    parser.add_argument(
        "--gate-prompts", type=int, default=4, metavar="N", help="asked one by one to compare tokens (default: 4)"
    )
    parser.add_argument("--alpha", type=float, default=0.05, help="level of the test (default: 0.05)")
    parser.add_argument("--power", type=float, default=0.8, help="chance to show a difference (default: 0.8)")
    parser.add_argument(
        "--least", type=float, default=1.0, metavar="POINTS", help="the difference that matters (default: 1 point)"
    )
    parser.add_argument(
        "--silence", type=float, default=600.0, metavar="S", help="give a silent request up (default: 600 s)"
    )


def plan_of(args: argparse.Namespace) -> Plan:
    """The comparison that ``args`` ask for. Raises :class:`UsageError`."""
    from dsv4lab.evaluate.plan import Plan
    from dsv4lab.evaluate.questions import CHAT_INSTRUCTION, PromptStyle, read_questions

    questions = read_questions(args.questions)
    shots, questions = _shots(args, questions)
    instruction = (CHAT_INSTRUCTION if args.chat else "") if args.instruction is None else args.instruction
    return Plan(
        source=args.questions.name,
        questions=tuple(questions[: args.limit]),
        arms=(_arm(args, "a"), _arm(args, "b")),
        style=PromptStyle(args.chat, tuple(shots), instruction),
        max_new_tokens=args.max_new_tokens,
        concurrency=args.concurrency,
        gate_prompts=args.gate_prompts,
        silence_s=args.silence,
        body=_body(args.body),
        alpha=args.alpha,
        power=args.power,
        least=args.least / 100,
    )


def _shots(args: argparse.Namespace, questions: list[Question]) -> tuple[list[Question], list[Question]]:
    """Worked examples, and what is left to ask."""
    from dsv4lab.evaluate.questions import read_questions

    if args.shots < 0:
        raise UsageError(f"--shots is {args.shots}: it takes an integer, 0 or more")
    source = questions if args.shots_from is None else read_questions(args.shots_from)
    if args.shots > len(source):
        raise UsageError(f"--shots is {args.shots}: {args.shots_from or args.questions} has {len(source)} questions")
    return source[: args.shots], questions[args.shots if args.shots_from is None else 0 :]


def _arm(args: argparse.Namespace, arm: str) -> ArmSpec:
    from dsv4lab.evaluate.arms import ArmSpec

    url, model = getattr(args, f"url_{arm}"), getattr(args, f"model_{arm}")
    flags, changes = getattr(args, f"flags_{arm}"), getattr(args, f"env_{arm}")
    if url is None:
        return ArmSpec(arm.upper(), server=_server(args, arm), model=model)
    if flags or changes or getattr(args, f"server_{arm}"):
        raise UsageError(f"--url-{arm}: a server that runs takes no command, flags or environment")
    return ArmSpec(arm.upper(), url, model=model, api_key=api_key(args.api_key))


def _server(args: argparse.Namespace, arm: str) -> ServerSpec:
    from dsv4lab.load.process import ServerSpec

    flags = _words(f"--flags-{arm}", getattr(args, f"flags_{arm}"))
    command = getattr(args, f"server_{arm}") or args.server
    own = command is None  # on loopback, without a key
    if own:
        command = _own_command(args, flags)
    if command is None:
        raise UsageError(f"arm {arm.upper()}: it takes --url-{arm}, --server, --server-{arm}, --preset or --checkpoint")
    return ServerSpec(
        command,
        tuple(flags),
        _environment(f"--env-{arm}", getattr(args, f"env_{arm}")),
        start_s=args.start_timeout,
        api_key=None if own else api_key(args.api_key),
    )


def _own_command(args: argparse.Namespace, flags: list[str]) -> str | None:
    """``dsv4lab serve``; its flags are checked here, before anything starts."""
    from dsv4lab.cli.main import command_parser

    if args.preset is None and args.checkpoint is None:
        return None
    if args.preset is not None:
        preset(args.preset)
    model = ["--preset", args.preset] if args.checkpoint is None else ["--checkpoint", str(args.checkpoint.resolve())]
    command_parser(ServeCommand()).parse_args([*model, *flags])
    return shlex.join([sys.executable, "-m", "dsv4lab", "serve", *model]) + " --port {port} {flags}"


def _body(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--body: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"--body: got {text}, it takes an object")
    return found


def _words(option: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def _environment(option: str, changes: list[str]) -> dict[str, str | None]:
    """``NAME=VALUE`` sets, ``NAME`` alone unsets."""
    found: dict[str, str | None] = {}
    for change in changes:
        name, equals, value = change.partition("=")
        if not name.isidentifier():
            raise UsageError(f"{option}: got {change!r}, it takes NAME=VALUE, or NAME to unset it")
        found[name] = value if equals else None
    return found
