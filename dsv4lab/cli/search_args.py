"""The options of ``dsv4lab tune --search``."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from dsv4lab.cli import model_args
from dsv4lab.cli.tune_server import is_server
from dsv4lab.config.engine import QUEUE_POLICIES
from dsv4lab.errors import UsageError

METHODS = ("grid", "tpe", "pareto")
AUTO, NONE = "auto", "none"
PLANNED = "planned"
CPU_QUEUES = (1, 2, 4)
"""Queue counts of a session on the CPU device that names none."""
SWEEP_ONLY = ("rounds", "repeats", "no_control")


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """``--search`` and what goes with it."""
    group = parser.add_argument_group("a search over any knobs, instead of the sweep")
    group.add_argument(
        "--search",
        choices=METHODS,
        help="grid: every setting, the promising first; tpe: what Optuna's sampler proposes; pareto: the same by TPOT "
        "and throughput together, over all loads",
    )
    count, part = model_args.positive, fraction
    group.add_argument(
        "--trials", type=count("--trials"), metavar="N", help="settings to try (default: all of a grid, else a quarter)"
    )
    group.add_argument("--time", type=seconds("--time"), metavar="S", help="seconds for all of it (default: no bound)")
    group.add_argument(
        "--alpha", type=part("--alpha"), default=0.01, metavar="P", help="chance of a false answer (default: 1%%)"
    )
    group.add_argument(
        "--least",
        type=part("--least"),
        default=0.01,
        metavar="P",
        help="least difference that counts (default: 1%%)",
    )
    group.add_argument(
        "--pairs", type=count("--pairs"), default=6, metavar="N", help="pairs of a setting at most (default: 6)"
    )
    group.add_argument(
        "--burst",
        type=count("--burst"),
        default=3,
        metavar="N",
        help="loads in each fresh process of a confirming pair, where settings need their own (default: 3)",
    )
    group.add_argument(
        "--warm-loads", type=int, default=1, metavar="N", help="loads of a new process that do not count (default: 1)"
    )
    group.add_argument(
        "--baseline",
        action="append",
        default=[],
        metavar="KNOB=VALUE",
        help="what gains are against (default: plan off, else each knob's first value; repeatable)",
    )
    group.add_argument(
        "--knob",
        action="append",
        default=[],
        metavar="NAME=V1,V2",
        help="a further knob of the engine: on GPUs graphs, graph_buckets (as 1+2+4), high_priority_main (repeatable)",
    )
    group.add_argument(
        "--prior",
        default=AUTO,
        metavar="WHAT",
        help="what says where to begin: auto, none, or a GPU of the queue model with a preset, as mi355x:pro",
    )
    group.add_argument(
        "--allow-different-outputs", action="store_true", help="measure settings whose tokens differ, and say so"
    )
    _add_study(group)


def _add_study(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--study", metavar="URL", help="a database that several workers share (default: none)")
    group.add_argument("--study-name", metavar="NAME", help="its name there (default: made from what is searched)")
    group.add_argument(
        "--grace",
        type=seconds("--grace"),
        default=60.0,
        metavar="S",
        help="a worker that stands still for so long is taken for dead (default: 60)",
    )


def is_search(args: argparse.Namespace) -> bool:
    """Whether a search is asked for. Raises :class:`UsageError` for options of the other kind of session."""
    searching = args.search is not None or is_server(args)
    if is_server(args) and args.device != "cpu":
        raise UsageError(f"--device {args.device}: it is of the engine; with --server its command says where it runs")
    if not searching:
        given = [name for name in ("trials", "time", "study", "env", "knob") if getattr(args, name)]
        if given:
            raise UsageError(f"--{given[0]}: it needs --search grid, tpe or pareto")
        return False
    for name in SWEEP_ONLY:
        if getattr(args, name):
            raise UsageError(f"--{name.replace('_', '-')}: it is for the sweep, without --search")
    return True


def fraction(option: str) -> Callable[[str], float]:
    """An argparse type: a fraction between 0 and 1, or a percentage with its sign."""

    def parse(text: str) -> float:
        try:
            value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            value = -1.0
        if not 0 < value < 1:
            raise UsageError(f"{option}: got {text!r}, it takes a fraction such as 0.01, or 1%")
        return value

    return parse


def seconds(option: str) -> Callable[[str], float]:
    """An argparse type: seconds above 0."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 < value < float("inf"):
            raise UsageError(f"{option}: got {text!r}, it takes seconds above 0")
        return value

    return parse


def side_streams(text: str) -> tuple[int | None, ...]:
    """An argparse type: counts separated by commas; ``planned`` leaves the streams as the plan says."""
    words = [word.strip() for word in text.split(",")]
    if not all(word == PLANNED or (word.isascii() and word.isdigit() and len(word) < 4) for word in words):
        raise UsageError(f"--side-streams: got {text!r}, it takes counts separated by commas, or {PLANNED}")
    return tuple(None if word == PLANNED else int(word) for word in words)


def queue_policies(text: str) -> tuple[str, ...]:
    """An argparse type: queue policies separated by commas."""
    words = tuple(word.strip() for word in text.split(","))
    if not set(words) <= set(QUEUE_POLICIES):
        raise UsageError(f"--queue-policy: got {text!r}, it takes {' or '.join(QUEUE_POLICIES)}, or both with a comma")
    return words
