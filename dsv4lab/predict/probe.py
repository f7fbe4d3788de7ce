"""What a probe measures, and what its times mean. Pure: a device, or the queue model, comes in as a function.

The rows are those that ``calibrate`` fits a device's costs to; beside them stands what they say by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from dsv4lab.predict.cpu_probe import CpuProbe
from dsv4lab.predict.setting import GPUS

SCHEMA = 1
TINY_US, SPIN_US = 1.0, 2000.0
KEPT_COUNTS = (1, 2, 4, 8, 16, 32)
MOST_PAIRED = 8
REPEAT = 20
SHARED = 1.5
"""Two spins beside each other that take so many times one of them ran one after the other."""

Measure = Callable[[Mapping[str, Any], str], float]
"""``measure(document, clock)``: microseconds; see :class:`dsv4lab.overlap.spin.SpinBench`."""


@dataclass(frozen=True, slots=True)
class Found:
    """``queues``: streams that truly run at once, ``at_least`` so many if no stream waited for another.
    ``groups``: side streams that share a queue, singletons left out. In microseconds, ``period``: from kernel to kernel
    in a stream, within a graph and eagerly; ``fork_join``: what a pair on two streams takes beyond the longer kernel;
    ``graph``: fixed cost of a replay; ``waiter``: what each launch of a stream costs more while another stream waits.
    """

    queues: int
    at_least: bool
    groups: tuple[tuple[int, ...], ...]
    period_us: float
    eager_period_us: float
    fork_join_us: float
    graph_us: float
    waiter_us: float

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "queues": self.queues,
            "at_least": self.at_least,
            "shared_queues": [list(group) for group in self.groups],
            "period_us": self.period_us,
            "eager_period_us": self.eager_period_us,
            "fork_join_us": self.fork_join_us,
            "graph_us": self.graph_us,
            "waiter_us": self.waiter_us,
        }


def _op(name: str, stream: str, after: Sequence[str] = (), us: float = TINY_US, count: int = 1) -> dict[str, Any]:
    return {
        "name": name, "stream": stream, "after": list(after), "duration_us": us, "workgroups": 1, "count": count
    }  # fmt: skip


def chain(kernels: int, launch: str = "graph", repeat: int = 1) -> dict[str, Any]:
    """Tiny kernels in a row on one stream."""
    return {
        "name": f"chain of {kernels}",
        "launch": launch,
        "repeat": repeat,
        "ops": [_op("k", "main", count=kernels)],
    }


def pairs(count: int, *, two_streams: bool, us: float = 4 * TINY_US) -> dict[str, Any]:
    """Pairs of kernels; both of a pair follow both of the one before."""
    ops = []
    side = "side0" if two_streams else "main"
    for i in range(count):
        before = [f"a{i - 1}", f"b{i - 1}"] if i else []
        ops += [_op(f"a{i}", "main", before, us), _op(f"b{i}", side, before, us)]
    return {"name": f"{count} pairs on {'two streams' if two_streams else 'one'}", "launch": "graph", "ops": ops}


def waiter(kernels: int, *, blocked: bool) -> dict[str, Any]:
    """A chain, with or without another stream that waits for its end."""
    ops = [_op("k", "main", count=kernels)] + ([_op("w", "side0", ["k"])] if blocked else [])
    return {"name": f"chain of {kernels} {'beside a waiter' if blocked else 'alone'}", "launch": "eager", "ops": ops}


def at_once(streams: Sequence[int]) -> dict[str, Any]:
    """One long kernel on each of these side streams, none waiting for another."""
    ops = [_op(f"k{n}", f"side{n}", us=SPIN_US) for n in streams]
    return {"name": f"spin on side streams {', '.join(map(str, streams))}", "launch": "eager", "ops": ops}


def probe(
    measure: Measure, side_streams: int, runtime: str | None = None, hw_queues: int | None = None
) -> tuple[list[dict[str, Any]], Found]:
    """Measure all of it on ``side_streams`` side streams, at least one: rows of a probe's file, and what they say."""
    rows: list[dict[str, Any]] = []

    def take(document: dict[str, Any], *, keep: bool = True) -> float:
        found = measure(document, "gpu")
        if keep:
            row = {"name": document["name"], "program": document, "measured_us": found, "clock": "gpu"}
            rows.append(
                row | ({"runtime": runtime} if runtime else {}) | ({"hw_queues": hw_queues} if hw_queues else {})
            )
        return found

    one, many = take(chain(16, repeat=REPEAT)), take(chain(64, repeat=REPEAT))
    period = (many - one) / (48 * REPEAT)
    serial, forked = take(pairs(32, two_streams=False)), take(pairs(32, two_streams=True))
    eager = take(chain(256, "eager")) / 256
    alone, beside = take(waiter(128, blocked=False)), take(waiter(128, blocked=True))
    times = {n: take(at_once(range(n)), keep=n in KEPT_COUNTS) for n in range(1, side_streams + 1)}
    each = times[1]
    queues, at_least = queues_of(times, each)
    paired = range(min(side_streams, MOST_PAIRED))
    together = {(a, b): take(at_once((a, b)), keep=False) for a, b in combinations(paired, 2)}
    return rows, Found(
        queues=queues,
        at_least=at_least,
        groups=sharing(together, each),
        period_us=period,
        eager_period_us=eager,
        fork_join_us=forked / 32 - serial / 64,
        graph_us=one / REPEAT - 16 * period,
        waiter_us=max(0.0, (beside - alone) / 128),
    )


