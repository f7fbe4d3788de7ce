"""A against B: where the wall went, what moved to side streams, what got slower beside other work.

Steps are paired by mode and order within the mode, work by layer, operator and name: never by position alone.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv4lab.timeline.busy import summarise
from dsv4lab.timeline.records import BusySummary
from dsv4lab.timeline.timeline import UNKNOWN, Kind, Timeline
from dsv4lab.trace.analyse.categories import CATEGORIES, base_name, category, category_ids
from dsv4lab.trace.analyse.idle import CAUSES, idle_gaps
from dsv4lab.trace.analyse.ops import layer_ids
from dsv4lab.trace.analyse.steps import Steps, StepTime, find_steps, step_times

ON_MAIN, ON_SIDE = 0.1, 0.9
SLOWER = 1.02


@dataclass(frozen=True, slots=True)
class Side:
    """The profile of one side: the table that overlap is judged by."""

    label: str
    steps: int
    main_busy_ns: int
    side_busy_ns: int
    hidden_ns: int
    union_busy_ns: int
    concurrency: float
    wall_ns: int


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of the waterfall: what it adds to the wall of A and of B; ``delta_ns`` is B minus A."""

    what: str
    a_ns: int
    b_ns: int
    delta_ns: int


@dataclass(frozen=True, slots=True)
class StepPair:
    """Two steps of the same mode and the same place among the steps of that mode."""

    mode: str
    a_label: str
    b_label: str
    a_wall_ns: int
    b_wall_ns: int
    delta_ns: int


@dataclass(frozen=True, slots=True)
class WorkPair:
    """Work that both sides did. ``a_side`` and ``b_side`` are the shares of its time on side streams."""

    name: str
    category: str
    layer: int
    a_rows: int
    b_rows: int
    a_ns: int
    b_ns: int
    delta_ns: int
    a_side: float
    b_side: float
    moved: bool
    contention_ns: int


@dataclass(frozen=True, slots=True)
class Unmatched:
    """Work that only one side did."""

    side: str
    name: str
    category: str
    rows: int
    sum_dur_ns: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """All of it. The deltas of ``waterfall`` add up to ``b.wall_ns - a.wall_ns`` exactly."""

    a: Side
    b: Side
    aligned: str
    waterfall: tuple[Bar, ...]
    steps: tuple[StepPair, ...]
    work: tuple[WorkPair, ...]
    unmatched: tuple[Unmatched, ...]
    notes: tuple[str, ...]

    @property
    def moved(self) -> tuple[WorkPair, ...]:
        """Work that ran on the main stream in A and runs on side streams in B, or the other way round."""
        return tuple(w for w in self.work if w.moved)

    @property
    def slower(self) -> tuple[WorkPair, ...]:
        """Work that takes longer per row in B although it did not move: what contention costs, largest first."""
        return tuple(sorted((w for w in self.work if w.contention_ns > 0), key=lambda w: -w.contention_ns))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def compare(a: Timeline, b: Timeline, *, labels: tuple[str, str] = ("A", "B"), main: str | None = None) -> Comparison:
    """Compare two timelines, of whatever GPU, vendor or runtime.

    Where both have steps, only paired steps count on either side, each with its own wall; else the whole windows do.
    """
    notes: list[str] = []
    steps = find_steps(a), find_steps(b)
    pairs = _pair_steps(a, b, *steps)
    picked: list[list[StepTime | None]]
    if pairs:
        picked = [[pair[at] for pair in pairs] for at in (0, 1)]
        aligned = f"{len(pairs)} paired steps"
        for at, label in enumerate(labels):
            left = len(step_times((a, b)[at], steps[at])) - len(pairs)
            if left:
                notes.append(f"{label}: {left} steps without a partner are left out")
    else:
        picked = [[None], [None]]
        aligned = "whole window"
    sides = [[_part(t, s, step) for step in chosen] for t, s, chosen in zip((a, b), steps, picked, strict=True)]
    bars = [_sum_bars([_account(part, main) for part in parts]) for parts in sides]
    matched, unmatched = _match_work(sides[0], sides[1], labels, main)
    if a.meta.get("platform") != b.meta.get("platform"):
        notes.append("different platforms: kernels are matched by name, so most stay unmatched")
    return Comparison(
        a=_profile(sides[0], labels[0], main),
        b=_profile(sides[1], labels[1], main),
        aligned=aligned,
        waterfall=tuple(Bar(w, bars[0][w], bars[1][w], bars[1][w] - bars[0][w]) for w in bars[0]),
        steps=tuple(
            StepPair(x.mode, x.label, y.label, x.wall_ns, y.wall_ns, y.wall_ns - x.wall_ns) for x, y, *_ in pairs
        ),
        work=tuple(matched),
        unmatched=tuple(unmatched),
        notes=tuple(notes),
    )


