"""Kernels by themselves and in pairs, from ``kernels/bench/pairs.py``: what one does ahead if it is launched early, and
what they lose beside each other. No decode step is in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any, NamedTuple

from dsv4lab.errors import TraceError
from dsv4lab.predict.kernel_rows import PLACES, Replay, asked
from dsv4lab.predict.replay_plan import FLOOR_US, LEAST_US
from dsv4lab.queues.costs import Machine, with_values
from dsv4lab.queues.policies import HIGH
from dsv4lab.queues.simulate import simulate
from dsv4lab.queues.workload import Cost, Workload
from dsv4lab.timeline.program import MAIN

TICK = "_tick_kernel"
FRAMEWORK = "at::native"
AHEAD_OF_TICK_US = 1.0
"""A kernel that begins so long before the tick in front of it ends was launched early."""
TURNS = 4
SLOWS = tuple(n / 10 for n in range(11))
HELD_OUT = ("pro8", 8)
"""The shape and the number of tokens whose pairs no value is determined from: they judge it."""
STREAMS = {"main": MAIN, "side": "side0"}
PAIRS = ("pair", "step")
EDGE_US = 0.24
"""From the end of a tick to what begins behind it: alike on both streams, so that they begin in order of recording."""
SM_BYTES = 228 * 1024
TICK_US = 5.0
"""What a tick in front of a step takes, about: long enough that what is launched early has its places."""


def reduced(replays: Sequence[Replay], repeat: int) -> list[dict[str, Any]]:
    """Medians over the ``repeat`` equal steps of each replay: kernels in order of start, times from the end of a step's
    first kernel. The framework's own (memory that is cleared once) are left out.

    Raises:
        TraceError: a replay is not so many steps.

    """
    found: dict[tuple[str, int, int], list[tuple[float, float]]] = {}
    shapes: dict[tuple[str, int, int], tuple[float, float, float]] = {}
    for replay in replays:
        own = [row for row in replay if FRAMEWORK not in row.name]
        size, rest = divmod(len(own), repeat)
        if rest:
            raise TraceError(f"{len(own)} kernels of a replay are not {repeat} equal steps")
        for at in range(0, len(own), size):
            step, count = own[at : at + size], dict[tuple[str, int], int]()
            for row in step[1:]:
                n = count[row.name, row.blocks] = count.get((row.name, row.blocks), 0) + 1
                key = (row.name, row.blocks, n)
                found.setdefault(key, []).append((row.start_us - step[0].end_us, row.end_us - step[0].end_us))
                shapes[key] = row.footprint, row.shared, row.prefers
    rows: list[dict[str, Any]] = [
        {
            "name": key[0], "blocks": key[1], "start_us": round(median(start for start, _ in times), 2),
            "end_us": round(median(end for _, end in times), 2),
            "footprint": round(shapes[key][0], 6), "shared": round(shapes[key][1], 6), "prefers": shapes[key][2],
        }
        for key, times in found.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (row["start_us"], row["end_us"]))


@dataclass(frozen=True, slots=True)
class _Kernel:
    """``lead_us`` from the end of the one before it; ``early_us``: what it adds behind that end when it is launched
    early, None if it never is.
    """

    cost: Cost
    lead_us: float
    early_us: float | None


class _Packet(NamedTuple):
    name: str
    stream: str
    cost: Cost
    lead_us: float
    early: bool
    waits: tuple[int, ...] = ()


class Pairs:
    """The file's document: ``rows`` by what they are of, ``bytes`` by op and tokens."""

    def __init__(self, data: Mapping[str, Any], on: Machine) -> None:
        self.rows: list[Mapping[str, Any]] = list(data["rows"])
        self.bytes: Mapping[str, float] = data["bytes"]
        self.rate = on["bandwidth_gbps"] * on["roof_share"] * 1e3
        self.on = with_values(
            on, {"gap_us": 0.0, "graph_us": 0.0, "graph_submit_us": 0.0, "signal_device_us": 0.0}
        )  # leads from the end of a tick have the signal in them
        self._alone = {(r["kind"], r["name"], r["tokens"]): r["kernels"] for r in self.rows if r["kind"] != "chain"}
        self._chains = {(r["name"], r["tokens"], r["trigger"]): r["kernels"] for r in self.rows if r["kind"] == "chain"}
        self.pairs = [row for row in self.rows if row["kind"] in PAIRS]

    def ahead_us(self) -> float:
        """What a kernel does before the one in front of it ends: median over ops that can be launched early."""
        found: list[float] = []
        for (kind, name, tokens), (first, *_) in self._alone.items():
            if kind == "early" and first["start_us"] < -AHEAD_OF_TICK_US:
                edge = self._alone["edge", name, tokens][0]
                found.append(edge["end_us"] - edge["start_us"] - first["end_us"])
        return median(found)

    def dispatch_us(self) -> float:
        """Between the starts of two ticks, one on each stream: median over rows."""
        chains = [row["kernels"] for row in self.rows if "after_us" in row]
        ticks: list[list[float]] = [[k["start_us"] for k in kernels if k["name"] == TICK] for kernels in chains]
        return median(two[1] - two[0] for two in ticks if len(two) > 1)

    def errors(self, rows: Sequence[Mapping[str, Any]] = (), **values: float) -> list[float]:
        """Simulated less measured microseconds with these values of the machine, of each of ``rows`` (all pairs): when
        each stream ends, or the later one where their kernels cannot be told apart.
        """
        on = with_values(self.on, values)
        found: list[float] = []
        for row in rows or self.pairs:
            simulated, seen = self._simulated(row, on), self._seen(row)
            found += [simulated[stream] - end for stream, end in seen.items()]
        return found

    def _simulated(self, row: Mapping[str, Any], on: Machine) -> dict[str, float]:
        """When each stream ends, and the later one (``""``), simulated with a tick that takes as long as it did."""
        work = self._step(row) if row["kind"] == "step" else self._workload(row)
        ticks = [k for k in row["kernels"] if k["name"] == TICK]
        for _ in range(TURNS):
            times = simulate(work, on, torch=True).times
            if not ticks or TICK not in work.names:
                break
            at = work.names.index(TICK)
            cost, wanted = work.costs[at], ticks[0]["end_us"] - ticks[0]["start_us"]
            us = cost.us * wanted * 1e3 / (times.end[at] - times.start[at])
            work = replace(work, costs=(*work.costs[:at], replace(cost, us=us), *work.costs[at + 1 :]))
        begun = times.end[0] if row["kind"] == "step" else 0.0
        ends = {
            label: max(end for end, at in zip(times.end, work.streams, strict=True) if at == stream)
            for label, stream in STREAMS.items()
        }
        return {label: (end - begun) / 1e3 for label, end in {**ends, "": max(ends.values())}.items()}

    def _seen(self, row: Mapping[str, Any]) -> dict[str, float]:
        """The same as measured, as far as names and sizes of kernels tell whose they are."""
        own = {
            label: {(k["name"], k["blocks"]) for op in row[label] for k in self._alone["edge", op, row["tokens"]]}
            for label in STREAMS
        }
        if own["main"] & own["side"]:
            return {"": max(k["end_us"] for k in row["kernels"])}
        return {
            label: max(k["end_us"] for k in row["kernels"] if (k["name"], k["blocks"]) in kernels)
            for label, kernels in own.items()
        }

    def steps(self, *, held_out: bool) -> list[Mapping[str, Any]]:
        """What plans have side by side on streams of one priority: what is held out, or the rest."""
        rows = (row for row in self.pairs if row["kind"] == "step" and not row["high"])
        return [row for row in rows if (row["model"] == HELD_OUT[0] or row["tokens"] == HELD_OUT[1]) == held_out]

    def mean_error(self, rows: Sequence[Mapping[str, Any]], **values: float) -> float:
        """Mean of the absolute errors of ``rows``, each as a share of how long its pair takes."""
        found: list[float] = []
        for row in rows:
            whole = max(self._seen(row).values())
            found += [abs(error) / whole for error in self.errors([row], **values)]
        return fmean(found)

    def corun_slow(self, values: Sequence[float] = SLOWS) -> float:
        """The one of ``values`` with which the steps that are not held out are simulated best."""
        rows = self.steps(held_out=False)
        return min(values, key=lambda value: self.mean_error(rows, corun_slow=value))

    def _chain(self, ops: Sequence[str], tokens: int, *, trigger: bool) -> list[_Kernel]:
        """The kernels of ``ops`` in a row; where they ran so by themselves, with the times they had there. The first of
        a chain behind a ``trigger`` is its op's.
        """
        kernels = [kernel for op in ops for kernel in self._op(op, tokens)]
        name = " ".join(ops)
        whole = self._chains.get((name, tokens, trigger), self._chains.get((name, tokens, not trigger)))
        if whole is None:
            return kernels
        rows = [row for row in whole if row["name"] != TICK]
        ticks = [row["end_us"] for row in whole if row["name"] == TICK and row["end_us"] <= rows[0]["start_us"]]
        found, end = [], min(ticks, default=0.0)
        for n, (kernel, row) in enumerate(zip(kernels, rows, strict=True)):
            moved = kernel.cost.bandwidth * kernel.cost.us * self.rate
            own = n == 0 and (trigger or row["start_us"] < end)
            found.append(kernel if own else self._kernel(row, end, kernel.early_us, moved))
            end = row["end_us"]
        return found

    def _op(self, op: str, tokens: int) -> list[_Kernel]:
        early, edge = (self._alone[kind, op, tokens] for kind in ("early", "edge"))
        starts = [0.0, *(row["end_us"] for row in edge)]
        beyond = [
            max(0.0, row["end_us"] - max(row["start_us"], s) - FLOOR_US) for row, s in zip(edge, starts, strict=False)
        ]
        found, end = [], 0.0
        for n, (row, ahead, more) in enumerate(zip(edge, early, beyond, strict=True)):
            first = None if n or ahead["start_us"] > -AHEAD_OF_TICK_US else ahead["end_us"]
            found.append(self._kernel(row, end, first, self.bytes[f"{op} {tokens}"] * more / (sum(beyond) or 1.0)))
            end = row["end_us"]
        return found

    def _kernel(self, row: Mapping[str, Any], end: float, early_us: float | None, moved: float) -> _Kernel:
        """From its row, and the ``end`` of the kernel before it, which it may have begun before."""
        lead = row["start_us"] - end
        us = max(LEAST_US, row["end_us"] - (end if lead < 0 else row["start_us"]))
        cost = Cost(
            us, min(1.0, row["blocks"] / self.on["cus"]), min(1.0, moved / (us * self.rate)), blocks=row["blocks"],
            footprint=row["footprint"], shared=row["shared"],
            prefers=asked({row["name"]: 100 * row.get("prefers", 0.0)}, row["name"], row["shared"] * SM_BYTES),
        )  # fmt: skip
        return _Kernel(cost, max(0.0, lead), us if lead < 0 else early_us)

    def _step(self, row: Mapping[str, Any]) -> Workload:
        """A tick, both chains behind it, the main one launched early if its first kernel can be."""
        packets = [_Packet(TICK, MAIN, Cost(TICK_US, blocks=1, footprint=1 / PLACES), 0.0, False)]
        for label, stream in STREAMS.items():
            for n, kernel in enumerate(self._chain(row[label], row["tokens"], trigger=label == "main")):
                early = kernel.early_us is not None and (label == "main" if n == 0 else kernel.lead_us == 0)
                cost = _of(kernel.cost, kernel.early_us) if early and kernel.early_us else kernel.cost
                waits = (0,) if n == 0 and label == "side" else ()
                packets.append(_Packet(str(n), stream, cost, 0.0 if early else kernel.lead_us, early, waits))
        high = [STREAMS["side"]] if row.get("high") else []
        return replace(_of_packets(packets), priorities=dict.fromkeys(high, HIGH))

    def _workload(self, row: Mapping[str, Any]) -> Workload:
        """Both chains. A tick that lets the next kernel be launched early is a kernel; another only takes its time."""
        packets: list[_Packet] = []
        ticks = [k for k in row["kernels"] if k["name"] == TICK]
        after = row["after_us"]
        for label, stream in STREAMS.items():
            tick = None if label not in after else ticks[-1] if label == "side" else ticks[0]
            behind = tick is not None and "side" not in after
            if tick is not None and behind:
                us = tick["end_us"] - tick["start_us"]
                cost = Cost(us, blocks=1, footprint=tick["footprint"], shared=tick["shared"])
                packets.append(_Packet(TICK, stream, cost, tick["start_us"], False))
            for n, kernel in enumerate(self._chain(row[label], row["tokens"], trigger=False)):
                if kernel.early_us is not None and (behind if n == 0 else kernel.lead_us == 0):
                    packets.append(_Packet(str(n), stream, _of(kernel.cost, kernel.early_us), 0.0, True))
                else:
                    wait = tick["end_us"] if tick is not None and not behind and n == 0 else 0.0
                    lead = EDGE_US if n == 0 and tick is None else kernel.lead_us + wait
                    packets.append(_Packet(str(n), stream, kernel.cost, lead, False))
        return _of_packets(packets)


def _of_packets(packets: Sequence[_Packet]) -> Workload:
    names, streams, costs, leads, early, waits = zip(*packets, strict=True)
    n = len(packets)
    return Workload(names, (-1,) * n, streams, waits, costs, ("kernel",) * n, (0,) * n, lead_us=leads, early=early)


def _of(cost: Cost, us: float) -> Cost:
    """``cost`` in ``us`` microseconds, with the same bytes."""
    return replace(cost, us=us, bandwidth=min(1.0, cost.bandwidth * cost.us / us))
