"""What commands print: JSON or tables on standard output, progress and notes on standard error."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, Protocol

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

# ANSI names only, so that each terminal shows its own; yellow, blue and bright black are left out because common light
# or dark themes swallow them. Nothing is told by colour alone.
THEME = Theme(
    {
        "lab.title": "bold",
        "lab.head": "bold",
        "lab.key": "cyan",
        "lab.good": "green",
        "lab.warn": "magenta",
        "lab.bad": "bold red",
        "lab.side": "cyan",
        "bar.back": "dim",
        "bar.complete": "cyan",
        "bar.finished": "green",
        "bar.pulse": "cyan",
        "progress.elapsed": "dim",
        "progress.download": "none",
        "progress.spinner": "cyan",
    }
)

_BOUNDLESS = 10_000  # columns
_ACTS = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


class Advance(Protocol):
    """What a progress bar gives its block."""

    def __call__(self, steps: int = 1, note: str | None = None) -> None:
        """``steps`` more are done; ``note`` replaces the label."""


def console(file: IO[str] | None = None) -> Console:
    """A console in the theme on ``file``, by default standard output. Plain on a pipe; honours ``NO_COLOR``."""
    return Console(file=file or sys.stdout, theme=THEME, highlight=False, soft_wrap=True)


def emit_json(obj: Any) -> None:
    """Print ``obj`` as one JSON object. NaN and infinities, which JSON lacks, become null.

    Text that a terminal would act on (controls, direction marks) and what no encoding takes is escaped.
    """
    text = json.dumps(_finite(obj), ensure_ascii=False)
    sys.stdout.write(_ACTS.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")
    sys.stdout.flush()


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    left: int = 1,
    file: IO[str] | None = None,
) -> None:
    """Print ``rows`` under ``columns``: the first ``left`` columns left-aligned, the others (numbers) right-aligned.

    Cells may hold rich markup in the theme's styles, such as ``[lab.good]+3.4 %[/]``.
    """
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    if title:
        grid.title, grid.title_style, grid.title_justify = title, "lab.title", "left"
    for at, name in enumerate(columns):
        grid.add_column(name, header_style="lab.head", justify="left" if at < left else "right", no_wrap=True)
    for row in rows:
        grid.add_row(*row)
    out = console()
    boundless = out.options.update(width=_BOUNDLESS)
    out.width = max(out.width, out.measure(grid, options=boundless).maximum)
    out.print(grid)
    out.print()


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "", left: int = 1) -> None:
    """:func:`table` of plain text: nothing in it is markup."""
    table(columns, [[escape(cell) for cell in row] for row in rows], title=escape(title), left=left)


def say(text: str, style: str = "") -> None:
    """Print a paragraph of plain text on standard output, wrapped to the terminal."""
    console().print(Text(text, style=style), soft_wrap=False)


def note(text: str, *, style: str = "") -> None:
    """Print one line for the reader on standard error, out of the way of results."""
    console(sys.stderr).print(Text(text, style=style))


@contextmanager
def progress(total: int | None, label: str, *, force: bool = False) -> Iterator[Advance]:
    """A progress bar on standard error while the block runs; gone when it ends.

    ``total`` is the number of steps, None when it is not known. Off a terminal nothing is shown, unless ``force``:
    then each advance is a line.
    """
    screen = console(sys.stderr)
    if not screen.is_terminal:
        yield _line_by_line(total, label) if force else _silent
        return
    text = TextColumn("{task.description}")
    columns = (SpinnerColumn(), text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task(label, total=total)

        def advance(steps: int = 1, note: str | None = None) -> None:
            bar.update(task, advance=steps, description=label if note is None else note)

        yield advance


def _silent(steps: int = 1, note: str | None = None) -> None:
    pass


def _line_by_line(total: int | None, label: str) -> Advance:
    done = 0

    def advance(steps: int = 1, note: str | None = None) -> None:
        nonlocal done
        done += steps
        text = label if note is None else note
        sys.stderr.write(f"[{done}/{'?' if total is None else total}] {text}\n")
        sys.stderr.flush()

    return advance


def _finite(obj: Any) -> Any:
    if isinstance(obj, float):
        return obj if math.isfinite(obj) else None
    if isinstance(obj, dict):
        return {key: _finite(value) for key, value in obj.items()}
    if isinstance(obj, list | tuple):
        return [_finite(value) for value in obj]
    return obj
