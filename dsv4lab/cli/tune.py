"""``dsv4lab tune``: a tuning session, as a sweep over plans, queues and concurrency levels, or as a search."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from dsv4lab.cli import knob_args, model_args, rank_args, schedule_args, search_args, tune_search, tune_server
from dsv4lab.cli.base import Command
from dsv4lab.cli.output import Advance, console, emit_json, note, progress, say, text_table
from dsv4lab.cli.safe import cut
from dsv4lab.config.engine import QUEUE_POLICIES, EngineConfig
from dsv4lab.errors import EngineError, UsageError

if TYPE_CHECKING:
    from dsv4lab.engine.loop_store import Compiling
    from dsv4lab.tuning.session import SessionResult
    from dsv4lab.tuning.space import PlanChoice, SweepSpace
    from dsv4lab.tuning.sweep import Tell
    from dsv4lab.tuning.target import SweepTarget

DIVERGED = 1
ROUNDS, REPEATS, CONFIRM = 1, 2, 9
_LABEL = 34


class TuneCommand(Command):
    """Measure a sweep, check the outputs, and say what to use."""

    name = "tune"
    help = "tuning session: a sweep over plans, queues and concurrency levels, or a search over any knobs"
    examples = (
        "dsv4lab tune --preset demo",
        "dsv4lab tune --preset tiny --plans off,hip,cuda --hw-queues 1,2,4 --concurrency 1,4 --out traces/tiny --json",
        "dsv4lab tune --preset demo --plans off,my-plan.json --hw-queues 2 --concurrency 8 --confirm 16",
        "dsv4lab tune --preset demo --out traces/monday --resume",
        "dsv4lab tune --preset demo --search tpe --side-streams planned,1,2 --queue-policy round_robin,refcount",
        "dsv4lab tune --preset demo --search pareto --concurrency 1,2,4,8 --time 600",
        "dsv4lab tune --preset flash --layers 6 --weights stored --device cuda --search grid --plans off,cuda+moe,auto",
        "dsv4lab tune --server 'my-server --port {port} {flags}' --env GPU_MAX_HW_QUEUES=4,5,8 --concurrency 1,64",
    )

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Model, device, sweep, load, effort, and where it is written."""
        model_args.add_model_arguments(parser, preset="demo")
        model_args.add_device_arguments(parser)
        ints = model_args.integers
        parser.add_argument(
            "--plans", default="off,hip,cuda", help="plans: presets or JSON files (default: off,hip,cuda)"
        )
        for option, default, what in (
            ("--hw-queues", None, "counts (default: 1,2,4, on a GPU the one count of an engine there)"),
            ("--concurrency", (1, 4), "levels (default: 1,4)"),
            ("--prompt-tokens", (32,), "of a prompt; a search takes several (default: 32)"),
            ("--max-new-tokens", (8,), "for each; a search takes several (default: 8)"),
        ):
            parser.add_argument(option, type=ints(option), default=default, metavar="N,N", help=what)
        parser.add_argument(
            "--queue-policy",
            type=search_args.queue_policies,
            metavar="NAME,NAME",
            help="how streams get queues; a search takes several (default: round_robin)",
        )
        parser.add_argument(
            "--side-streams",
            type=search_args.side_streams,
            metavar="N,N",
            help="fold a plan's side streams onto so many; a search takes several (default: planned, no folding)",
        )
        _add_effort(parser, "--rounds", ROUNDS, "worker processes per queue count")
        _add_effort(parser, "--repeats", REPEATS, "measured loads of every setting in each of them")
        _add_effort(parser, "--confirm", CONFIRM, "paired trials of the winner against off, 30 after a search")
        parser.add_argument("--no-control", action="store_true", help="leave out off with all cores inside the op")
        rank_args.add_rank_arguments(parser)
        schedule_args.add_chunk_argument(parser)
        search_args.add_search_arguments(parser)
        knob_args.add_knob_arguments(parser)
        tune_server.add_server_arguments(parser)
        parser.add_argument("--out", type=Path, metavar="DIR", help="session folder (default: traces/NAME-TIME)")
        parser.add_argument("--resume", action="store_true", help="go on with the session in --out")

    def run(self, args: argparse.Namespace) -> int:
        """JSON: ``identical``, ``rows``, ``best`` and more (docs). Exit code 1 if outputs differ between settings."""
        if search_args.is_search(args):
            return tune_search.run_search_command(args, _folder(args))
        return self._sweep(args)

    def _sweep(self, args: argparse.Namespace) -> int:
        from dsv4lab.engine.loop_store import Compiling
        from dsv4lab.tuning.report import write_report
        from dsv4lab.tuning.session import run_session
        from dsv4lab.tuning.sweep import load_count

        if args.device != "cpu":
            raise UsageError(
                f"--device {args.device}: a sweep compares queue threads of the CPU device with all its cores; "
                "a GPU takes --search grid, tpe or pareto"
            )
        args = _single_values(args)
        space = _space(args)
        config = model_args.engine_config(args, max(space.concurrency), plan="off", hw_queues=space.hw_queues[0])
        folder = _folder(args)
        total, compiling = load_count(space), Compiling()
        opened = partial(_open, compiling)
        try:
            with progress(total, "starting") as advance:
                tell = _telling(advance, total, lambda: time.monotonic() - compiling.seconds)
                result = run_session(space, config, folder, open_target=opened, tell=tell, resume=args.resume)
                tell(0, "writing the report")
                report = write_report(result)
        except (KeyboardInterrupt, EngineError):
            note(f"what was measured so far is kept: the same command with --out {folder} --resume goes on")
            raise
        if args.json:
            emit_json({**result.to_json(), "report": str(report)})
        else:
            _print(result, report)
        return 0 if result.identical else DIVERGED


