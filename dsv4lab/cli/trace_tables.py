"""Tables of ``dsv4lab trace`` for readers: no wider than 80 columns, names from files disarmed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsv4lab.cli.output import note, table
from dsv4lab.cli.safe import clip
from dsv4lab.units import ns_text

if TYPE_CHECKING:
    from dsv4lab.timeline.records import BusySummary
    from dsv4lab.trace.analyse.critical import CriticalPath
    from dsv4lab.trace.analyse.idle import Gap, IdleCause
    from dsv4lab.trace.analyse.ops import WorkTime
    from dsv4lab.trace.analyse.steps import StepTime
    from dsv4lab.trace.api import Trace
    from dsv4lab.trace.compare import Comparison, Side
    from dsv4lab.trace.load import LoadReport

_STREAMS = 20


def share(part: float, whole: float) -> str:
    """``part`` of ``whole`` in percent."""
    return f"{100 * part / whole:.1f} %" if whole else ""


def delta(ns: int) -> str:
    """A signed duration."""
    return f"{'+' if ns > 0 else '-' if ns < 0 else ''}{ns_text(abs(ns))}"


def busy(trace: Trace, summary: BusySummary) -> None:
    """Streams, queues and totals."""
    rows = [
        [
            clip(stream.stream, 18),
            clip(_queue(stream.queue, stream.stream), 12),
            stream.role,
            ns_text(stream.busy_ns),
            share(stream.busy_ns, summary.wall_ns),
            ns_text(stream.hidden_ns) if stream.role == "side" else "",
            str(stream.events),
        ]
        for stream in summary.streams[:_STREAMS]
    ]
    if rows:
        table(["stream", "queue", "role", "busy", "of wall", "hidden", "events"], rows, left=3)
    rest = summary.streams[_STREAMS:]
    if rest:
        note(f"{len(rest)} more streams with {ns_text(sum(s.busy_ns for s in rest))} busy: --json lists them all")
    if summary.queues and {(s.stream, s.busy_ns) for s in summary.streams} != {
        (q.queue, q.busy_ns) for q in summary.queues
    }:
        _queues(trace, summary)
    totals = (summary.wall_ns, summary.union_busy_ns, summary.sum_busy_ns, summary.hidden_ns)
    wall, union, total, hidden = map(ns_text, totals)
    head = ["wall", "union busy", "sum busy", "concurrency", "hidden"]
    table(head, [[wall, union, total, f"{summary.concurrency:.3f}×", hidden]], left=0)


def _queue(queue: str | None, stream: str) -> str:
    return "" if queue is None or queue == stream else queue


def _queues(trace: Trace, summary: BusySummary) -> None:
    from dsv4lab.timeline.occupancy import queue_depth

    depth = {d.queue: d for d in queue_depth(trace)}
    rows = [
        [
            clip(q.queue, 24),
            ns_text(q.busy_ns),
            share(q.busy_ns, summary.wall_ns),
            f"{depth[q.queue].mean_running:.2f}",
            f"{depth[q.queue].mean_waiting:.2f}",
            str(q.events),
        ]
        for q in summary.queues[:_STREAMS]
    ]
    table(["queue", "busy", "of wall", "running", "waiting", "events"], rows)


def steps(rows: Sequence[StepTime], top: int) -> None:
    """Steps in order."""
    cells = [
        [
            str(row.step),
            clip(row.label, 22),
            row.mode,
            ns_text(row.wall_ns),
            share(row.union_busy_ns, row.wall_ns),
            f"{row.concurrency:.3f}×",
            str(row.rows),
        ]
        for row in rows[:top]
    ]
    table(["step", "label", "mode", "wall", "busy", "conc.", "rows"], cells, left=3)
    _more(len(rows), top)


def _more(count: int, top: int) -> None:
    if count > top:
        note(f"{count - top} more: --top {count} or --json")


def work(rows: Sequence[WorkTime], by: str, top: int) -> None:
    """Work, largest first."""
    by_category = by == "category"
    cells = [
        [
            clip(row.key, 30),
            "" if by_category else clip(row.category, 11),
            ns_text(row.sum_dur_ns),
            share(row.share, 1),
            ns_text(row.mean_ns),
            str(row.rows),
        ]
        for row in rows[:top]
    ]
    table([by, "" if by_category else "category", "sum", "share", "mean", "rows"], cells, left=2)
    _more(len(rows), top)


def idle(causes: Sequence[IdleCause], largest: Sequence[Gap]) -> None:
    """Causes, then the largest gaps."""
    table(
        ["cause", "idle", "share", "gaps"],
        [[cause.cause, ns_text(cause.idle_ns), share(cause.share, 1), str(cause.gaps)] for cause in causes],
    )
    cells = [[gap.cause, clip(gap.after, 22), clip(gap.before, 22), ns_text(gap.dur_ns)] for gap in largest]
    if cells:
        table(["largest gaps", "after", "before", "idle"], cells, left=3)


def critical(path: CriticalPath, top: int) -> None:
    """What the path consists of."""
    for what in ("category", "what"):
        cells = [[clip(key, 50), ns_text(ns), share(ns, path.wall_ns)] for key, ns in list(path.by(what).items())[:top]]
        table([f"critical path by {'row' if what == 'what' else what}", "time", "of wall"], cells)


def comparison(found: Comparison, top: int) -> None:
    """Profiles, waterfall, largest changes."""
    table(
        ["side", "main busy", "side busy", "hidden", "concurrency", "wall"],
        [_side(found.a), _side(found.b)],
        title=f"{clip(found.a.label, 24)} against {clip(found.b.label, 24)} ({found.aligned})",
    )
    bars = [
        [bar.what, ns_text(bar.a_ns), ns_text(bar.b_ns), delta(bar.delta_ns)]
        for bar in found.waterfall
        if bar.a_ns or bar.b_ns
    ]
    walls = found.a.wall_ns, found.b.wall_ns
    bars.append(["wall", ns_text(walls[0]), ns_text(walls[1]), delta(walls[1] - walls[0])])
    table(["waterfall", "A", "B", "B - A"], bars)
    _pairs("largest changes", [(w.name, w.layer, w.a_ns, w.b_ns) for w in found.work[:top] if w.delta_ns])
    _pairs("moved between main and side", [(w.name, w.layer, w.a_ns, w.b_ns) for w in found.moved[:top]])
    _pairs("slower without moving", [(w.name, w.layer, w.a_ns, w.b_ns) for w in found.slower[:top]])
    if found.unmatched:
        cells = [
            [clip(u.name, 36), clip(u.side, 16), ns_text(u.sum_dur_ns), str(u.rows)] for u in found.unmatched[:top]
        ]
        table(["only on one side", "side", "sum", "rows"], cells, left=2)


def _side(side: Side) -> list[str]:
    times = map(ns_text, (side.main_busy_ns, side.side_busy_ns, side.hidden_ns))
    return [clip(side.label, 20), *times, f"{side.concurrency:.3f}×", ns_text(side.wall_ns)]


def _pairs(title: str, rows: Sequence[tuple[str, int, int, int]]) -> None:
    if rows:
        cells = [
            [clip(name if layer < 0 else f"L{layer} {name}", 38), ns_text(a), ns_text(b), delta(b - a)]
            for name, layer, a, b in rows
        ]
        table([title, "A", "B", "B - A"], cells)


def report(found: LoadReport) -> None:
    """A load report."""
    rows = [
        ["file", clip(found.file, 50)],
        ["format", found.format],
        ["exporter", clip(found.exporter, 50)],
        ["events", str(found.events)],
        ["GPU rows", str(found.rows)],
        ["lost events", str(found.lost_events)],
        ["truncated", "yes" if found.truncated else "no"],
    ]
    rows += [[f"repaired: {kind}", str(count)] for kind, count in sorted(found.repairs.items())]
    rows += [[clip(kind, 55), str(count)] for kind, count in sorted(found.findings.items())]
    table(["load report", ""], rows, left=2)
