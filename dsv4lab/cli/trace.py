"""``dsv4lab trace``: what is in a trace, where the time went, and what changed between two."""

from __future__ import annotations

import argparse
from pathlib import Path

from dsv4lab.cli.base import Command, add_common_options
from dsv4lab.cli.trace_load import add_load_options

ACTIONS = {
    "summary": ("summary", "busy time by stream, queue and rank"),
    "steps": ("steps", "busy time by step"),
    "ops": ("ops", "work by kernel, operator, layer, category, stream or queue"),
    "idle": ("idle", "idle time by cause"),
    "compare": ("compare_traces", "A against B: a waterfall that adds up, what moved, what got slower"),
    "critical-path": ("critical", "the chain of rows and gaps that makes up the wall"),
    "convert": ("convert", "write as Kineto JSON, Perfetto, Parquet, CSV or a HTML page"),
    "validate": ("validate", "what is odd, repaired or lost; exit code 1 if anything is damaged"),
    "tensorboard": ("tensorboard", "open in TensorBoard's PyTorch plugin"),
}
"""Action to its function in :mod:`dsv4lab.cli.trace_actions` and its help."""
_BY = ("name", "op", "layer", "category", "stream", "queue")
_FORMATS = ("kineto", "pftrace", "parquet", "csv", "html")


class TraceCommand(Command):
    """Subcommands of ``dsv4lab trace``."""

    name = "trace"
    help = "load traces and tell where the time went"
    examples = (
        "dsv4lab trace summary traces/run/dsv4lab.1700000000000000000.pt.trace.json.gz",
        "dsv4lab trace summary profile/ --main 7 --json",
        "dsv4lab trace ops decode.pt.trace.json.gz --by category",
        "dsv4lab trace compare off.pt.trace.json.gz hip.pt.trace.json.gz",
        "dsv4lab trace convert results.json.gz --to kineto --out results.pt.trace.json.gz",
    )

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Add the actions."""
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        for action, (_, text) in ACTIONS.items():
            one = actions.add_parser(action, help=text, description=text, allow_abbrev=False)
            add_common_options(one, nested=True)
            add_load_options(one)
            _add_options(action, one)

    def run(self, args: argparse.Namespace) -> int:
        """Carry out the action; 2 if a file was truncated."""
        from dsv4lab.cli import trace_actions

        function, _ = ACTIONS[args.action]
        code = getattr(trace_actions, function)(args)
        assert isinstance(code, int)
        return code


def _add_options(action: str, parser: argparse.ArgumentParser) -> None:
    if action in ("summary", "steps", "compare"):
        parser.add_argument("--main", metavar="STREAM", help="the main stream (default: the busiest)")
    if action == "summary":
        parser.add_argument(
            "--expect", metavar="STREAMS", default="", help="side streams of the plan, for the fork verdict"
        )
        parser.add_argument(
            "--clip-overlong", action="store_true", help="end rows that run far past their successors where those start"
        )
    if action == "ops":
        parser.add_argument("--by", choices=_BY, default="name", help="what to group by (default: name)")
        parser.add_argument(
            "--costs", type=Path, metavar="FILE", help="flops and bytes of a row by name (JSON): a roofline"
        )
        parser.add_argument("--peak-flops", type=float, metavar="N", help="the device's operations per second")
        parser.add_argument("--peak-bytes", type=float, metavar="N", help="the device's bytes per second")
    if action in ("steps", "ops", "idle", "compare", "critical-path"):
        parser.add_argument("--top", type=int, default=20, metavar="N", help="rows to show (default: 20)")
    if action == "critical-path":
        parser.add_argument("--rank", type=int, help="the rank to follow (default: the one that ends last)")
    if action == "convert":
        parser.add_argument("--to", choices=_FORMATS, help="format (default: by the name of --out)")
        parser.add_argument("--out", type=Path, required=True, metavar="PATH", help="the file to write")
    if action == "tensorboard":
        parser.add_argument("--logdir", type=Path, required=True, metavar="DIR", help="folder for the run")
        parser.add_argument("--port", type=int, default=6006, help="port of TensorBoard (default: 6006)")
        parser.add_argument("--write-only", action="store_true", help="write the run, do not start TensorBoard")
