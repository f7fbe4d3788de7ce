"""Arguments that name a machine and its plans, shared by ``simulate``, ``whatif`` and ``calibrate``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4lab.cli.model_args import integers, plan_setting
from dsv4lab.errors import UsageError
from dsv4lab.queues.devices import DEVICES
from dsv4lab.queues.policies import ALL_POLICIES
from dsv4lab.queues.runtimes import RUNTIMES

if TYPE_CHECKING:
    from dsv4lab.overlap.plan import OverlapPlan
    from dsv4lab.queues.costs import Machine


def add_machine_arguments(parser: argparse.ArgumentParser, device: str) -> None:
    """``--device``, ``--runtime``, ``--hw-queues``, and what replaces their rules and values."""
    parser.add_argument("--device", default=device, choices=tuple(DEVICES), help=f"default: {device}")
    parser.add_argument("--runtime", metavar="NAMES", help=f"{', '.join(RUNTIMES)} (default: the device's newest)")
    parser.add_argument(
        "--hw-queues", type=integers("--hw-queues"), metavar="N[,N]", help="hardware queues (default: the runtime's)"
    )
    parser.add_argument("--queue-policy", choices=ALL_POLICIES, help="how streams get queues (default: the runtime's)")
    parser.add_argument(
        "--barrier-elision", action="store_true", help="streams that share a ring do not wait for each other"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="replace a value of the device; may be repeated",
    )
    parser.add_argument("--costs", type=Path, metavar="FILE", help="values that `dsv4lab calibrate` wrote")
    parser.add_argument(
        "--graph-streams",
        choices=("shared", "apart"),
        help="whether a graph's streams sit on its launch stream's queue (default: what was seen of the runtime)",
    )


def amount(option: str) -> Any:
    """An argparse type: a number of at least 0."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf"):
            raise UsageError(f"{option}: got {text!r}, it takes a number of 0 or more")
        return value

    return parse


def changes_of(args: argparse.Namespace) -> dict[str, float]:
    """What ``--set`` says."""
    out = {}
    for text in args.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set: got {text!r}, it takes NAME=VALUE")
        out[name] = amount(f"--set {name}")(value)
    return out


def machine_of(args: argparse.Namespace) -> Machine:
    """The machine that the arguments name; one queue count."""
    from dsv4lab.queues.costs import machine

    queues = None if args.hw_queues is None else single("--hw-queues", args.hw_queues)
    return machine(args.device, args.runtime, queues, changes_of(args), **rules_of(args))


def machines_of(args: argparse.Namespace) -> list[Machine]:
    """Every runtime of ``--runtime`` with every count of ``--hw-queues``."""
    from dsv4lab.queues.costs import machine
    from dsv4lab.queues.devices import device

    runtimes = (args.runtime or device(args.device).runtime).split(",")
    counts = args.hw_queues or (None,)
    return [machine(args.device, name, n, changes_of(args), **rules_of(args)) for name in runtimes for n in counts]


def rules_of(args: argparse.Namespace) -> dict[str, Any]:
    """What ``--queue-policy``, ``--barrier-elision``, ``--graph-streams`` and ``--costs`` change."""
    shared = None if args.graph_streams is None else args.graph_streams == "shared"
    found: dict[str, Any] = {
        "policy": args.queue_policy,
        "barrier_elision": args.barrier_elision or None,
        "graph_shared": shared,
    }
    if args.costs is not None:
        from dsv4lab.predict.costs_file import read_costs

        found["costs"] = read_costs(args.costs, args.device)
    return found


def single(option: str, values: tuple[int, ...]) -> int:
    """The only value."""
    if len(values) != 1:
        raise UsageError(f"{option}: it takes one value here; lists are for sweep and whatif")
    return values[0]


def plans_of(text: str) -> list[OverlapPlan]:
    """Plans by name or file, separated by commas."""
    from dsv4lab.overlap.plan import resolve_plan

    settings = [plan_setting(word.strip()) for word in text.split(",")]
    return [resolve_plan(setting) for setting in settings if setting is not None]
