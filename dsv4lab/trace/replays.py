"""Which op a replayed kernel belongs to: a graph's kernels matched with those of an eager run of the same program.

A replay knows no ops. What is known: the kernels of each op (from an eager run), the order of a stream, and the waits
between streams. Kernels of one stream start in its order, so a replay in order of start times is an interleaving of
the streams' kernel sequences that respects the waits. All interleavings that fit are followed at once; a kernel has an
op if they all agree on it. Nothing is guessed: a replay that does not fit has no ops, and the text says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from dsv4lab.timeline.program import StreamProgram
from dsv4lab.timeline.timeline import UNKNOWN

Key = Hashable
"""What a kernel looks like, in an eager run and in a replay: see :func:`kernel_key`."""

MAX_STATES = 512
_ONE_LANE = "each op on one lane"
_COPY, _FILL = ("copy",), ("fill",)


def kernel_key(name: str, grid: object, block: object) -> Key:
    """Name and launch shape. Copies and fills are all alike: replays run them as kernels of the driver's own."""
    start = name[:6].lower()
    if start == "memcpy":
        return _COPY
    if start == "memset":
        return _FILL
    shape = (tuple(s) if isinstance(s, list) else s for s in (grid, block))
    return (name, *shape)


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """A kernel of a replay: its key, the lane that it ran on, and its graph node where the profiler tells it."""

    key: Key
    lane: Hashable
    node: int | None = None


@dataclass(slots=True)
class Matched:
    """Op by row (``UNKNOWN`` where several fit), ``how`` it was found, and why not: ``problem``, empty if it fits."""

    ops: list[int] = field(default_factory=list)
    how: str = ""
    problem: str = ""

    @property
    def unsure(self) -> int:
        """Rows that could be of either of several ops."""
        return self.ops.count(UNKNOWN)


