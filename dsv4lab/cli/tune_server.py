"""``dsv4lab tune --server``: the options of a session on a server of the user, and what follows from them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4lab.cli.knob_args import env_knobs, flag_knobs
from dsv4lab.cli.model_args import positive
from dsv4lab.cli.serve import api_key, require_aiohttp
from dsv4lab.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsv4lab.tuning.knobs import Knob, KnobSpace, KnobValue
    from dsv4lab.tuning.server_arms import ServerArms


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """``--server`` and how that server is launched, asked, loaded and profiled."""
    group = parser.add_argument_group("a server of yours, instead of the engine")
    group.add_argument(
        "--server", metavar="CMD", help="its command; {port}, {host} and {flags} are filled in, no shell reads it"
    )
    _add_launch(group)
    _add_load(group)
    group.add_argument("--profile-dir", type=Path, metavar="DIR", help="where it writes traces (default: no profiles)")
    group.add_argument("--start-profile", default="/start_profile", metavar="PATH", help="default: /start_profile")
    group.add_argument("--stop-profile", default="/stop_profile", metavar="PATH", help="default: /stop_profile")
    group.add_argument(
        "--profile-requests", type=int, default=4, metavar="N", help="requests in a profile, 0: none (default: 4)"
    )


def _add_launch(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--health", default="/health", metavar="PATH", help="asked until it answers 200 (default: /health)"
    )
    group.add_argument("--start-timeout", type=float, default=600.0, metavar="S", help="for that (default: 600 s)")
    group.add_argument(
        "--stop-timeout", type=float, default=30.0, metavar="S", help="from SIGTERM to SIGKILL (default: 30 s)"
    )
    group.add_argument(
        "--silence", type=float, default=120.0, metavar="S", help="a request without a byte has hung (default: 120 s)"
    )
    group.add_argument("--server-api-key", metavar="KEY", help="sent with requests; @FILE reads it from a file")
    group.add_argument(
        "--parallel-servers", action="store_true", help="keep baseline and candidate alive at once, on one device"
    )


def _add_load(group: argparse._ArgumentGroup) -> None:
    count = positive
    group.add_argument(
        "--waves", type=count("--waves"), default=4, metavar="N", help="requests per stream and block (default: 4)"
    )
    group.add_argument("--warmup", type=int, default=2, metavar="N", help="requests before a load's first (default: 2)")
    group.add_argument("--rate", metavar="R1,R2", help="requests per second, as a Poisson process (default: no bound)")
    group.add_argument("--ratio", type=float, default=1.0, metavar="R", help="draw lengths from R times the length on")
    group.add_argument("--prompts", type=Path, metavar="FILE", help="one a line, or .jsonl; instead of random tokens")
    group.add_argument(
        "--vocab-size", type=count("--vocab-size"), metavar="N", help="of random tokens (default: what it tells)"
    )
    group.add_argument(
        "--gate-prompts", type=count("--gate-prompts"), default=2, metavar="N", help="answers compared (default: 2)"
    )
    group.add_argument(
        "--gate-tokens", type=count("--gate-tokens"), default=16, metavar="N", help="tokens of each (default: 16)"
    )
    group.add_argument(
        "--gpus", type=count("--gpus"), default=1, metavar="N", help="of the server, for tokens/s per GPU"
    )
    group.add_argument("--body", metavar="JSON", help="an object that is added to every request")


def is_server(args: argparse.Namespace) -> bool:
    """Whether a server was named. Raises :class:`UsageError` for ``--flag`` without one."""
    if args.server is None and args.flag:
        raise UsageError("--flag: it needs --server CMD")
    return args.server is not None


def server_space(args: argparse.Namespace) -> KnobSpace:
    """Environment and flags with all their values, and the load knobs; baseline: the first value of each."""
    from dsv4lab.tuning.knobs import CONCURRENCY, LOAD, MAX_NEW_TOKENS, PROMPT_TOKENS, RATE, Knob, KnobSpace, Setting

    tuned = [*env_knobs(args), *flag_knobs(args)]
    if not tuned:
        raise UsageError("--server: nothing to vary; give --env NAME=V1,V2 or --flag=--name=V1,V2")
    loads: list[Knob] = [
        Knob(name, _numbers(values), LOAD)
        for name, values in (
            (CONCURRENCY, args.concurrency),
            (PROMPT_TOKENS, args.prompt_tokens),
            (MAX_NEW_TOKENS, args.max_new_tokens),
        )
    ]
    if args.rate is not None:
        loads.append(Knob(RATE, _rates(args.rate), LOAD))
    return KnobSpace((*tuned, *loads), Setting(tuple((knob.name, knob.values[0]) for knob in tuned)))


def server_arms(args: argparse.Namespace, folder: Path) -> ServerArms:
    """The target of ``--server``; logs go to ``folder``. Starts nothing. Raises :class:`UsageError`."""
    from dsv4lab.load.process import ServerSpec
    from dsv4lab.load.spec import read_prompts
    from dsv4lab.tuning.server_arms import ServerArms
    from dsv4lab.tuning.server_plan import ServerPlan

    require_aiohttp()
    server = ServerSpec(
        args.server,
        health=args.health,
        start_s=args.start_timeout,
        stop_s=args.stop_timeout,
        start_profile=args.start_profile,
        stop_profile=args.stop_profile,
        profile_dir=args.profile_dir,
        api_key=api_key(args.server_api_key),
    )
    plan = ServerPlan(
        server,
        folder,
        waves=args.waves,
        range_ratio=args.ratio,
        prompts=None if args.prompts is None else tuple(read_prompts(args.prompts)),
        vocab_size=args.vocab_size,
        warmup=_at_least_0("--warmup", args.warmup),
        gate_prompts=args.gate_prompts,
        gate_tokens=args.gate_tokens,
        profile_requests=_at_least_0("--profile-requests", args.profile_requests),
        gpus=args.gpus,
        silence_s=args.silence,
        body=_body(args.body),
        alive=2 if args.parallel_servers else 1,
    )
    return ServerArms(plan)


def _numbers(values: int | Sequence[int]) -> tuple[KnobValue, ...]:
    return (values,) if isinstance(values, int) else tuple(values)


def _rates(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise UsageError(f"--rate: got {text!r}, it takes requests per second, separated by commas") from None


def _at_least_0(option: str, value: int) -> int:
    if value < 0:
        raise UsageError(f"{option} is {value}: it takes an integer, 0 or more")
    return value


def _body(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--body: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"--body: it takes an object, got {type(found).__name__}")
    return found
