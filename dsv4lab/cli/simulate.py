"""``dsv4lab simulate``: a decode step, or any program, on a GPU that is not here."""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4lab.cli.base import Command
from dsv4lab.cli.leans_text import print_leans
from dsv4lab.cli.machine_args import (
    add_machine_arguments,
    amount,
    changes_of,
    machine_of,
    machines_of,
    plans_of,
    rules_of,
    single,
)
from dsv4lab.cli.model_args import integers, positive
from dsv4lab.cli.output import console, emit_json, table
from dsv4lab.config.presets import PRESETS, preset
from dsv4lab.errors import UsageError

if TYPE_CHECKING:
    from dsv4lab.predict.roofline import Scenario
    from dsv4lab.predict.sweep import SweepPoint
    from dsv4lab.queues.sensitivity import Lean
    from dsv4lab.queues.simulate import Simulated

SHOWN_LANES = 8


class SimulateCommand(Command):
    """One step or a sweep. Needs no GPU, no weights and no torch."""

    name = "simulate"
    help = "predict a decode step's overlap on a GPU that is not here (sweep: over plans, queues, concurrency)"
    examples = (
        (
            "dsv4lab simulate --device mi355x --runtime rocm-7.2 --preset pro --tp 8 --isl 8192 --concurrency 4 "
            "--speculative dspark --plan hip --hw-queues 4 --json"
        ),
        "dsv4lab simulate --device mi355x --runtime rocm-7.2 --program micro.json",
        "dsv4lab simulate sweep --preset pro --tp 8 --plan off,hip --hw-queues 2,4,8 --concurrency 1,4,16",
    )

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Machine, model and load, plan."""
        parser.add_argument("what", nargs="?", choices=("step", "sweep"), default="step", help="default: step")
        add_machine_arguments(parser, "mi355x")
        source = parser.add_mutually_exclusive_group()
        source.add_argument("--preset", help=f"model: {', '.join(PRESETS)} (default: pro)")
        source.add_argument("--program", type=Path, metavar="FILE", help="a program, see docs/queue-model.md")
        _add_load(parser)
        parser.add_argument("--plan", default="hip", metavar="PLANS", help="overlap plan or its file; sweep: a list")
        parser.add_argument("--eager", action="store_true", help="ops are launched one by one, not as a captured graph")
        parser.add_argument(
            "--skew-us", type=amount("--skew-us"), default=0.0, metavar="US", help="arrival of the slowest rank"
        )
        parser.add_argument("--no-sensitivity", action="store_true", help="leave out which assumed values matter")
        parser.add_argument(
            "--out", type=Path, metavar="FILE", help="write the timeline as a Kineto trace (.json or .json.gz)"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Print the result; the keys of ``--json`` are in the README."""
        if args.what == "sweep":
            return _sweep(args)
        if args.program is not None:
            return _program(args)
        return _step(args)


def _add_load(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tp", type=positive("--tp"), default=1, metavar="N", help="tensor-parallel ranks (default: 1)"
    )
    parser.add_argument(
        "--isl", type=positive("--isl"), default=8192, metavar="N", help="context tokens (default: 8192)"
    )
    parser.add_argument(
        "--osl", type=positive("--osl"), default=1024, metavar="N", help="sweep: new tokens (default: 1024)"
    )
    parser.add_argument(
        "--concurrency",
        type=integers("--concurrency"),
        default=(1,),
        metavar="N[,N]",
        help="requests in flight (default: 1)",
    )
    parser.add_argument("--speculative", default="none", choices=("none", "mtp", "dspark"), help="default: none")


def _scenario(args: argparse.Namespace, concurrency: int) -> Scenario:
    from dsv4lab.predict.roofline import Scenario

    return Scenario(preset(args.preset or "pro"), args.tp, args.isl, concurrency, args.speculative)


def _step(args: argparse.Namespace) -> int:
    from dsv4lab.overlap.plan import OFF
    from dsv4lab.predict.scenarios import Options, run_scenario, scenario_leans

    plans = plans_of(args.plan)
    if len(plans) != 1:
        raise UsageError("--plan: it takes one plan here; lists are for sweep")
    scenario = _scenario(args, single("--concurrency", args.concurrency))
    options = Options(eager=args.eager, skew_us=args.skew_us)
    on = machine_of(args)
    run = run_scenario(scenario, plans[0], on, options)
    base = run if plans[0] == OFF else run_scenario(scenario, OFF, on, options)
    leans = None if args.no_sensitivity or plans[0] == OFF else scenario_leans(scenario, plans[0], on, options)
    return _show(args, run, base, leans)


