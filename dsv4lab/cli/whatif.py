"""``dsv4lab whatif``: a baseline trace with some of its ops on side streams."""

from __future__ import annotations

import argparse
from typing import Any

from dsv4lab.cli.base import Command
from dsv4lab.cli.machine_args import add_machine_arguments, changes_of, plans_of, rules_of
from dsv4lab.cli.output import console, emit_json, table
from dsv4lab.cli.trace_load import add_load_options, exit_code, load, show_warnings
from dsv4lab.errors import UsageError


class WhatifCommand(Command):
    """Predict plans from a trace of the baseline alone."""

    name = "whatif"
    help = "predict what an overlap plan would do to a baseline trace"
    examples = (
        "dsv4lab whatif baseline.pt.trace.json.gz --plan hip --hw-queues 4,8",
        "dsv4lab whatif decode.csv --device mi300x --move 'rotary*=side0' --join 'paged_att*' --json",
    )

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Trace, plan, machine."""
        add_load_options(parser)
        parser.add_argument("--plan", default="hip", metavar="PLANS", help="plans, separated by commas (default: hip)")
        parser.add_argument(
            "--move",
            action="append",
            default=[],
            metavar="PATTERN=STREAM",
            help="move these kernels too; may be repeated",
        )
        parser.add_argument("--join", action="append", default=[], metavar="PATTERN", help="what reads their results")
        parser.add_argument("--rank", type=int, metavar="N", help="rank of a trace of several (default: the first)")
        parser.add_argument(
            "--tokens", type=int, default=1, metavar="N", help="tokens of a forward, for rules with a range"
        )
        parser.add_argument("--eager", action="store_true", help="ops are launched one by one, not as a captured graph")
        add_machine_arguments(parser, "mi355x")

    def run(self, args: argparse.Namespace) -> int:
        """Print the predictions; the keys of ``--json`` are in the README."""
        from dsv4lab.predict.whatif import baseline_of

        trace = load(args.file, args)
        base = baseline_of(trace, args.rank)
        rows = _predictions(args, base)
        recognised = sorted({op for op in base.ops if op})
        warnings = [*trace.warnings, *base.warnings]
        if not any(row["moved_ops"] for row in rows):
            warnings.append("no kernel of this trace is moved by the plan: name some with --move PATTERN=STREAM")
        found = {
            "simulated": True,
            "baseline_wall_ns": round(base.wall_us * 1e3),
            "kernels": len(base.workload),
            "gap_us": base.gap_us,
            "recognised": recognised,
            "rows": rows,
            "sensitivity": _leans(args, base),
            "warnings": warnings,
        }
        if args.json:
            emit_json(found)
        else:
            _print(found)
            show_warnings(warnings)
        return exit_code(trace, args.file)


def _predictions(args: argparse.Namespace, base: Any) -> list[dict[str, Any]]:
    from dsv4lab.predict.whatif import ask
    from dsv4lab.queues.costs import machine
    from dsv4lab.queues.devices import device

    moves = dict(_move(text) for text in args.move)
    runtimes = (args.runtime or device(args.device).runtime).split(",")
    rows = []
    for name in runtimes:
        for queues in args.hw_queues or (None,):
            on = machine(args.device, name, queues, changes_of(args), **rules_of(args))
            for plan in plans_of(args.plan):
                answer = ask(base, plan, on, tokens=args.tokens, move=moves, join=args.join, graphs=not args.eager)
                busy = answer.run.timeline().stream_busy()
                rows.append(
                    {
                        "plan": plan.name,
                        "runtime": name,
                        "hw_queues": on.hw_queues,
                        "moved_ops": answer.moved_ops,
                        "predicted_wall_ns": round(answer.predicted_us * 1e3),
                        "gain": answer.gain,
                        "residual": answer.residual,
                        "concurrency": busy.concurrency,
                        "hidden_ns": busy.hidden_ns,
                    }
                )
    return rows


def _leans(args: argparse.Namespace, base: Any) -> list[dict[str, Any]]:
    """For the first runtime and queue count, and the first plan that is not ``off``."""
    from dsv4lab.overlap.plan import OFF
    from dsv4lab.predict.report import leans_json
    from dsv4lab.predict.whatif import leans
    from dsv4lab.queues.costs import machine
    from dsv4lab.queues.devices import device

    plan = next((p for p in plans_of(args.plan) if p != OFF), None)
    if plan is None:
        return []
    name = (args.runtime or device(args.device).runtime).split(",")[0]
    first = args.hw_queues[0] if args.hw_queues else None
    on = machine(args.device, name, first, changes_of(args), **rules_of(args))
    moves = dict(_move(text) for text in args.move)
    return leans_json(leans(base, plan, on, tokens=args.tokens, move=moves, join=args.join, graphs=not args.eager))


def _move(text: str) -> tuple[str, str]:
    pattern, equals, stream = text.rpartition("=")
    if not equals or not pattern or not stream.startswith("side") or not stream.removeprefix("side").isdigit():
        raise UsageError(f"--move: got {text!r}, it takes PATTERN=STREAM with a stream side0, side1, ...")
    return pattern, stream


def _print(found: dict[str, Any]) -> None:
    console().print(
        f"[lab.title]{found['kernels']} kernels[/] in {found['baseline_wall_ns'] / 1e3:,.1f} us; recognised: "
        f"{', '.join(found['recognised']) or 'none'}\n"
    )
    columns = ["plan", "runtime", "queues", "moved", "predicted us", "saved", "residual"]
    cells = [
        [
            row["plan"],
            row["runtime"],
            str(row["hw_queues"]),
            str(row["moved_ops"]),
            f"{row['predicted_wall_ns'] / 1e3:,.1f}",
            f"{row['gain']:+.1%}",
            f"{row['residual']:+.1%}",
        ]
        for row in found["rows"]
    ]
    table(columns, cells, left=2)
    console().print("simulated, not measured; residual: simulated baseline against the measured one")
