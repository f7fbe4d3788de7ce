"""``dsv4lab selfcheck``: every kernel of every backend that this device has, against the references."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from dsv4lab.cli.base import Command
from dsv4lab.cli.output import console, emit_json, progress, table

if TYPE_CHECKING:
    from dsv4lab.backends.selfcheck import CheckRow


class SelfcheckCommand(Command):
    """One verdict per backend and kernel."""

    name = "selfcheck"
    help = "run every kernel of every backend that this device has against the references"
    examples = (
        "dsv4lab selfcheck",
        "dsv4lab selfcheck --device cpu --kernels rms_norm,swiglu --json",
    )

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Arguments: device, kernels, seed."""
        parser.add_argument(
            "--device", choices=("auto", "cpu", "cuda"), default="auto",
            help="auto: the GPU if torch sees one (AMD's are called cuda too), else the CPU",
        )  # fmt: skip
        parser.add_argument("--kernels", default="", metavar="A,B", help="names of kernels (default: all)")
        parser.add_argument("--seed", type=int, default=0, help="seed of the random inputs (default: 0)")

    def run(self, args: argparse.Namespace) -> int:
        """Check and print; 1 if any verdict is bad."""
        import torch

        from dsv4lab.backends.selfcheck import selfcheck

        gpu = torch.cuda.is_available()
        device = ("cuda" if gpu else "cpu") if args.device == "auto" else args.device
        names = [name for name in args.kernels.split(",") if name]
        rows = []
        with progress(None, "checking") as advance:
            for row in selfcheck(device, names, args.seed):
                rows.append(row)
                advance(1, f"checking {row.backend} {row.kernel}")
        passes = all(row.passes for row in rows)
        where = torch.cuda.get_device_name() if device == "cuda" else "cpu"
        if args.json:
            emit_json({"device": where, "passes": passes, "checks": [row.to_json() for row in rows]})
        else:
            _show(where, rows)
        return 0 if passes else 1


def _show(where: str, rows: Sequence[CheckRow]) -> None:
    groups: dict[tuple[str, str], list[CheckRow]] = {}
    for row in rows:
        groups.setdefault((row.kernel, row.backend), []).append(row)
    lines = []
    for (kernel, backend), cases in groups.items():
        failed = [case for case in cases if not case.passes]
        verdict = "[lab.bad]FAIL[/]" if failed else "[lab.good]ok[/]"
        note = "; ".join(f"{case.case}: {case.text}" for case in failed[:3])
        lines.append([kernel, backend, verdict, f"{len(cases) - len(failed)}/{len(cases)}", escape(note)])
    table(["kernel", "backend", "verdict", "cases", "what is wrong"], lines, left=3)
    bad = sum(not row.passes for row in rows)
    console().print(f"{where}: {len(groups)} kernels, {len(rows)} cases, {bad} bad")