def queues_of(times: Mapping[int, float], each: float) -> tuple[int, bool]:
    """How many streams run at once, from the time of ``n`` kernels of ``each`` us on ``n`` streams: the number whose
    waves fit best; and whether even the most streams ran in one wave, so that there may be more.
    """
    most = max(times)
    errors = {q: sum((t - -(-n // q) * each) ** 2 for n, t in times.items()) for q in range(1, most + 1)}
    best = min(errors, key=lambda q: (errors[q], q))
    return best, best == most


def sharing(together: Mapping[tuple[int, int], float], each: float) -> tuple[tuple[int, ...], ...]:
    """Streams that run one after the other, in groups, from the times of pairs."""
    group: dict[int, set[int]] = {}
    for (a, b), us in together.items():
        if us > SHARED * each:
            joined = group.get(a, {a}) | group.get(b, {b})
            group |= dict.fromkeys(joined, joined)
    return tuple(sorted({tuple(sorted(members)) for members in group.values()}))


def probe_file(
    device: str | None, machine: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], found: Mapping[str, Any]
) -> dict[str, Any]:
    """The document that ``calibrate`` reads; ``found`` is for the reader."""
    named = {} if device is None else {"device": device}
    return {"schema": SCHEMA, **named, "machine": dict(machine), "found": dict(found), "rows": list(rows)}


def cpu_rows(found: CpuProbe, hops: int = 64) -> list[dict[str, Any]]:
    """The CPU device's probe as rows: two streams that wait for each other in turn."""
    ops = [_op(f"h{i}", ("main", "side0")[i % 2], [f"h{i - 1}"] if i else [], us=0.0) for i in range(hops)]
    program = {"name": "ping-pong", "launch": "graph", "ops": ops}
    return [{"name": "ping-pong", "program": program, "measured_us": (hops - 1) * found.handoff_us, "clock": "gpu"}]


def model_device(gpu: str) -> str | None:
    """The queue model's device for a GPU of this name."""
    return next((device for device in GPUS if device in gpu.lower()), None)


def ordering_edges(maps: str, read: Callable[[str], bytes]) -> tuple[str, bool] | None:
    """Of a process with ROCm: the HIP library that is really loaded, and whether it knows ordering edges
    (rocm-systems#11212). ``maps`` is the text of ``/proc/self/maps``. None without a HIP library.
    """
    libraries = [line.split(maxsplit=5)[-1] for line in maps.splitlines() if "libamdhip64" in line]
    if not libraries:
        return None
    return libraries[0], b"DEBUG_CLR_DISABLE_ORDERING_EDGE" in read(libraries[0])
