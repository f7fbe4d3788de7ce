"""Kernels by themselves and in pairs, from ``kernels/bench/pairs.py``: what one does ahead if it is launched early, and
what they lose beside each other. No decode step is in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any, NamedTuple

from dsv4lab.errors import TraceError
from dsv4lab.predict.kernel_rows import Replay
from dsv4lab.queues.costs import Machine, with_values
from dsv4lab.queues.simulate import simulate
from dsv4lab.queues.workload import Cost, Workload
from dsv4lab.timeline.program import MAIN

TICK = "_tick_kernel"
FRAMEWORK = "at::native"
AHEAD_OF_TICK_US = 1.0
"""A kernel that begins so long before the tick in front of it ends was launched early."""
LOSSES, TURNS = tuple(n / 100 for n in range(26)), 4
STREAMS = {"main": MAIN, "side": "side0"}


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


class Pairs:
    """The file's document: ``rows`` by what they are of, ``bytes`` by op and tokens, then by kernel."""

    def __init__(self, data: Mapping[str, Any], on: Machine) -> None:
        self.rows: list[Mapping[str, Any]] = list(data["rows"])
        self.bytes: Mapping[str, Mapping[str, float]] = data["bytes"]
        self.rate = on["bandwidth_gbps"] * on["roof_share"] * 1e3
        self.on = with_values(on, {"gap_us": 0.0, "graph_us": 0.0, "graph_submit_us": 0.0})
        self._alone = {(r["kind"], r["name"], r["tokens"]): r["kernels"] for r in self.rows}

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

    def errors(self, loss: float) -> dict[str, float]:
        """Simulated less measured microseconds of each pair, with this loss of kernels beside each other."""
        on = with_values(self.on, {"corun_loss": loss})
        return {
            f"{row['name']} {row['tokens']} {row['after_us']}": self._end(row, on)
            - max(k["end_us"] for k in row["kernels"])
            for row in self.rows
            if row["kind"] == "pair"
        }

    def _end(self, row: Mapping[str, Any], on: Machine) -> float:
        """When a pair ends in a simulation in which its tick takes as long as it did."""
        work = self._workload(row)
        ticks = [k for k in row["kernels"] if k["name"] == TICK]
        for _ in range(TURNS):
            times = simulate(work, on, torch=True).times
            if TICK not in work.names:
                break
            at = work.names.index(TICK)
            cost, wanted = work.costs[at], ticks[0]["end_us"] - ticks[0]["start_us"]
            us = cost.us * wanted * 1e3 / (times.end[at] - times.start[at])
            work = replace(work, costs=(*work.costs[:at], replace(cost, us=us), *work.costs[at + 1 :]))
        return max(times.end) / 1e3

    def corun_loss(self) -> float:
        """The loss with which pairs are simulated best: least mean absolute error, as in a few of them the model has
        workgroups in another order than they had.
        """
        return min(LOSSES, key=lambda loss: fmean(map(abs, self.errors(loss).values())))

    def _chain(self, ops: Sequence[str], tokens: int) -> list[_Kernel]:
        """The kernels of ``ops`` in a row; where they ran so by themselves, with the times they had there."""
        kernels = [kernel for op in ops for kernel in self._op(op, tokens)]
        whole = self._alone.get(("chain", " ".join(ops), tokens))
        if whole is None:
            return kernels
        rows = [row for row in whole if row["name"] != TICK]
        ticks = [row["end_us"] for row in whole if row["name"] == TICK and row["end_us"] <= rows[0]["start_us"]]
        found, end = [], min(ticks, default=0.0)
        for kernel, row in zip(kernels, rows, strict=True):
            found.append(self._kernel(row, end, kernel.early_us, kernel.cost.bandwidth * kernel.cost.us * self.rate))
            end = row["end_us"]
        return found

    def _op(self, op: str, tokens: int) -> list[_Kernel]:
        early, edge = (self._alone[kind, op, tokens] for kind in ("early", "edge"))
        moved = self.bytes[f"{op} {tokens}"]
        found, end = [], 0.0
        for n, (row, ahead) in enumerate(zip(edge, early, strict=True)):
            first = None if n or ahead["start_us"] > -AHEAD_OF_TICK_US else ahead["end_us"]
            found.append(self._kernel(row, end, first, moved.get(row["name"], 0.0)))
            end = row["end_us"]
        return found

    def _kernel(self, row: Mapping[str, Any], end: float, early_us: float | None, moved: float) -> _Kernel:
        """From its row, and the ``end`` of the kernel before it, which it may have begun before."""
        lead = row["start_us"] - end
        us = row["end_us"] - (end if lead < 0 else row["start_us"])
        cost = Cost(
            us, min(1.0, row["blocks"] / self.on["cus"]), min(1.0, moved / (us * self.rate)), blocks=row["blocks"],
            footprint=row["footprint"], shared=row["shared"], prefers=row.get("prefers", 0.0),
        )  # fmt: skip
        return _Kernel(cost, max(0.0, lead), us if lead < 0 else early_us)

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
            for n, kernel in enumerate(self._chain(row[label], row["tokens"])):
                if kernel.early_us is not None and (behind if n == 0 else kernel.lead_us == 0):
                    packets.append(_Packet(str(n), stream, _of(kernel.cost, kernel.early_us), 0.0, True))
                else:
                    wait = tick["end_us"] if tick is not None and not behind and n == 0 else 0.0
                    packets.append(_Packet(str(n), stream, kernel.cost, kernel.lead_us + wait, False))
        names, streams, costs, leads, early = zip(*packets, strict=True)
        n = len(packets)
        return Workload(
            names, (-1,) * n, streams, ((),) * n, costs, ("kernel",) * n, (0,) * n, lead_us=leads, early=early
        )


def _of(cost: Cost, us: float) -> Cost:
    """``cost`` in ``us`` microseconds, with the same bytes."""
    return Cost(
        us, cost.occupancy, min(1.0, cost.bandwidth * cost.us / us), blocks=cost.blocks, footprint=cost.footprint,
        shared=cost.shared, prefers=cost.prefers,
    )  # fmt: skip