def _telling(advance: Advance, total: int, clock: Callable[[], float]) -> Tell:
    """Shows each load on the bar, with the time that is left at the pace of this run's own loads."""
    begun, done, fresh = clock(), 0, 0

    def tell(loads: int, text: str) -> None:
        nonlocal done, fresh
        done += loads
        fresh += loads == 1  # more at once are those of an earlier run
        left = (clock() - begun) / fresh * (total - done) if fresh else None
        advance(loads, note=f"{cut(text, _LABEL):<{_LABEL}}{tune_search.left_text(left)}")

    return tell


def _add_effort(parser: argparse.ArgumentParser, option: str, default: int, text: str) -> None:
    parser.add_argument(option, type=model_args.positive(option), metavar="N", help=f"{text} (default: {default})")


def _single_values(args: argparse.Namespace) -> argparse.Namespace:
    """``args`` with one value for each of what only a search varies. Raises :class:`UsageError` for several."""
    one = argparse.Namespace(**vars(args))
    for name, default in (
        ("prompt_tokens", None),
        ("max_new_tokens", None),
        ("queue_policy", QUEUE_POLICIES[0]),
        ("side_streams", None),
    ):
        values = getattr(args, name)
        if values is not None and len(values) > 1:
            raise UsageError(f"--{name.replace('_', '-')}: several values need --search grid, tpe or pareto")
        setattr(one, name, default if values is None else values[0])
    return one


def _open(compiling: Compiling, config: EngineConfig) -> SweepTarget:
    from dsv4lab.engine.client import EngineClient

    return EngineClient(config, progress=compiling.note)


def _space(args: argparse.Namespace) -> SweepSpace:
    from dsv4lab.tuning.space import Load, SweepSpace

    return SweepSpace(
        plans=_plans(args.plans.split(",")),
        hw_queues=args.hw_queues or search_args.CPU_QUEUES,
        concurrency=args.concurrency,
        load=Load(args.prompt_tokens, args.max_new_tokens, args.seed),
        rounds=args.rounds or ROUNDS,
        repeats=args.repeats or REPEATS,
        confirm=args.confirm or CONFIRM,
        control=not args.no_control,
    )


def _plans(words: Sequence[str]) -> tuple[PlanChoice, ...]:
    """The plans named, with the baseline in front if it was left out."""
    from dsv4lab.tuning.space import BASELINE, PlanChoice

    settings = [model_args.plan_setting(word.strip()) for word in words if word.strip()]
    choices = [PlanChoice(model_args.plan_name(setting), setting) for setting in settings if setting is not None]
    if BASELINE not in [choice.name for choice in choices]:
        note(f"{BASELINE} is measured too: every gain is a gain against it")
        choices.insert(0, PlanChoice(BASELINE, BASELINE))
    return tuple(choices)


def _folder(args: argparse.Namespace) -> Path:
    if args.out is not None:
        return Path(args.out)
    if args.resume:
        raise model_args.missing("--resume", "--out DIR, the session to go on with")
    name = args.preset if args.checkpoint is None else args.checkpoint.resolve().name
    name = "server" if args.server is not None else name
    return Path("traces") / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def _print(result: SessionResult, report: Path) -> None:
    from dsv4lab.tuning import tables

    if result.findings:
        title = f"Sweep of {result.manifest.preset} (level: requests in flight)"
        text_table(*tables.short_sweep_table(result), title=title, left=2)
    if result.recommendation is not None and result.recommendation.levels:
        title = tables.confirm_title(result.recommendation)
        text_table(tables.CONFIRM_COLUMNS, tables.confirm_table(result.recommendation), title=title)
    if result.arms:
        arm = result.arms[0]
        requests = f"{arm.concurrency_level} request{'s' * (arm.concurrency_level != 1)}"
        queues = f"{arm.choice.hw_queues} hardware queue{'s' * (arm.choice.hw_queues != 1)}"
        title = f"{len(arm.steps)} decode steps of {requests}, {queues}"
        text_table(tables.PROFILE_COLUMNS, tables.profile_table(result.arms), title=title)
    say(" ".join((tables.noise_text(result), tables.control_text(result))).strip())
    say("")
    say(tables.identical_text(result), "lab.good" if result.identical else "lab.bad")
    if result.recommendation is not None:
        say(result.recommendation.headline, "lab.title")
        say(result.recommendation.reason)
        say(f"This holds {tables.SCOPE}:")
        console().print(Text(f"  {tables.launch_line(result)}", style="lab.key"))
    console().print(Text(f"report: {report}"))