class GraphKernels:
    """The kernels of one graph: ``kernels[i]`` are those of op ``i`` of ``program``, in order."""

    def __init__(self, program: StreamProgram, kernels: Sequence[Sequence[Key]]) -> None:
        self._kernels = kernels
        self._streams = {name: at for at, name in enumerate(program.streams)}
        self._chains: list[list[tuple[Key, int, bool, bool]]] = [[] for _ in program.streams]
        """By stream: key, op, whether it is the op's first and its last kernel."""
        self._needs: list[tuple[int, ...]] = []
        """By op: how many kernels of each stream come before its first."""
        ends: list[list[int]] = []
        last: dict[str, int] = {}
        for i, op in enumerate(program.ops):
            stream, own = self._streams[op.stream], kernels[i]
            before = [*op.waits, *([last[op.stream]] if op.stream in last else [])]
            need = [max((ends[w][s] for w in before), default=0) for s in range(len(self._streams))]
            need[stream] = len(self._chains[stream])
            self._chains[stream] += [(key, i, n == 0, n == len(own) - 1) for n, key in enumerate(own)]
            self._needs.append(tuple(need))
            need[stream] = len(self._chains[stream])
            ends.append(need)
            last[op.stream] = i

    def match(self, replays: Sequence[Sequence[ReplayRow]]) -> list[Matched]:
        """Ops of the rows of each of ``replays``, rows in order of start.

        Where replays have the same lanes, a place on a lane is the same node in all of them, so that they are told
        apart together.
        """
        out = [self._match(rows) for rows in replays]
        for at, told in _together(replays, out):
            found = self._interleave(replays[at], one_lane=out[at].how.endswith(_ONE_LANE), told=told)
            if isinstance(found, list):  # else the lanes are no proof, and each replay has what it tells itself
                out[at].ops = found
        return out

    def _match(self, rows: Sequence[ReplayRow]) -> Matched:
        problem = self._difference(rows)
        if problem:
            return Matched([UNKNOWN] * len(rows), "", problem)
        by_node = self._by_node(rows)
        if by_node is not None:
            return Matched(by_node, "by graph node")
        for one_lane, how in ((True, f"in order, {_ONE_LANE}"), (False, "in order")):
            found = self._interleave(rows, one_lane=one_lane)
            if isinstance(found, str):
                return Matched([UNKNOWN] * len(rows), "", found)
            if found is not None:
                return Matched(found, how)
        return Matched([UNKNOWN] * len(rows), "", "its kernels start in an order that the program does not allow")

    def _difference(self, rows: Sequence[ReplayRow]) -> str:
        learnt = Counter(key for keys in self._kernels for key in keys)
        found = Counter(row.key for row in rows)
        if learnt == found:
            return ""
        parts = [f"{_said(key)} {n:+d}" for key, n in _delta(found, learnt)[:3]]
        return f"{len(rows)} kernels, {learnt.total()} in an eager run of the same ops ({', '.join(parts)})"

    def _by_node(self, rows: Sequence[ReplayRow]) -> list[int] | None:
        """Nodes are numbered in the order of recording; None unless that gives exactly the kernels of the program."""
        if any(row.node is None for row in rows) or len({row.node for row in rows}) < len(rows):
            return None
        order = sorted(range(len(rows)), key=lambda at: rows[at].node or 0)
        recorded = [(key, op) for op, keys in enumerate(self._kernels) for key in keys]
        if [rows[at].key for at in order] != [key for key, _ in recorded]:
            return None
        out = [UNKNOWN] * len(rows)
        for at, (_, op) in zip(order, recorded, strict=True):
            out[at] = op
        return out

    def _interleave(
        self, rows: Sequence[ReplayRow], *, one_lane: bool, told: Sequence[int] | None = None
    ) -> list[int] | str | None:
        """The op of each row in all interleavings that fit; None if none does, a text if there are too many.

        Those that do not agree with ``told``, where it has an op, do not fit.
        """
        width = len(self._chains)
        first: tuple[tuple[int, ...], tuple[Hashable, ...]] = ((0,) * width, (None,) * width)
        layers = [{first: [(first, UNKNOWN)]}]
        for row, known in zip(rows, told or [UNKNOWN] * len(rows), strict=True):
            layer: dict[_State, list[tuple[_State, int]]] = {}
            for state in layers[-1]:
                for following, op in self._following(state, row, one_lane=one_lane):
                    if known not in (UNKNOWN, op):
                        continue
                    layer.setdefault(following, []).append((state, op))
            if not layer:
                return None
            if len(layer) > MAX_STATES:
                return "too many ways to assign its kernels"
            layers.append(layer)
        alive, out = set(layers[-1]), [UNKNOWN] * len(rows)
        for at in reversed(range(len(rows))):
            came = [origin for state in alive for origin in layers[at + 1][state]]
            ops = {op for _, op in came}
            alive = {state for state, _ in came}
            out[at] = ops.pop() if len(ops) == 1 else UNKNOWN
        return out

    def _following(self, state: _State, row: ReplayRow, *, one_lane: bool) -> list[tuple[_State, int]]:
        heads, lanes = state
        out = []
        for stream, chain in enumerate(self._chains):
            if heads[stream] == len(chain) or chain[heads[stream]][0] != row.key:
                continue
            _, op, begins, ends = chain[heads[stream]]
            if begins and any(h < n for h, n in zip(heads, self._needs[op], strict=True)):
                continue
            if one_lane and not begins and lanes[stream] != row.lane:
                continue
            lane = None if ends or not one_lane else row.lane
            moved = (*heads[:stream], heads[stream] + 1, *heads[stream + 1 :])
            out.append(((moved, (*lanes[:stream], lane, *lanes[stream + 1 :])), op))
        return out


_State = tuple[tuple[int, ...], tuple[Hashable, ...]]


def _together(replays: Sequence[Sequence[ReplayRow]], found: Sequence[Matched]) -> list[tuple[int, list[int]]]:
    """For replays with open places, what replays with the same lanes know of these places, if they agree."""
    groups: dict[Hashable, list[int]] = {}
    for at, rows in enumerate(replays):
        if not found[at].problem:
            groups.setdefault(frozenset(_places(rows).items()), []).append(at)
    out = []
    for members in groups.values():
        told: dict[Hashable, set[int]] = {}
        for at in members:
            for place, op in zip(_places(replays[at]), found[at].ops, strict=True):
                told.setdefault(place, set()).update({op} - {UNKNOWN})
        for at in members:
            ops = [told[place] for place in _places(replays[at])]
            if found[at].unsure:
                out.append((at, [next(iter(op)) if len(op) == 1 else UNKNOWN for op in ops]))
    return out


def _places(rows: Sequence[ReplayRow]) -> dict[tuple[Hashable, int], Key]:
    """Lane and place on it, with the kernel there, in order of the rows."""
    counts: Counter[Hashable] = Counter()
    out = {}
    for row in rows:
        out[row.lane, counts[row.lane]] = row.key
        counts[row.lane] += 1
    return out


def _delta(found: Counter[Key], learnt: Counter[Key]) -> list[tuple[Key, int]]:
    keys = [*found, *(key for key in learnt if key not in found)]
    return [(key, found[key] - learnt[key]) for key in keys if found[key] != learnt[key]]


def _said(key: Key) -> str:
    if not isinstance(key, tuple):
        return str(key)
    name = str(key[0]).removeprefix("void ")
    return name if len(name) <= 40 else f"{name[:37]}..."