def _pair_steps(a: Timeline, b: Timeline, of_a: Steps, of_b: Steps) -> list[tuple[StepTime, StepTime]]:
    """Steps of both sides by rank, mode and order within them."""

    def grouped(timeline: Timeline, steps: Steps) -> dict[tuple[int, str], list[StepTime]]:
        out: dict[tuple[int, str], list[StepTime]] = defaultdict(list)
        for step in step_times(timeline, steps):
            out[step.rank, step.mode].append(step)
        return out

    first, second = grouped(a, of_a), grouped(b, of_b)
    ranks = {rank for rank, _ in first} & {rank for rank, _ in second}
    if not ranks and len({r for r, _ in first}) == len({r for r, _ in second}) == 1:
        second = {(next(iter(first))[0], mode): steps for (_, mode), steps in second.items()}
    return [pair for key, steps in first.items() for pair in zip(steps, second.get(key, []), strict=False)]


def _part(timeline: Timeline, steps: Steps, step: StepTime | None) -> Timeline:
    """The busy rows and the calls of one step, or of the whole window."""
    calls = timeline.kind == int(Kind.HOST)
    if step is None:
        return timeline.select(timeline.busy_mask | calls)
    at = next(i for i, s in enumerate(steps.spans) if (s.rank, s.number, s.label) == (step.rank, step.step, step.label))
    span = steps.spans[at]
    calls &= (timeline.rank == span.rank) & (timeline.start_ns >= span.start_ns) & (timeline.start_ns < span.end_ns)
    return timeline.select((steps.of_row == at) | calls)


def _account(part: Timeline, main: str | None) -> dict[str, int]:
    """The wall of one part as a sum: work by category, less what overlapped, plus idle by cause."""
    busy = summarise(part, main=main if _has(part, main) else None)
    ids = category_ids(part)
    dur = np.where(part.busy_mask, part.dur_ns, 0)
    out = {f"work: {name}": int(dur[ids == at].sum()) for at, name in enumerate(CATEGORIES)}
    out["overlap inside a stream"] = busy.sum_busy_ns - busy.sum_dur_ns
    out["overlap between streams"] = busy.union_busy_ns - busy.sum_busy_ns
    idle = dict.fromkeys(CAUSES, 0)
    for gap in idle_gaps(part) if len(np.unique(part.rank)) < 2 else []:
        idle[gap.cause] += gap.dur_ns
    rest = busy.wall_ns - busy.union_busy_ns - sum(idle.values())
    out |= {f"idle: {cause}": ns for cause, ns in idle.items()}
    out["idle: unknown"] += rest
    return out


def _has(part: Timeline, main: str | None) -> bool:
    used = {part.streams[i] for i in np.unique(part.stream[part.busy_mask]) if i != UNKNOWN}
    return main is not None and any(main in (label, label.rpartition("/")[2]) for label in used)


def _sum_bars(accounts: list[dict[str, int]]) -> dict[str, int]:
    return {what: sum(account[what] for account in accounts) for what in accounts[0]}


def _profile(parts: list[Timeline], label: str, main: str | None) -> Side:
    found: list[BusySummary] = [summarise(part, main=main if _has(part, main) else None) for part in parts]
    union, total = sum(f.union_busy_ns for f in found), sum(f.sum_busy_ns for f in found)
    return Side(
        label=label,
        steps=len(parts),
        main_busy_ns=sum(f.main_busy_ns for f in found),
        side_busy_ns=sum(f.side_busy_ns for f in found),
        hidden_ns=sum(f.hidden_ns for f in found),
        union_busy_ns=union,
        concurrency=total / union if union else 0.0,
        wall_ns=sum(f.wall_ns for f in found),
    )


