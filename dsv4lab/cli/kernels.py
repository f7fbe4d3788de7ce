"""``dsv4lab kernels``: what the compiler makes of our kernels for a target that need not be here."""

from __future__ import annotations

import argparse
from typing import Any

from rich.markup import escape

from dsv4lab.cli.base import Command
from dsv4lab.cli.output import console, emit_json, progress, table
from dsv4lab.units import bytes_text

ROWS = ("name", "config", "target", "registers", "lds_bytes", "spills", "occupancy", "bound")


class KernelsCommand(Command):
    """Compile every config that a target's launch tables can choose."""

    name = "kernels"
    help = "compile every kernel for a GPU that need not be here: registers, LDS, spills, occupancy"
    examples = (
        "dsv4lab kernels --target gfx950",
        "dsv4lab kernels --target sm_90 --kernels rms_norm,moe_route --json",
    )

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Arguments: the target, and which kernels."""
        parser.add_argument("--target", required=True, metavar="ARCH", help="gfx942, gfx950, sm_90 or sm_100")
        parser.add_argument("--kernels", default="", metavar="A,B", help="names of kernels (default: all)")

    def run(self, args: argparse.Namespace) -> int:
        """Compile and print; 1 if a kernel does not compile, spills, or takes more LDS than there is."""
        from dsv4lab.backends.kernel_report import compile_kernels

        names = [name for name in args.kernels.split(",") if name]
        with progress(None, f"compiling for {args.target}") as advance:
            found = []
            for report in compile_kernels(args.target, names):
                found.append(report)
                advance(1, f"compiling for {args.target}: {report.fields['name']}")
        bad = [report for report in found if report.trouble]
        if args.json:
            emit_json({"kernels": [report.fields for report in found]})
        else:
            table(
                ["kernel", "config", "registers", "LDS", "spills", "occupancy", "limit", "bound"],
                [_row(report.fields) for report in found],
                left=2,
            )
            for report in bad:
                text = f"{report.fields['name']} ({report.fields['config']}): {report.trouble}"
                console().print(f"[lab.bad]bad:[/] {escape(text)}")
            console().print(f"{len(found)} configs for {args.target}, {len(bad)} bad")
        return 1 if bad else 0


def _row(fields: dict[str, Any]) -> list[str]:
    return [
        fields["name"],
        escape(fields["config"]),
        str(fields["registers"]),
        bytes_text(fields["lds_bytes"]),
        f"[lab.bad]{fields['spills']}[/]" if fields["spills"] else "0",
        f"{fields['occupancy']:.0%}",
        fields["limited_by"],
        fields["bound"],
    ]
