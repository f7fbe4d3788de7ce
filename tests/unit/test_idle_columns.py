"""Causes of idle time in columns against judging every gap by itself."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4lab.timeline.timeline import UNKNOWN, Kind, Timeline
from dsv4lab.trace.analyse.idle import LAUNCHING_NS, Gap, idle_gaps

ROW = st.tuples(
    st.integers(0, 400_000),  # start
    st.integers(0, 60_000),  # duration
    st.integers(-1, 2),  # stream
    st.sampled_from([0, 0, 0, 1, 3, 4, 4]),  # kind
    st.integers(0, 1),  # rank
    st.one_of(st.just(-1), st.integers(0, 400_000)),  # queued
    st.integers(-1, 4),  # correlation
)


def one_by_one(line: Timeline) -> list[Gap]:
    out: list[Gap] = []
    for rank in (0, 1):
        rows = [int(r) for r in np.flatnonzero(line.busy_mask & (line.dur_ns > 0) & (line.rank == rank))]
        rows.sort(key=lambda r: (int(line.start_ns[r]), r))
        calls = sorted(line.end_ns[(line.kind == int(Kind.HOST)) & (line.rank == rank)].tolist())
        last: int | None = None
        for row in rows:
            if last is not None and line.start_ns[row] > line.end_ns[last]:
                out += judged(line, last, row, calls)
            if last is None or line.end_ns[row] >= line.end_ns[last]:
                last = row
    return sorted(out, key=lambda g: (g.start_ns, g.rank))


def judged(line: Timeline, before: int, after: int, calls: list[int]) -> list[Gap]:
    begin, end, queued = int(line.end_ns[before]), int(line.start_ns[after]), int(line.queued_ns[after])

    def parts(*pieces: tuple[int, int, str]) -> list[Gap]:
        names = line.names[line.name[before]], line.names[line.name[after]]
        return [Gap(int(line.rank[after]), a, b - a, cause, *names) for a, b, cause in pieces if b > a]

    if line.correlation[before] == line.correlation[after] != UNKNOWN and queued <= begin:
        return parts((begin, end, "inside graph"))
    if queued == UNKNOWN:
        return parts((begin, end, "unknown"))
    if queued <= begin:
        own = line.stream[before] == line.stream[after]
        return parts((begin, end, "kernel gap" if own else "other stream"))
    launch = min(queued, end)
    if not calls:
        return parts((begin, launch, "host gap"), (launch, end, "launch-bound"))
    since = max([begin, *(c for c in calls if c <= launch)])
    if launch - since <= LAUNCHING_NS:
        return parts((begin, end, "launch-bound"))
    return parts((begin, since, "launch-bound"), (since, launch, "host gap"), (launch, end, "launch-bound"))


@settings(max_examples=150)
@given(st.lists(ROW, max_size=20))
def test_every_gap_has_the_cause_that_it_has_alone(rows: list[tuple[int, ...]]) -> None:
    start, dur, stream, kind, rank, queued, correlation = (np.array([r[i] for r in rows], np.int64) for i in range(7))
    line = Timeline.build(
        start_ns=start, dur_ns=dur, stream=stream, kind=kind, rank=rank, queued_ns=queued, correlation=correlation,
        name=np.arange(len(rows)) % 3, names=("a", "b", "c"), streams=("x", "y", "z"),
    )  # fmt: skip
    assert idle_gaps(line) == one_by_one(line)
