"""``dsv4lab report``: what sessions found, as text, Markdown and HTML; compared, and merged."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.text import Text

from dsv4lab.cli.base import Command
from dsv4lab.cli.output import console, emit_json, say, text_table
from dsv4lab.cli.safe import clean, cut
from dsv4lab.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from dsv4lab.tuning.against import Comparison
    from dsv4lab.tuning.tables import Table
    from dsv4lab.tuning.view import SessionView

_SETTING_WIDTH = 36


class ReportCommand(Command):
    """Read sessions, finished or not."""

    name = "report"
    help = "what tuning sessions found: tables, report.html, Markdown, launch lines; compare with another, or merge"
    examples = (
        "dsv4lab report traces/monday",
        "dsv4lab report traces/monday --html monday.html --markdown monday.md",
        "dsv4lab report traces/today --against traces/release --max-regression 1% --json",
        "dsv4lab report traces/box1 traces/box2 --merge traces/both",
    )

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Sessions, where to write them, and what to hold them against."""
        parser.add_argument("sessions", nargs="+", type=Path, metavar="SESSION", help="folder of a sweep or a search")
        parser.add_argument("--html", type=Path, metavar="FILE", help="write the page there (of one session)")
        parser.add_argument("--markdown", type=Path, metavar="FILE", help="write Markdown there")
        parser.add_argument("--against", type=Path, metavar="SESSION", help="an earlier session of the same load")
        parser.add_argument(
            "--max-regression",
            metavar="SHARE",
            help="how much worse TPOT and throughput may be than there: 1%% or 0.01 (default: 1%%)",
        )
        parser.add_argument(
            "--merge", type=Path, metavar="DIR", help="write the sessions into one there, which tune --resume continues"
        )

    def run(self, args: argparse.Namespace) -> int:
        """JSON: ``sessions`` and, where asked for, ``comparison``, ``merged``, ``html``, ``markdown`` (docs).

        Exit code: 0; with ``--against`` 1 for a regression and 3 where it cannot be told.
        """
        from dsv4lab.tuning.against import compare_sessions
        from dsv4lab.tuning.merge import merge_sessions
        from dsv4lab.tuning.read_view import read_view

        _check(args)
        merged = None
        folders = args.sessions
        if args.merge is not None:
            merged = merge_sessions(args.merge, folders)
            folders = [args.merge]
        views = [read_view(folder) for folder in folders]
        limit = share(args.max_regression) if args.max_regression is not None else 0.01
        found = None if args.against is None else compare_sessions(views[0], read_view(args.against), limit)
        written = _write(args, views)
        if args.json:
            more = {"comparison": None if found is None else found.to_json(), "merged": merged and merged.to_json()}
            emit_json({"sessions": [_told(view) for view in views], **more, **written})
        else:
            for view in views:
                print_view(view)
            if merged is not None:
                console().print(
                    f"merged {merged.records} records of {merged.sessions} sessions into {escape(str(merged.folder))}"
                    f" ({merged.duplicates} known already, {merged.torn} torn lines left out)"
                )
            if found is not None:
                _print_comparison(found)
            for name, path in written.items():
                if path is not None:
                    console().print(Text(f"{name}: {path}"))
        return 0 if found is None else found.exit_code


def share(text: str) -> float:
    """``1%`` or ``0.01`` as a fraction. Raises :class:`UsageError`."""
    words = text.strip()
    try:
        value = float(words.removesuffix("%")) / (100 if words.endswith("%") else 1)
    except ValueError:
        raise UsageError(f"--max-regression: got {text!r}, it takes a share such as 1% or 0.01") from None
    if not 0 <= value < 1:
        raise UsageError(f"--max-regression: got {text!r}, it takes a share from 0 to less than 100 %")
    return value


def _check(args: argparse.Namespace) -> None:
    several = len(args.sessions) > 1 and args.merge is None
    if several and args.html is not None:
        raise UsageError("--html: it takes one session; --merge makes one of several")
    if several and args.against is not None:
        raise UsageError("--against: it takes one session to hold against it; --merge makes one of several")
    if args.max_regression is not None and args.against is None:
        raise UsageError("--max-regression: it needs --against SESSION")


