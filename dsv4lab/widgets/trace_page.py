"""The trace explorer as a standalone page."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsv4lab.timeline.timeline import UNKNOWN, Kind
from dsv4lab.viz import trace_facts as facts
from dsv4lab.viz.trace_index import COLORINGS
from dsv4lab.widgets import front
from dsv4lab.widgets.saved import saved_page
from dsv4lab.widgets.trace_session import TraceSession
from dsv4lab.widgets.trace_side import Side
from dsv4lab.widgets.trace_wire import short

SOURCES = (
    "trace_draw.js",
    "trace_head.js",
    "trace_input.js",
    "trace_select.js",
    "trace_view.js",
    "trace_panels.js",
    "trace_explorer.js",
)
STYLES = ("trace_explorer.css",)
SAVED_SOURCES = ("local_model.js", "trace_local.js", *SOURCES)
MOST_PAIRS = 50_000
MOST_GAPS = 50_000


def trace_page(session: TraceSession, theme: str, height: int) -> str:
    """The explorer with all its slices as one HTML file; tracks stay as they are grouped now."""
    setup = {**session.setup(), "groupings": [session.by], "saved": True}
    content = {
        "setup": setup,
        "steps": session.answer({"kind": "steps"}),
        "sides": [_side(session, side) for side in session.sides],
        "causes": [cause["label"] for cause in setup["causes"]],
    }
    title = "Trace: " + ", ".join(side["label"] for side in setup["sides"])
    traits = {"theme": theme, "palettes": front.palettes(), "height": height}
    return saved_page(title, traits, content, SAVED_SOURCES, STYLES)


def _side(session: TraceSession, side: Side) -> dict[str, Any]:
    session.prepare()
    index, line = side.index, side.index.timeline
    placed, origin = index.placed, side.origin_ns
    rows = placed.rows
    first = sum(len(s.index.tracks) for s in session.sides[: session.sides.index(side)])
    union = index.together
    low, high = int(union.first[1]), int(union.first[2])
    return {
        "label": short(side.label.partition(":")[0], 20),
        "track": first,
        "first": placed.first,
        "row": rows.astype(np.int32),
        "start": (placed.start - origin).astype(np.float64),
        "dur": (placed.end - placed.start).astype(np.float64),
        "sub": placed.sub.astype(np.uint8),
        "tones": {coloring: index.colored(coloring)[0] for coloring in COLORINGS},
        "kinds": index.colored("category")[0],
        "name": line.name[rows],
        "op": line.op[rows],
        "layer": index.layers[rows],
        "step": line.step[rows],
        "stream": line.stream[rows],
        "queue": line.queue[rows],
        "wait": np.where(line.queued_ns[rows] != UNKNOWN, placed.start - line.queued_ns[rows], -1).astype(np.float64),
        "names": [short(name, 400) for name in line.names],
        "streams": [short(name, 80) for name in line.streams],
        "queues": [short(name, 80) for name in line.queues],
        "union": [(times[low:high] - origin).astype(np.float64) for times in (union.starts.times, union.ends.times)],
        "pairs": side.pairs[:MOST_PAIRS].ravel(),
        "path": _path(side),
        "gaps": _gaps(side),
        "kind_names": [kind.name.lower() for kind in Kind],
        "kind": line.kind[rows].astype(np.uint8),
    }


def _path(side: Side) -> Any:
    found = facts.path_rows(side.index, *side.index.span_ns)
    return None if found is None else [found[0][side.index.placed.rows].astype(np.uint8), found[1]]


def _gaps(side: Side) -> list[Any]:
    """The longest 50,000 gaps with their cause, in columns."""
    gaps = side.index.gaps
    kept = np.sort(np.argsort(-gaps.dur_ns, kind="stable")[:MOST_GAPS])
    names = side.index.timeline.name
    start = (gaps.start_ns[kept] - side.origin_ns).astype(np.float64)
    dur = gaps.dur_ns[kept].astype(np.float64)
    return [start, dur, gaps.cause[kept].astype(np.uint8), names[gaps.after[kept]], names[gaps.before[kept]]]