@dataclass(slots=True)
class _Sum:
    rows: int = 0
    ns: int = 0
    side_ns: int = 0


def _sums(parts: list[Timeline], main: str | None) -> dict[tuple[str, int], _Sum]:
    out: dict[tuple[str, int], _Sum] = defaultdict(_Sum)
    for part in parts:
        busy = summarise(part, main=main if _has(part, main) else None)
        mains = [
            at for at, s in enumerate(part.streams) if any(x.stream == s and x.role == "main" for x in busy.streams)
        ]
        layers = layer_ids(part)
        rows = np.flatnonzero(part.busy_mask)
        side = ~np.isin(part.stream[rows], mains) if busy.streams else np.zeros(len(rows), np.bool_)
        _add(out, part, rows, layers[rows], side)
    return out


def _add(
    out: dict[tuple[str, int], _Sum],
    part: Timeline,
    rows: NDArray[np.int64],
    layers: NDArray[np.int32],
    side: NDArray[np.bool_],
) -> None:
    keys = part.name[rows].astype(np.int64) * (int(layers.max(initial=0)) + 2) + layers + 1
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    dur = part.dur_ns[rows]
    count = np.bincount(group)
    for at, one in enumerate(first.tolist()):
        inside = group == at
        total = out[part.names[part.name[rows[one]]], int(layers[one])]
        total.rows += int(count[at])
        total.ns += int(dur[inside].sum())
        total.side_ns += int(dur[inside & side].sum())


def _match_work(
    a: list[Timeline], b: list[Timeline], labels: tuple[str, str], main: str | None
) -> tuple[list[WorkPair], list[Unmatched]]:
    """Pair by layer and full name, then what is left by layer and base name where that is unique on both sides."""
    sums = _sums(a, main), _sums(b, main)
    pairs = [(key, key) for key in sums[0] if key in sums[1]]
    left = [[key for key in s if key not in other] for s, other in (sums, sums[::-1])]
    by_base = [_unique_bases(keys) for keys in left]
    pairs += [(key, by_base[1][base]) for base, key in by_base[0].items() if base in by_base[1]]
    matched = [_pair(x, sums[0][x], sums[1][y]) for x, y in pairs]
    done = {x for x, _ in pairs}, {y for _, y in pairs}
    rest = [
        Unmatched(label, name, category(name), s[name, layer].rows, s[name, layer].ns)
        for label, s, seen in zip(labels, sums, done, strict=True)
        for name, layer in s
        if (name, layer) not in seen
    ]
    return sorted(matched, key=lambda w: -abs(w.delta_ns)), sorted(rest, key=lambda u: -u.sum_dur_ns)


def _unique_bases(keys: list[tuple[str, int]]) -> dict[tuple[str, int], tuple[str, int]]:
    found: dict[tuple[str, int], list[tuple[str, int]]] = defaultdict(list)
    for name, layer in keys:
        found[base_name(name), layer].append((name, layer))
    return {base: same[0] for base, same in found.items() if len(same) == 1}


def _pair(key: tuple[str, int], a: _Sum, b: _Sum) -> WorkPair:
    a_side, b_side = (s.side_ns / s.ns if s.ns else 0.0 for s in (a, b))
    moved = (a_side <= ON_MAIN and b_side >= ON_SIDE) or (a_side >= ON_SIDE and b_side <= ON_MAIN)
    expected = a.ns * b.rows / a.rows
    slower = not moved and b.ns > SLOWER * expected
    name, layer = key
    return WorkPair(
        name=name,
        category=category(name),
        layer=layer,
        a_rows=a.rows,
        b_rows=b.rows,
        a_ns=a.ns,
        b_ns=b.ns,
        delta_ns=b.ns - a.ns,
        a_side=a_side,
        b_side=b_side,
        moved=moved,
        contention_ns=round(b.ns - expected) if slower else 0,
    )