def _write(args: argparse.Namespace, views: list[SessionView]) -> dict[str, str | None]:
    from dsv4lab.tuning.store import write_text
    from dsv4lab.tuning.summary_markdown import markdown

    if args.html is not None:
        if importlib.util.find_spec("plotly") is None:
            raise UnavailableError("--html: plotly draws its pictures, and is not installed; --markdown needs nothing")
        from dsv4lab.tuning.summary_page import write_summary

        write_summary(views[0], args.html)
    if args.markdown is not None:
        write_text(args.markdown, "\n".join(map(markdown, views)))
    names = {"html": args.html, "markdown": args.markdown}
    return {name: None if path is None else str(path) for name, path in names.items()}


def _told(view: SessionView) -> dict[str, Any]:
    """A session as JSON."""
    from dsv4lab.tuning.launch import launch_lines
    from dsv4lab.tuning.summary import headline, scope_text

    return {
        "folder": str(view.folder),
        "kind": view.kind,
        "target": view.target,
        "title": view.title,
        "state": view.state,
        "machines": list(view.machines),
        "headline": headline(view),
        "scope": scope_text(view),
        "level": view.level,
        "gpus": view.gpus,
        "noise": view.noise.to_json(),
        "uses": [use.to_json() for use in view.uses],
        "rows": [row.to_json() for row in view.rows],
        "profiles": [profile.to_json() for profile in view.profiles],
        "outputs_differ": list(view.gates),
        "launch": [line.to_json() for line in launch_lines(view)],
        "torn": view.torn,
    }


def print_view(view: SessionView) -> None:
    """A session in at most 80 columns."""
    from dsv4lab.tuning import summary
    from dsv4lab.tuning.launch import launch_lines

    _say(f"{cut(view.title, 60)} ({view.target}, {view.state})", "lab.title")
    for title, loads in summary.groups(view):
        uses = [use for use in view.uses if use.load in loads]
        if uses:
            _say(summary.about_text(uses))
            _table(summary.short_table(uses, view.level), title)
        everything = f"All settings: {title}" if title else "All settings"
        _table(_narrow(summary.short_settings_table(view, loads)), everything, left=2)
    if view.profiles:
        _table(_narrow(summary.short_profile_table(view.profiles), width=26), "Profiles", left=2)
    for text in summary.failures(view):
        _say(text.splitlines()[0], "lab.warn")
    for text in (summary.gate_sentence(view), summary.noise_sentence(view)):
        _say(text)
    _say(summary.headline(view), "lab.title")
    _say(summary.scope_text(view))
    for line in launch_lines(view):
        _say(f"{line.framework}, {line.what}:")
        console().print(Text(f"  {line.line}", style="lab.key"))


def _print_comparison(found: Comparison) -> None:
    from dsv4lab.tuning import summary

    rows: list[tuple[str, ...]] = []
    for check in found.checks:
        digits = summary.ms if check.metric == "TPOT" else summary.speed
        interval = "-"
        if check.loss is not None and check.low is not None and check.high is not None:
            interval = f"{100 * check.loss:+.1f} ({100 * check.low:+.1f} to {100 * check.high:+.1f})"
        figures = f"{digits(check.before)} → {digits(check.now)}"
        what = f"{summary.level_text(check.load)} {check.what}"
        rows.append((what, check.metric, figures, interval, check.verdict))
    columns = ("level, setting", "figure", "then → now", "worse by, %", "verdict")
    _table((columns, rows), f"Against the earlier session: at most {100 * found.max_regression:g} % worse", left=2)
    for text in dict.fromkeys(f"{check.what}: {check.note}" for check in found.checks if check.note):
        _say(text)
    for text in found.notes:
        _say(text, "lab.warn")
    style = {0: "lab.good", 1: "lab.bad"}.get(found.exit_code, "lab.warn")
    _say(found.verdict.capitalize() + ".", style)


def _narrow(found: Table, width: int = _SETTING_WIDTH) -> Table:
    """The table with its second column clipped."""
    columns, rows = found
    return columns, [tuple(cut(cell, width) if at == 1 else cell for at, cell in enumerate(row)) for row in rows]


def _table(found: Table, title: str, left: int = 1) -> None:
    columns, rows = found
    text_table(columns, [[clean(cell) for cell in row] for row in rows], title=clean(title), left=left)


def _say(text: str, style: str = "") -> None:
    if text:
        say(clean(text), style)
