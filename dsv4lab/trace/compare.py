"""A against B: where the wall went, what moved to side streams, what got slower beside other work.

Steps are paired by mode and order within the mode, work by layer, operator and name: never by position alone.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv4lab.errors import UsageError
from dsv4lab.timeline.timeline import Timeline
from dsv4lab.trace.analyse.categories import CATEGORIES, base_name, category, category_ids
from dsv4lab.trace.analyse.idle import CAUSES, idle_gaps
from dsv4lab.trace.analyse.steps import StepTime, find_steps, step_times
from dsv4lab.trace.parts import Part, cut
from dsv4lab.trace.table import Table

TABLES = ("waterfall", "steps", "work", "moved", "slower", "unmatched", "sides")
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

    def table(self, what: str = "waterfall") -> Table:
        """``waterfall``, ``steps``, ``work``, ``moved``, ``slower``, ``unmatched`` or ``sides`` as a tidy table.

        Raises ``UsageError`` for another name.
        """
        if what not in TABLES:
            raise UsageError(f"no table {what!r} in a comparison: it has {', '.join(TABLES)}")
        records = (self.a, self.b) if what == "sides" else getattr(self, what)
        return Table.of(records, f"{self.a.label} against {self.b.label}: {what}")

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def compare(a: Timeline, b: Timeline, *, labels: tuple[str, str] = ("A", "B"), main: str | None = None) -> Comparison:
    """Compare two timelines, of whatever GPU, vendor or runtime.

    Where both have steps, only paired steps count on either side, each with its own wall; else the whole windows do.
    """
    notes: list[str] = []
    steps = find_steps(a), find_steps(b)
    times = step_times(a, steps[0], main), step_times(b, steps[1], main)
    pairs = _pair_steps(*times)
    aligned = f"{len(pairs)} paired steps" if pairs else "whole window"
    picked: list[list[int] | None] = [[times[at][pair[at]].span for pair in pairs] if pairs else None for at in (0, 1)]
    for label, found in zip(labels, times, strict=True):
        if pairs and len(found) > len(pairs):
            notes.append(f"{label}: {len(found) - len(pairs)} steps without a partner are left out")
    sides = [cut(t, s, chosen, main) for t, s, chosen in zip((a, b), steps, picked, strict=True)]
    bars = [_sum_bars([_account(part) for part in parts]) for parts in sides]
    matched, unmatched = _match_work(sides[0], sides[1], labels)
    if a.meta.get("platform") != b.meta.get("platform"):
        notes.append("different platforms: kernels are matched by name, so most stay unmatched")
    return Comparison(
        a=_profile(sides[0], labels[0]),
        b=_profile(sides[1], labels[1]),
        aligned=aligned,
        waterfall=tuple(Bar(w, bars[0][w], bars[1][w], bars[1][w] - bars[0][w]) for w in bars[0]),
        steps=tuple(_step_pair(times[0][x], times[1][y]) for x, y in pairs),
        work=tuple(matched),
        unmatched=tuple(unmatched),
        notes=tuple(notes),
    )


def _pair_steps(a: list[StepTime], b: list[StepTime]) -> list[tuple[int, int]]:
    """Positions of steps of the same rank, mode and order within them."""

    def grouped(steps: list[StepTime]) -> dict[tuple[int, str], list[int]]:
        out: dict[tuple[int, str], list[int]] = defaultdict(list)
        for at, step in enumerate(steps):
            out[step.rank, step.mode].append(at)
        return out

    first, second = grouped(a), grouped(b)
    ranks = {rank for rank, _ in first}, {rank for rank, _ in second}
    if not ranks[0] & ranks[1] and len(ranks[0]) == len(ranks[1]) == 1:
        only = next(iter(ranks[0]))
        second = {(only, mode): steps for (_, mode), steps in second.items()}
    return [pair for key, steps in first.items() for pair in zip(steps, second.get(key, []), strict=False)]


def _step_pair(a: StepTime, b: StepTime) -> StepPair:
    return StepPair(a.mode, a.label, b.label, a.wall_ns, b.wall_ns, b.wall_ns - a.wall_ns)


def _account(part: Part) -> dict[str, int]:
    """The wall of one part as a sum: work by category, less what overlapped, plus idle by cause."""
    line, busy = part.timeline, part.busy
    ids = category_ids(line)
    dur = np.where(line.busy_mask, line.dur_ns, 0)
    out = {f"work: {name}": int(dur[ids == at].sum()) for at, name in enumerate(CATEGORIES)}
    out["overlap inside a stream"] = busy.sum_busy_ns - busy.sum_dur_ns
    out["overlap between streams"] = busy.union_busy_ns - busy.sum_busy_ns
    idle = dict.fromkeys(CAUSES, 0)
    for gap in idle_gaps(line) if len(np.unique(line.rank)) < 2 else []:
        idle[gap.cause] += gap.dur_ns
    idle["unknown"] += busy.wall_ns - busy.union_busy_ns - sum(idle.values())
    return {**out, **{f"idle: {cause}": ns for cause, ns in idle.items()}}


def _sum_bars(accounts: list[dict[str, int]]) -> dict[str, int]:
    return {what: sum(account[what] for account in accounts) for what in accounts[0]}


def _profile(parts: list[Part], label: str) -> Side:
    found = [part.busy for part in parts]
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


def _sums(parts: list[Part]) -> dict[tuple[str, int], _Sum]:
    out: dict[tuple[str, int], _Sum] = defaultdict(_Sum)
    for part in parts:
        rows = np.flatnonzero(part.timeline.busy_mask)
        side = np.zeros(len(rows), np.bool_)
        if part.busy.streams:
            side = ~np.isin(part.timeline.stream[rows], part.mains)
        _add(out, part.timeline, rows, part.timeline.layer[rows], side)
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
    time = np.zeros((2, len(first)), np.int64)
    np.add.at(time, (side.astype(np.int64), group), part.dur_ns[rows])
    count = np.bincount(group)
    for at, one in enumerate(first.tolist()):
        total = out[part.names[part.name[rows[one]]], int(layers[one])]
        total.rows += int(count[at])
        total.ns += int(time[:, at].sum())
        total.side_ns += int(time[1, at])


def _match_work(a: list[Part], b: list[Part], labels: tuple[str, str]) -> tuple[list[WorkPair], list[Unmatched]]:
    """Pair by layer and full name, then what is left by layer and base name where that is unique on both sides."""
    sums = _sums(a), _sums(b)
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
