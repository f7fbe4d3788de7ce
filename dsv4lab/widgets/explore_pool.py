"""The Pool Explorer: the KV pool, one request and single rows, step by step."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from dsv4lab.errors import LabError, UsageError
from dsv4lab.timeline.records import PoolSnapshot
from dsv4lab.viz import theme as themes
from dsv4lab.widgets import front, wire
from dsv4lab.widgets.base import error_text
from dsv4lab.widgets.pool_page import pool_page
from dsv4lab.widgets.pool_session import PoolSession
from dsv4lab.widgets.trace_wire import short

_log = logging.getLogger(__name__)
SOURCES = ("trace_draw.js", "pool_draw.js", "pool_view.js", "pool_panels.js", "pool_explorer.js")
OPTIONS = ("theme",)


class PoolExplorer(anywidget.AnyWidget):
    """A pool at three zooms; see :func:`dsv4lab.widgets.pool_explorer`."""

    _esm = front.module(*SOURCES)
    _css = front.style("pool_explorer.css")
    theme = traitlets.Unicode("auto").tag(sync=True)
    palettes = traitlets.Dict().tag(sync=True)
    owners: traitlets.List[Any] = traitlets.List().tag(sync=True)

    def __init__(self, source: Any, *, theme: str = "auto") -> None:
        if theme != "auto":
            themes.check_theme(theme)
        self.session = _session(source)
        super().__init__(theme=theme, palettes=front.palettes(), owners=list(themes.CYCLE))
        self.on_msg(self._take)

    def save_html(self, path: str | PathLike[str]) -> Path:
        """Write the explorer with its snapshots as one HTML file. Raises ``UsageError`` if it cannot be written."""
        target = Path(path)
        try:
            target.write_text(pool_page(self.session, self.theme), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{target}: cannot be written: {error.strerror or error}") from None
        return target

    def _take(self, _widget: object, message: Mapping[str, Any], _buffers: object) -> None:
        try:
            self._reply(dict(message))
        except Exception as error:  # noqa: BLE001 - shown on the page, to the one who asked
            if not isinstance(error, LabError):
                _log.error("a question of the pool explorer failed", exc_info=error)
            text = short(error_text(error), 500)
            question = message.get("kind")
            self.send({"kind": "failed", "number": message.get("number"), "question": question, "text": text})

    def _reply(self, message: dict[str, Any]) -> None:
        if message.get("kind") == "hello":
            self.send(self.session.setup())
        elif message.get("kind") == "html":
            page = pool_page(self.session, self.theme).encode()
            self.send({"kind": "file", "name": "pool.html", "type": "text/html"}, [page])
        else:
            buffers: list[bytes] = []
            content = wire.encoded(self.session.answer(message), buffers)
            self.send(content, buffers)

    def __repr__(self) -> str:
        last = self.session.snapshots[-1]
        return f"<PoolExplorer {len(self.session.snapshots)} snapshots of {last.pages:,} pages, {last.slots} slots>"


def _session(source: Any) -> PoolSession:
    if isinstance(source, PoolSnapshot):
        return PoolSession([source])
    if callable(getattr(source, "pool_snapshot", None)):
        return PoolSession([source.pool_snapshot()], source)
    if isinstance(source, Iterable):
        return PoolSession(list(source))
    raise UsageError(f"pool_explorer takes a client, a PoolSnapshot or a list of them, got {type(source).__name__}")