def _program(args: argparse.Namespace) -> int:
    from dsv4lab.queues.program_json import workload_from_json
    from dsv4lab.queues.simulate import simulate

    try:
        data = json.loads(args.program.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--program {args.program}: {error}") from None
    on = machine_of(args)
    run = simulate(workload_from_json(data, on), on, torch=data.get("process") == "torch")
    return _show(args, run, None, None)


def _show(args: argparse.Namespace, run: Simulated, base: Simulated | None, leans: list[Lean] | None) -> int:
    from dsv4lab.predict.report import leans_json, simulated_json
    from dsv4lab.trace.export import export_kineto

    timeline = run.timeline()
    if args.out is not None:
        export_kineto(timeline, args.out)
    found = {
        **simulated_json(run, timeline),
        "baseline_wall_ns": None if base is None else base.wall_ns,
        "gain": None if base is None or not base.wall_ns else 1.0 - run.wall_ns / base.wall_ns,
        "sensitivity": None if leans is None else leans_json(leans),
        "out": None if args.out is None else str(args.out),
    }
    if args.json:
        emit_json(found)
    else:
        _print(found)
    return 0


def _print(found: dict[str, Any]) -> None:
    out = console()
    out.print(
        f"[lab.title]{found['device']} {found['runtime']}[/], plan {found['plan']}, {found['hw_queues']} queues: "
        f"{found['wall_ns'] / 1e3:,.1f} us"
    )
    if found["gain"] is not None:
        word = "less" if found["gain"] >= 0 else "more"
        out.print(
            f"{abs(found['gain']):.1%} {word} than plan off, which takes {found['baseline_wall_ns'] / 1e3:,.1f} us"
        )
    out.print()
    rows = [
        [s["stream"], s["role"], f"{s['busy_ns'] / 1e3:,.1f}", f"{s['hidden_ns'] / 1e3:,.1f}"] for s in found["streams"]
    ]
    table(["stream", "role", "busy us", "hidden us"], rows, left=2)
    lanes = [[x["lane"], x["queue"], str(x["packets"])] for x in found["lanes"]]
    table(["lane", "queue", "packets"], lanes[:SHOWN_LANES], left=2)
    if len(lanes) > SHOWN_LANES:
        out.print(f"and {len(lanes) - SHOWN_LANES} more lanes, see --json\n")
    if found["sensitivity"] is not None:
        print_leans(found["sensitivity"])
    for line in found["notes"]:
        out.print("\n".join(textwrap.wrap(line, 80)))


def _sweep(args: argparse.Namespace) -> int:
    from dsv4lab.predict.scenarios import Options
    from dsv4lab.predict.serving import ACCEPTED, Serving
    from dsv4lab.predict.sweep import sweep
    from dsv4lab.queues.devices import device
    from dsv4lab.queues.runtimes import runtime
    from dsv4lab.queues.values import rows

    if args.program is not None:
        raise UsageError("--program: a sweep takes a --preset")
    names = (args.runtime or device(args.device).runtime).split(",")
    queues = args.hw_queues or (runtime(names[0]).default_queues,)
    points = sweep(
        _scenario(args, args.concurrency[0]),
        args.device,
        names,
        plans_of(args.plan),
        queues,
        args.concurrency,
        serving=Serving(args.osl, ACCEPTED[args.speculative]),
        changes=changes_of(args),
        rules=rules_of(args),
        options=Options(eager=args.eager, skew_us=args.skew_us),
    )
    levels = sorted({p.concurrency_level for p in points})
    best = [min((p for p in points if p.concurrency_level == level), key=lambda p: p.tpot_ms) for level in levels]
    found: dict[str, Any] = {
        "simulated": True,
        "rows": [p.to_json() for p in points],
        "best": [p.to_json() for p in best],
        "assumed": rows(machines_of(args)[0].values, ("assumed",)),
        "sensitivity": None if args.no_sensitivity else _sweep_leans(args, points, names[0]),
    }
    if args.json:
        emit_json(found)
        return 0
    columns = ["runtime", "plan", "queues", "level", "step us", "TPOT ms", "vs off"]
    cells = [
        [
            p.runtime,
            p.plan,
            str(p.hw_queues),
            str(p.concurrency_level),
            f"{p.step_us:,.0f}",
            f"{p.tpot_ms:.2f}",
            f"{p.delta_vs_off:+.1%}",
        ]
        for p in points
    ]
    table(columns, cells, left=2)
    if found["sensitivity"] is not None:
        print_leans(found["sensitivity"])
    console().print("simulated, not measured")
    return 0


def _sweep_leans(args: argparse.Namespace, points: list[SweepPoint], runtime: str) -> list[dict[str, Any]] | None:
    """Of the best plan that moves anything, at the first level on the first runtime."""
    from dsv4lab.predict.report import leans_json
    from dsv4lab.predict.scenarios import Options, scenario_leans
    from dsv4lab.queues.costs import machine

    level = args.concurrency[0]
    tried = [p for p in points if (p.concurrency_level, p.runtime) == (level, runtime) and p.plan != "off"]
    if not tried:
        return None
    best = min(tried, key=lambda p: p.tpot_ms)
    plan = next(p for p in plans_of(args.plan) if p.name == best.plan)
    on = machine(args.device, runtime, best.hw_queues, changes_of(args), **rules_of(args))
    options = Options(eager=args.eager, skew_us=args.skew_us)
    return leans_json(scenario_leans(_scenario(args, level), plan, on, options))
