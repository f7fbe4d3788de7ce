"""``dsv4lab whatif``: a baseline trace with some of its ops on side streams."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4lab.cli.base import Command
from dsv4lab.cli.leans_text import print_leans
from dsv4lab.cli.machine_args import add_machine_arguments, machines_of, plans_of
from dsv4lab.cli.output import console, emit_json, table
from dsv4lab.cli.trace_load import add_load_options, exit_code, load, show_warnings
from dsv4lab.errors import UsageError

if TYPE_CHECKING:
    from dsv4lab.predict.whatif import Answer, Baseline

UNJOINED = (
    "--move without --join: what reads the moved kernels is known for a compressor's only; others are joined in front "
    "of their stream's next fork, so the gain may be too high"
)


class WhatifCommand(Command):
    """Predict plans from a trace of the baseline alone."""

    name = "whatif"
    help = "predict what an overlap plan would do to a baseline trace"
    examples = (
        "dsv4lab whatif baseline.pt.trace.json.gz --plan hip --hw-queues 4,8",
        "dsv4lab whatif overlap --bench --device h200 --json",
        "dsv4lab whatif decode.csv --device mi300x --move 'rotary*=side0' --join 'paged_att*' --json",
    )

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Trace, plan, machine."""
        add_load_options(parser)
        parser.add_argument(
            "--bench",
            action="store_true",
            help="FILE is a folder of `bench overlap` on a CUDA GPU: predict what it timed from its serial traces",
        )
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
        parser.add_argument(
            "--out", type=Path, metavar="FILE", help="write the predicted timeline as a Kineto trace (one prediction)"
        )
        add_machine_arguments(parser, "mi355x")

    def run(self, args: argparse.Namespace) -> int:
        """Print the predictions; the keys of ``--json`` are in the README."""
        from dsv4lab.predict.whatif import baseline_of

        if args.bench:
            from dsv4lab.cli.whatif_bench import run_bench

            return run_bench(args)
        trace = load(args.file, args)
        base = baseline_of(trace, args.rank)
        answers = _answers(args, base)
        if args.out is not None:
            _write(args, answers)
        warnings = [*trace.warnings, *base.warnings]
        if not any(answer.moved_ops for answer in answers):
            warnings.append("no kernel of this trace is moved by the plan: name some with --move PATTERN=STREAM")
        elif args.move and not args.join:
            warnings.append(UNJOINED)
        found = {
            "simulated": True,
            "baseline_wall_ns": round(base.wall_us * 1e3),
            "kernels": len(base.workload),
            "gap_us": base.gap_us,
            "recognised": sorted({op for op in base.ops if op}),
            "recognised_share": sum(1 for op in base.ops if op) / len(base.ops),
            "rows": [_row(answer) for answer in answers],
            "sensitivity": _leans(args, base) if any(answer.moved_ops for answer in answers) else None,
            "notes": sorted({note for answer in answers for note in answer.run.layout.notes if answer.moved_ops}),
            "out": None if args.out is None else str(args.out),
            "warnings": warnings,
        }
        if args.json:
            emit_json(found)
        else:
            _print(found)
            show_warnings(warnings)
        return exit_code(trace, args.file)


def _answers(args: argparse.Namespace, base: Baseline) -> list[Answer]:
    """Every machine with every plan."""
    from dsv4lab.predict.whatif import ask

    moves = dict(_move(text) for text in args.move)
    return [
        ask(base, plan, on, tokens=args.tokens, move=moves, join=args.join, graphs=not args.eager)
        for on in machines_of(args)
        for plan in plans_of(args.plan)
    ]


def _row(answer: Answer) -> dict[str, Any]:
    busy = answer.run.timeline().stream_busy()
    return {
        "plan": answer.plan,
        "runtime": answer.run.machine.runtime.name,
        "hw_queues": answer.hw_queues,
        "moved_ops": answer.moved_ops,
        "predicted_wall_ns": round(answer.predicted_us * 1e3),
        "gain": answer.gain,
        "residual": answer.residual,
        "concurrency": busy.concurrency,
        "hidden_ns": busy.hidden_ns,
    }


def _leans(args: argparse.Namespace, base: Baseline) -> list[dict[str, Any]] | None:
    """For the first machine, and the first plan that moves anything."""
    from dsv4lab.predict.report import leans_json
    from dsv4lab.predict.whatif import leans

    moves = dict(_move(text) for text in args.move)
    plan = next((p for p in plans_of(args.plan) if p.rules or moves), None)
    if plan is None:
        return None
    on = machines_of(args)[0]
    return leans_json(leans(base, plan, on, tokens=args.tokens, move=moves, join=args.join, graphs=not args.eager))


def _move(text: str) -> tuple[str, str]:
    pattern, equals, stream = text.rpartition("=")
    if not equals or not pattern or not stream.startswith("side") or not stream.removeprefix("side").isdigit():
        raise UsageError(f"--move: got {text!r}, it takes PATTERN=STREAM with a stream side0, side1, ...")
    return pattern, stream


def _write(args: argparse.Namespace, answers: list[Answer]) -> None:
    from dsv4lab.trace.export import export_kineto

    if len(answers) != 1:
        raise UsageError(f"--out: it takes one prediction, these are {len(answers)}: name one plan, runtime and count")
    export_kineto(answers[0].run.timeline(), args.out)


def _print(found: dict[str, Any]) -> None:
    from dsv4lab.predict.whatif import LEAN_KERNELS

    out = console()
    out.print(
        f"[lab.title]{found['kernels']:,} kernels[/] in {found['baseline_wall_ns'] / 1e3:,.1f} us; "
        f"{found['recognised_share']:.0%} recognised:"
    )
    out.print("\n".join(textwrap.wrap(", ".join(found["recognised"]) or "none", 80)) + "\n")
    columns = ["plan", "runtime", "queues", "moved", "predicted us", "saved us", "saved"]
    cells = [
        [
            row["plan"],
            row["runtime"],
            str(row["hw_queues"]),
            str(row["moved_ops"]),
            f"{row['predicted_wall_ns'] / 1e3:,.1f}",
            f"{(found['baseline_wall_ns'] - row['predicted_wall_ns']) / 1e3:,.1f}",
            f"{round(row['gain'], 3) + 0.0:+.1%}",
        ]
        for row in found["rows"]
    ]
    table(columns, cells, left=2)
    if found["sensitivity"] is not None:
        print_leans(found["sensitivity"])
        if found["kernels"] > LEAN_KERNELS:
            out.print(f"(asked of the first {LEAN_KERNELS:,} kernels)\n")
    worst = max((row["residual"] for row in found["rows"]), key=abs)
    notes = [*found["notes"], f"simulated, not measured; the baseline's own simulation is off by {worst:+.1%}"]
    for text in notes:
        out.print("\n".join(textwrap.wrap(text, 80)))
