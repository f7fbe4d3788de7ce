"""``dsv4lab calibrate``: values of a device from a probe's file, or from a trace pair."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4lab.cli.base import Command
from dsv4lab.cli.machine_args import single
from dsv4lab.cli.model_args import integers, plan_setting
from dsv4lab.cli.output import console, emit_json, table
from dsv4lab.cli.safe import clean, clip
from dsv4lab.errors import UsageError
from dsv4lab.queues.devices import DEVICES
from dsv4lab.queues.runtimes import RUNTIMES

if TYPE_CHECKING:
    from dsv4lab.predict.calibrate import Fit


class CalibrateCommand(Command):
    """Fit packet and kernel costs. Rows that the probe marks as held out are predicted, never fitted."""

    name = "calibrate"
    help = "fit a device's costs to a probe's file or to a trace pair, for simulate and whatif --costs"
    examples = (
        "dsv4lab calibrate probe.json -o costs.json",
        "dsv4lab calibrate probe.json --device h200 --fit gap_us,signal_device_us -o costs.json --json",
        "dsv4lab calibrate off.json.gz hip.json.gz --device mi355x --plan hip -o costs.json",
    )

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Files, machine, what to fit."""
        parser.add_argument(
            "file", nargs="+", metavar="FILE", help="a probe's file; or two traces: plan off, the same under --plan"
        )
        parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="write the costs here")
        parser.add_argument("--device", choices=tuple(DEVICES), help="default: the probe's, or mi355x")
        parser.add_argument("--fit", metavar="NAMES", help="values to fit, separated by commas (default: all costs)")
        parser.add_argument("--plan", default="hip", metavar="PLAN", help="plan of the second trace (default: hip)")
        parser.add_argument("--runtime", metavar="NAME", help=f"of a trace pair: {', '.join(RUNTIMES)}")
        parser.add_argument("--hw-queues", type=integers("--hw-queues"), metavar="N", help="of a trace pair")
        parser.add_argument("--no-cache", action="store_true", help="read and write no cache of traces")
        parser.add_argument("--no-align", action="store_true", help="keep the clocks of ranks as they are")

    def run(self, args: argparse.Namespace) -> int:
        """Print what was fitted; the keys of ``--json`` are in the README."""
        from dsv4lab.predict.costs_file import costs_json

        if len(args.file) > 2:
            raise UsageError(f"calibrate takes a probe's file or two traces, got {len(args.file)} files")
        device, found = _probe(args) if len(args.file) == 1 else _pair(args)
        document = costs_json(found, device, " and ".join(Path(name).name for name in args.file))
        if args.out is not None:
            args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        document["out"] = None if args.out is None else str(args.out)
        if args.json:
            emit_json(document)
        else:
            _print(document)
        return 0


def _probe(args: argparse.Namespace) -> tuple[str, Fit]:
    from dsv4lab.predict.calibrate import FITTED, fit, load_probe

    path = Path(args.file[0]).expanduser()
    probe = load_probe(path)
    device = args.device or probe.device
    if device is None:
        raise UsageError(f"{path}: it names no device; --device takes one of {', '.join(DEVICES)}")
    if probe.device not in (None, device):
        raise UsageError(f"{path}: its rows are of device {probe.device!r}, not of {device}")
    names = tuple(args.fit.split(",")) if args.fit else FITTED
    return device, fit(probe.rows, device, names)


def _pair(args: argparse.Namespace) -> tuple[str, Fit]:
    from dsv4lab.cli.trace_load import load
    from dsv4lab.overlap.plan import resolve_plan
    from dsv4lab.predict.trace_pair import fit_pair
    from dsv4lab.queues.costs import machine

    if args.fit:
        raise UsageError("--fit: a trace pair tells signal latency and co-run loss only; it is for a probe's file")
    queues = None if args.hw_queues is None else single("--hw-queues", args.hw_queues)
    device = args.device or "mi355x"
    on = machine(device, args.runtime, queues)
    setting = plan_setting(args.plan)
    if setting is None:
        raise UsageError("--plan: it takes the plan of the second trace")
    baseline, overlapped = (load(name, args) for name in args.file)
    return device, fit_pair(baseline, overlapped, resolve_plan(setting), on)


def _print(found: dict[str, Any]) -> None:
    out = console()
    out.print(f"[lab.title]{found['device']}[/], fitted to {clip(clean(found['source']), 60)}\n")
    fitted = [[n, f"{v['before']:.4g}", f"{v['value']:.4g}", v["unit"]] for n, v in found["values"].items()]
    table(["fitted", "before", "now", "unit"], fitted)
    rows = [
        [
            clip(clean(r["name"]), 34),
            f"{r['measured_us']:,.1f}",
            f"{r['predicted_us']:,.1f}",
            f"{r['error']:+.1%}",
            "held out" if r["held_out"] else "",
        ]
        for r in found["residuals"]
    ]
    table(["row", "measured us", "predicted us", "error", ""], rows)
    for name in found["unidentified"]:
        out.print(f"no row depends on {name}: it stays as it is")
    for a, b in found["confounded"]:
        out.print(f"{a} and {b} have the same effect: the rows tell both together")
    if found["out"] is not None:
        out.print(f"written to {clean(found['out'])}")
