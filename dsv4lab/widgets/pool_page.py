"""The pool explorer as a standalone page: its snapshots as maps of every layer kind."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsv4lab.viz import theme as themes
from dsv4lab.widgets import front
from dsv4lab.widgets.pool_session import PoolSession
from dsv4lab.widgets.saved import saved_page

SOURCES = ("trace_draw.js", "pool_draw.js", "pool_view.js", "pool_panels.js", "pool_explorer.js")
STYLES = ("pool_explorer.css",)
SAVED_SOURCES = ("local_model.js", "pool_local.js", *SOURCES)
MOST_SAVED = 60


def pool_page(session: PoolSession, theme: str) -> str:
    """The page as text. Of more than 60 snapshots it keeps 60 at equal distances, the last among them."""
    count = len(session.snapshots)
    kept = sorted({round(i) for i in np.linspace(0, count - 1, min(count, MOST_SAVED))})
    setup = {**session.setup(), "live": False, "saved": True}
    setup["steps"] = [setup["steps"][at] for at in kept]
    content = {"setup": setup, "snapshots": [_snapshot(session, at, setup["ratios"]) for at in kept]}
    traits = {"theme": theme, "palettes": front.palettes(), "owners": list(themes.CYCLE)}
    return saved_page("KV pool", traits, content, SAVED_SOURCES, STYLES)


def _snapshot(session: PoolSession, at: int, ratios: list[int]) -> dict[str, Any]:
    pools = {str(ratio): session.answer({"kind": "pool", "at": at, "ratio": ratio}) for ratio in ratios}
    requests = [
        session.answer({"kind": "request", "at": at, "request": r.request_id}) for r in session.snapshots[at].requests
    ]
    return {"pools": pools, "requests": requests}
