"""``dsv4lab eval``: accuracy of two arms on the same questions."""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from dsv4lab.cli import eval_args
from dsv4lab.cli.base import Command, add_common_options
from dsv4lab.cli.model_args import missing
from dsv4lab.cli.output import console, emit_json, note, progress, say, text_table
from dsv4lab.cli.safe import clip
from dsv4lab.cli.serve import require_aiohttp
from dsv4lab.errors import LabError
from dsv4lab.units import seconds_text

if TYPE_CHECKING:
    from dsv4lab.evaluate.result import AccuracyResult

WORSE = 1
_ERROR_WIDTH = 200
_LABEL = 34


class EvalCommand(Command):
    """Compare accuracies."""

    name = "eval"
    help = "accuracy of two arms on your questions, paired: exact tokens first, then McNemar, and whether n was enough"
    examples = (
        "dsv4lab eval ab gsm8k.jsonl --url-a http://127.0.0.1:8000 --url-b http://127.0.0.1:8001 --shots 8",
        "dsv4lab eval ab gsm8k.jsonl --chat --preset demo --flags-b='--plan hip --kv-cache-dtype fp8' --json",
        "dsv4lab eval ab gsm8k.jsonl --server 'srv --port {port} {flags}' --env-b SGLANG_USE_AITER=1 --out traces/ab",
    )

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """The action ``ab``, and its arguments."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        pair = actions.add_parser("ab", help="two arms, the same questions", allow_abbrev=False)
        add_common_options(pair, nested=True)
        eval_args.add_question_arguments(pair)
        eval_args.add_arm_arguments(pair)
        pair.add_argument("--out", type=Path, metavar="DIR", help="folder of the session (default: traces/eval-TIME)")
        pair.add_argument("--resume", action="store_true", help="go on with the session in --out")

    def run(self, args: argparse.Namespace) -> int:
        """Ask both arms: 0, 1 if B was shown to be worse or a request failed.

        JSON: ``source``, ``questions``, ``arms``, ``tokens``, ``counts``, ``difference``, ``p``, ``verdict`` and more
        (docs).
        """
        from dsv4lab.evaluate.result import Verdict

        require_aiohttp()
        if args.resume and args.out is None:
            raise missing("--resume", "--out DIR, the session to go on with")
        folder = Path("traces") / f"eval-{datetime.now(UTC):%Y%m%d-%H%M%S}" if args.out is None else args.out
        result = _ask(args, folder)
        if args.json:
            emit_json({**result.to_json(), "out": str(folder)})
        else:
            _print(result, folder)
        for error in result.errors:
            note(clip(error, _ERROR_WIDTH))
        return WORSE if result.failed or result.verdict is Verdict.A_BETTER else 0


def _ask(args: argparse.Namespace, folder: Path) -> AccuracyResult:
    from dsv4lab.evaluate.session import run_ab
    from dsv4lab.tuning.store import RECORDS

    plan = eval_args.plan_of(args)
    total = 2 * len(plan.questions)
    begun, done, fresh = time.monotonic(), 0, 0

    with progress(total, "starting") as advance:

        def tell(steps: int, text: str) -> None:
            nonlocal done, fresh
            done += steps
            fresh += steps == 1
            left = (time.monotonic() - begun) / fresh * (total - done) if fresh else None
            said = text if left is None or steps != 1 else f"{text}, about {seconds_text(left)} left"
            advance(steps, note=f"{said:<{_LABEL}}")

        try:
            return run_ab(plan, folder, tell, resume=args.resume)
        except (KeyboardInterrupt, LabError):
            if (folder / RECORDS).exists():
                note(f"answers so far are kept: the same command with --out {folder} --resume goes on")
            raise


def _print(result: AccuracyResult, folder: Path) -> None:
    from dsv4lab.evaluate import report

    for line in report.arm_lines(result):
        say(line)
    say("")
    columns, rows = report.arm_table(result)
    title = f"{result.counts.questions} questions of {result.source}"
    text_table(columns, rows, title=title)
    text_table(report.SPLIT_COLUMNS, report.split_table(result))
    say(report.tokens_text(result))
    say(report.difference_text(result))
    if failed := report.failed_text(result):
        say(failed, "lab.bad")
    say(report.verdict_text(result), "lab.title")
    console().print(Text(f"records, result.json and report.md: {folder}"))
