"""What every live view has: checked keywords, an errors pane, and a cheap ``repr``."""

from __future__ import annotations

import difflib
import html
import logging
from collections.abc import Callable, Iterable
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import Any, ParamSpec

import ipywidgets as widgets

from dsv4lab.errors import LabError, UsageError
from dsv4lab.widgets.cells import OPEN, current_execution

_log = logging.getLogger(__name__)
P = ParamSpec("P")
_ERROR_STYLE = (
    "border-left:4px solid #d55e00;background:rgba(213,94,0,0.10);padding:6px 10px;margin:4px 0;"
    "font-size:13px;line-height:1.45;white-space:pre-wrap"
)


def refuse_unknown(owner: str, unknown: Iterable[str], known: Iterable[str]) -> None:
    """Raise :class:`UsageError` for the first of ``unknown``, with the nearest of ``known`` as a hint."""
    known = sorted(known)
    for name in sorted(unknown):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? It" if near else "it"
        raise UsageError(f"{owner} takes no {name!r}; {hint} takes: {', '.join(known) or 'no options'}")


def write_page(path: str | PathLike[str], page: bytes) -> Path:
    """Write ``page`` to ``path``, and return where it is. Raises ``UsageError`` if it cannot be written."""
    target = Path(path)
    try:
        target.write_bytes(page)
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror or error}") from None
    return target


def error_text(error: BaseException) -> str:
    """One error as plain text: the message of our own errors, class and message of others."""
    return str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}"


class ErrorPane(widgets.HTML):  # type: ignore[misc]  # ipywidgets has no types
    """Shows the latest error of a callback; takes no room while there is none."""

    def __init__(self) -> None:
        super().__init__(layout=widgets.Layout(display="none"))

    def show(self, text: str) -> None:
        """Show ``text``, escaped."""
        self.value = f'<div role="alert" style="{_ERROR_STYLE}">{html.escape(text)}</div>'
        self.layout.display = None

    def clear(self) -> None:
        """Take the message away."""
        self.layout.display = "none"
        self.value = ""


class View(widgets.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """Base of the live views: a column of widgets with an errors pane of its own.

    Subclasses name their options in ``OPTIONS``; any other keyword is refused with a hint. Running a notebook cell
    again closes the views that it made before.
    """

    OPTIONS: tuple[str, ...] = ()

    def __init__(self, **options: Any) -> None:
        refuse_unknown(type(self).__name__, set(options) - set(self.OPTIONS), self.OPTIONS)
        self.errors = ErrorPane()
        super().__init__()
        OPEN.add(self, current_execution())

    def guarded(self, callback: Callable[P, object]) -> Callable[P, None]:
        """``callback`` with its exceptions shown in the errors pane instead of lost in a log."""

        @wraps(callback)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                callback(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - shown to the user, who decides
                self.show_error(error)

        return run

    def show_error(self, error: BaseException) -> None:
        """Show ``error`` in the pane; the traceback of an unexpected one goes to the log."""
        if not isinstance(error, LabError):
            _log.error("a callback of %s failed", type(self).__name__, exc_info=error)
        self.errors.show(error_text(error))

    def page(self) -> bytes:
        """What is shown, as one page for people without Python."""
        raise NotImplementedError

    def save_html(self, path: str | PathLike[str]) -> Path:
        """Write :meth:`page`, and return where it is. Raises ``UsageError`` if it cannot be written."""
        return write_page(path, self.page())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"
