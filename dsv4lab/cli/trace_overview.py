"""What ``trace summary`` says beyond busy time: ranks, exposure, fork, graphs, launches, collectives; and rooflines."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4lab.cli.output import table
from dsv4lab.cli.safe import clip
from dsv4lab.cli.trace_tables import share
from dsv4lab.errors import UsageError
from dsv4lab.units import ns_text

if TYPE_CHECKING:
    from dsv4lab.timeline.records import BusySummary
    from dsv4lab.trace.analyse.launches import LaunchBoundness
    from dsv4lab.trace.analyse.roofline import RooflinePoint, Work
    from dsv4lab.trace.api import Trace

_MOST = 10
_TERA = 1e12


def overview_json(
    trace: Trace, main: str | None, ranks: Sequence[Mapping[str, Any]], expected: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The keys of ``trace summary --json`` beside those of the busy table.

    ``ranks`` are :func:`rank_rows`, ``expected`` the streams of the plan that the trace should have run.
    """
    from dsv4lab.trace.analyse.launches import graph_groups, graph_replays

    out: dict[str, Any] = {"ranks": list(ranks)}
    if len(ranks) > 1:
        out |= {"clocks": trace.meta.get("clocks"), "arrivals": arrivals(trace)}
    out["exposure"] = dataclasses.asdict(trace.exposure())
    out["fork"] = dataclasses.asdict(trace.fork(expected, main))
    out["graphs"] = [dataclasses.asdict(group) for group in graph_groups(graph_replays(trace))]
    out["launches"] = dataclasses.asdict(trace.launch_boundness())
    return out


def rank_rows(trace: Trace, busy: BusySummary, main: str | None) -> list[dict[str, Any]]:
    """The busy figures of every rank; ``busy`` are those of all of them."""
    from dsv4lab.timeline.busy import summarise

    ranks = sorted(set(trace.rank[trace.busy_mask].tolist()))
    keep = ("wall_ns", "union_busy_ns", "sum_busy_ns", "sum_dur_ns", "concurrency", "hidden_ns")
    if len(ranks) == 1:
        parts = [(ranks[0], busy)]
    else:
        parts = [(rank, summarise(trace.select(trace.rank == rank), main)) for rank in ranks]
    return [{"rank": rank, **{key: part.to_json()[key] for key in keep}} for rank, part in parts]


def arrivals(trace: Trace) -> dict[str, Any]:
    """How far apart ranks enter their shared collectives, and how often each rank is the last."""
    found = trace.arrivals()
    skews = sorted(found.column("skew_ns")) if len(found) else []
    last = Counter(found.column("last_rank")) if len(found) else Counter()
    return {
        "collectives": len(found),
        "median_skew_ns": skews[len(skews) // 2] if skews else 0,
        "most_skew_ns": skews[-1] if skews else 0,
        "last_rank": {str(rank): count for rank, count in sorted(last.items())},
    }


def overview(found: Mapping[str, Any], trace: Trace) -> None:
    """Tables of :func:`overview_json`; what has nothing to say is left out."""
    if len(found["ranks"]) > 1:
        _ranks(found)
    _exposure(found["exposure"])
    fork = found["fork"]
    if fork["side_rows"] or fork["missing"]:
        cells = [fork["verdict"], share(fork["hidden_share"], 1), clip(fork["reason"], 52)]
        table(["fork", "hidden", "because"], [cells], left=3)
    graphs(found["graphs"])
    launches(trace.launch_boundness())


def _ranks(found: Mapping[str, Any]) -> None:
    clocks = found["clocks"] or {}
    last = found["arrivals"]["last_rank"]
    rows = [
        [
            str(r["rank"]),
            ns_text(r["wall_ns"]),
            share(r["union_busy_ns"], r["wall_ns"]),
            f"{r['concurrency']:.3f}×",
            _clock(clocks.get(str(r["rank"]))),
            str(last.get(str(r["rank"]), 0)),
        ]
        for r in found["ranks"][:_MOST]
    ]
    table(["rank", "wall", "busy", "conc.", "clock ahead", "last to arrive"], rows)
    seen = found["arrivals"]
    cells = [str(seen["collectives"]), ns_text(seen["median_skew_ns"]), ns_text(seen["most_skew_ns"])]
    table(["collectives of several ranks", "median skew", "most"], [cells], left=0)


def _clock(clock: Mapping[str, int] | None) -> str:
    """A rank's clock against the first, with what collectives leave unexplained."""
    if clock is None:
        return "unknown"
    return f"{ns_text(clock['offset_ns'])} ± {ns_text(clock['residual_ns'])}" if clock["matches"] else "0"


def _exposure(found: Mapping[str, int]) -> None:
    owners = (
        ("compute", found["compute_ns"], ""),
        ("communication", found["exposed_communication_ns"], ns_text(found["communication_ns"])),
        ("copy", found["exposed_copy_ns"], ns_text(found["copy_ns"])),
        ("idle", found["idle_ns"], ""),
    )
    rows = [[what, ns_text(ns), share(ns, found["wall_ns"]), every] for what, ns, every in owners]
    table(["the wall belongs to", "time", "of wall", "with hidden"], rows)


def graphs(found: Sequence[Mapping[str, Any]]) -> None:
    """Graph replays by kind."""
    rows = [
        [
            clip(g["call"] or "graph", 18),
            str(g["replays"]),
            str(g["rows"]),
            str(g["lanes"]),
            ns_text(g["mean_wall_ns"]),
            share(g["mean_busy_ns"], g["mean_wall_ns"]),
            f"{g['concurrency']:.3f}×",
        ]
        for g in found[:_MOST]
    ]
    if rows:
        more = f" ({len(found) - _MOST} more kinds)" if len(found) > _MOST else ""
        table([f"graph replays{more}", "replays", "rows", "lanes", "wall", "busy", "conc."], rows)


def launches(bound: LaunchBoundness) -> None:
    """How far the host runs ahead."""
    if bound.launched_rows:
        cells = [
            bound.verdict,
            str(bound.launches),
            f"{bound.launched_rows}/{bound.rows}",
            ns_text(bound.median_delay_ns),
            share(bound.late_share, 1),
            ns_text(bound.launch_call_ns),
        ]
        table(["launches", "calls", "rows", "median ahead", "late", "in calls"], [cells])


def read_costs(path: Path) -> dict[str, Work]:
    """Operations and bytes of one row by name: ``{"name": {"flops": 1e9, "bytes": 2e6}, ...}``.

    Raises ``UsageError`` if the file is something else.
    """
    import msgspec

    from dsv4lab.trace.analyse.roofline import Work

    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Work])
    except OSError as error:
        raise UsageError(f"--costs {path}: cannot be read: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        takes = '{"name": {"flops": 1e9, "bytes": 2e6}, ...}'
        raise UsageError(f"--costs {path}: expected {takes}: {error}") from None


def roofline(points: Sequence[RooflinePoint], top: int) -> None:
    """Points under the roofline."""
    rows = [
        [
            clip(p.name, 28),
            p.bound,
            f"{p.intensity:.1f}",
            f"{p.flops_rate / _TERA:.2f}",
            f"{p.bytes_rate / _TERA:.3f}",
            share(p.share, 1),
            str(p.rows),
        ]
        for p in points[:top]
    ]
    table(["roofline", "bound", "FLOP/B", "TFLOP/s", "TB/s", "of roof", "rows"], rows, left=2)
