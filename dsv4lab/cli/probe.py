"""``dsv4lab probe``: what streams, events, graphs and queues of this machine cost."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsv4lab.cli.base import Command
from dsv4lab.cli.model_args import positive
from dsv4lab.cli.output import emit_json, note, say, text_table
from dsv4lab.cli.safe import clean
from dsv4lab.config.resolve import DeviceKind

_EXPLAINED = {
    "queues": "streams that run at once",
    "period_us": "kernel to kernel in a graph, us",
    "eager_period_us": "kernel to kernel launched one by one, us",
    "fork_join_us": "a pair on two streams beyond its longer kernel, us",
    "graph_us": "fixed cost of a replay, us",
    "waiter_us": "each launch beside a blocked stream, us more",
    "handoff_us": "signal to the thread that waits for it, us",
    "slowdown": "reading memory beside another: times as long",
    "compute_slowdown": "computing in cache beside another: times as long",
}


class ProbeCommand(Command):
    """Measure this machine's runtime. The file is what ``calibrate`` takes."""

    name = "probe"
    help = "measure this machine: streams at once, shared queues, costs of launches, joins and graphs"
    examples = (
        "dsv4lab probe -o probe.json",
        "dsv4lab probe --device cpu --json",
        "dsv4lab probe --device cuda --rounds 15 -o probe.json",
    )

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Device, file, rounds."""
        parser.add_argument(
            "--device", choices=("auto", *(k.value for k in DeviceKind)), default="auto", help="default: a GPU if any"
        )
        parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="write the probe's file here")
        parser.add_argument("--rounds", type=positive("--rounds"), default=7, metavar="N", help="default: 7")

    def run(self, args: argparse.Namespace) -> int:
        """Print what was found; ``--json`` is the probe's file with ``out`` and ``warnings`` beside it."""
        from dsv4lab.engine.devices import choose_device
        from dsv4lab.tuning import machine_probe

        device = choose_device(args.device).device
        document, warnings = machine_probe.probe_machine(device, args.rounds)
        if args.out is not None:
            args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        if args.json:
            emit_json({**document, "warnings": warnings, "out": None if args.out is None else str(args.out)})
        else:
            print_probe(document, args.out)
        for warning in warnings:
            note(warning)
        return 0


def print_probe(document: Mapping[str, Any], out: Path | None = None) -> None:
    """What was found, as a table; the document may be a stranger's."""
    machine, found = document["machine"], document["found"]
    say(clean(str(machine.get("gpu") or machine.get("cpu", "unnamed"))) + "\n", style="lab.title")
    rows = [[text, _number(found[name])] for name, text in _EXPLAINED.items() if name in found]
    host = found.get("host_us")
    if isinstance(host, Mapping):
        rows += [[f"host: {str(name).replace('_', ' ')}, us", _number(us)] for name, us in host.items()]
    if rows and found.get("at_least"):
        rows[0][1] += " or more"
    text_table(["what", "measured"], [[clean(cell) for cell in row] for row in rows])
    groups = found.get("shared_queues")
    for group in groups if isinstance(groups, list) else ():
        if isinstance(group, list):
            say(clean(f"side streams {', '.join(map(str, group))} share a hardware queue"))
    if out is not None:
        say(f"written to {clean(str(out))}: dsv4lab calibrate takes it")


def _number(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
