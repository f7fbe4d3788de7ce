"""The Pool Explorer: the KV pool, one request and single rows, step by step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import traitlets

from dsv4lab.errors import UsageError
from dsv4lab.timeline.records import PoolSnapshot
from dsv4lab.viz import theme as themes
from dsv4lab.widgets import front
from dsv4lab.widgets.explorer import Explorer
from dsv4lab.widgets.pool_page import SOURCES, STYLES, pool_page
from dsv4lab.widgets.pool_session import PoolSession

OPTIONS = ("theme",)


class PoolExplorer(Explorer):
    """A pool at three zooms; see :func:`dsv4lab.widgets.pool_explorer`."""

    _esm = front.module(*SOURCES)
    _css = front.style(*STYLES)
    owners: traitlets.List[Any] = traitlets.List().tag(sync=True)

    def __init__(self, source: Any, *, theme: str = "auto") -> None:
        self.session = _session(source)
        super().__init__(theme=theme, owners=list(themes.CYCLE))

    def page(self) -> bytes:
        """See :meth:`Explorer.page`: with the snapshots."""
        return pool_page(self.session, self.theme).encode()

    def reply(self, message: dict[str, Any]) -> None:
        """See :meth:`Explorer.reply`."""
        if message.get("kind") == "hello":
            self.send(self.session.setup())
        elif message.get("kind") == "html":
            self.send_page("pool.html")
        else:
            self.send_content(self.session.answer(message))

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
