"""Kernels of a decode step by themselves, launched early or not, and in pairs: what the queue model is held against.

    python kernels/bench/pairs.py --out DIR [--tokens 1,4,8,32] [--processes 14]

Writes DIR/pairs.json, which `dsv4lab.predict.pairs` reads. No decode step runs. Each row is a captured graph of equal
steps: a tick (one warp that counts) on the main stream, then ops on the main and the side stream, forked behind it and
joined before the next step; times are those of torch's profiler, medians over all steps, from the end of the tick.
Kernels are compiled beforehand by several processes.

- `early`, `edge`: an op behind a tick that lets it be launched early, and on another stream behind an edge.
- `chain`: ops in a row. `step`: what a plan has side by side, both behind a tick that lets the main one be launched
  early, as the norm before it does (pair_points.py). `pair`: the routed experts and the shared one, begun apart.
- `one`: kernels of one workgroup beside products and reads. `out`: one workgroup behind a launch of many.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import pair_points as points
import torch
import triton
import triton.language as tl
from corun import _hop_kernel, _read_kernel
from dsv4_kernels.launch import carveouts
from dsv4_kernels.registry import spec
from dsv4_kernels.target import target_of
from dsv4_kernels.testing.inputs import Inputs
from run import machine_facts

from dsv4lab.predict.kernel_rows import launches_of
from dsv4lab.predict.pairs import reduced

Work = Callable[[], object]
Step = dict[str, list[Work]]
Maker = Callable[[], Work]
Makers = Mapping[str, Sequence[Maker]]
L2_BYTES = 60 * 2**20
REPLAYS = 3
AT_ONCE = 100
"""Graphs in one profile."""


@triton.jit(do_not_specialize=["turns"])
def _tick_kernel(out, turns, TRIGGER: tl.constexpr):
    """One warp for ``turns`` steps, each after the last; with ``TRIGGER`` what follows may be launched at once."""
    if TRIGGER:
        tl.extra.cuda.gdc_launch_dependents()
    x = tl.arange(0, 32).to(tl.float32)
    for _ in range(turns):
        x = x * 0.999 + 0.5
    tl.store(out + tl.arange(0, 32), x)


def copied(calls: points.Calls) -> points.Calls:
    """The same on fresh memory; a tensor that two calls share stays one."""
    held: dict[int, torch.Tensor] = {}

    def fresh(value: Any) -> Any:
        return held.setdefault(id(value), value.clone()) if isinstance(value, torch.Tensor) else value

    return [(kernel, {name: fresh(value) for name, value in a.items()}) for kernel, a in calls]


def work_of(calls: points.Calls) -> Work:
    """Call the kernels in order."""
    bound = [partial(spec(kernel).wrapper(), **arguments) for kernel, arguments in calls]
    return lambda: [call() for call in bound]


class Bench:
    """Arguments that overflow the L2 before they come round again, streams, and the graphs of rows."""

    def __init__(self) -> None:
        self.device = torch.device("cuda")
        self.out = torch.zeros(1 << 22, device="cuda")
        self.pool = torch.zeros(1 << 28, device="cuda")
        self.stops = torch.zeros(1 << 20, dtype=torch.int64, device="cuda")  # 8 MiB, which stay in the L2
        at = torch.arange(0, 1 << 20, 1 << 9, device="cuda")
        self.stops[at] = at.roll(-1)
        self.places = torch.zeros(16, dtype=torch.int64, device="cuda")
        self.stop = self.tile = 0
        self.sides = {high: torch.cuda.Stream(priority=-1 if high else 0) for high in (False, True)}
        self.sets: dict[tuple[str, int], list[Work]] = {}
        self.turn: dict[tuple[str, int], int] = {}
        self.rows: list[tuple[dict[str, Any], int, Any]] = []

    def op(self, name: str, tokens: int = 1) -> Work:
        """A call of the op with the next of its arguments."""
        key = name, tokens
        if key not in self.sets:
            self.sets[key], self.turn[key] = self._sets(name, tokens), 0
        self.turn[key] += 1
        return self.sets[key][self.turn[key] % len(self.sets[key])]

    def _sets(self, name: str, tokens: int) -> list[Work]:
        calls = points.calls(name, tokens, Inputs(self.device, 1))
        if name.endswith("experts"):  # other experts each time
            ((kernel, a),) = calls
            count = a["w13"].shape[0]
            chosen = [torch.rand(tokens, count, device=self.device).topk(6, dim=1).indices for _ in range(12)]
            return [work_of([(kernel, {**a, "experts": e})]) for e in chosen]
        held = [v for _, a in calls for v in a.values() if isinstance(v, torch.Tensor)]
        size = sum(v.numel() * v.element_size() for v in held)
        copies = max(4, min(40, 2 * L2_BYTES // max(size, 1) + 1))
        return [work_of(copied(calls)) for _ in range(copies)]

    def tick(self, us: float, *, trigger: bool = False, workgroups: int = 1) -> Work:
        """Count for roughly 1.7 times ``us``."""
        turns = int(us * 1980 / 4)
        return lambda: _tick_kernel[(workgroups,)](self.out, turns, TRIGGER=trigger, num_warps=1)

    def hop(self, loads: int) -> Work:
        """Loads from the L2, each at the place that the last one gave."""
        first = (self.stop << 9) % ((1 << 20) - (64 << 9))
        self.stop += loads
        return lambda: _hop_kernel[(1,)](self.stops, self.places, first, HOPS=loads, num_warps=4)

    def read(self, mib: int, workgroups: int) -> Work:
        """Read memory that was not read lately."""
        tiles = mib * 2**20 // 4 // 2048
        if (self.tile + tiles) * 2048 > self.pool.numel():
            self.tile = 0
        first, self.tile = self.tile, self.tile + tiles
        return lambda: _read_kernel[(workgroups,)](self.pool, self.out, tiles, first, BLOCK=2048, num_warps=4)

    def add(self, told: Mapping[str, Any], makers: Makers, repeat: int = 12) -> None:
        """Capture ``repeat`` steps, each of fresh works by stream, in the order of recording."""
        steps: list[Step] = [{at: [make() for make in own] for at, own in makers.items()} for _ in range(repeat)]
        head = [self.tick(told["tick_us"], trigger=told["trigger"]) for _ in steps]
        for work in (head[0], *chain.from_iterable(steps[0].values())):
            work()
        torch.cuda.synchronize()
        graph, side = torch.cuda.CUDAGraph(), self.sides[told.get("high", False)]
        with torch.cuda.graph(graph):
            main = torch.cuda.current_stream()
            for first, step in zip(head, steps, strict=True):
                first()
                if step.get("side"):
                    side.wait_stream(main)
                for at, works in step.items():
                    with torch.cuda.stream(main if at == "main" else side):
                        for work in works:
                            work()
                if step.get("side"):
                    main.wait_stream(side)
        self.rows.append((dict(told), repeat, graph))


def row(kind: str, name: str, tokens: int = 1, **more: Any) -> dict[str, Any]:
    """What a row says of itself; ``main`` and ``side``: ops by stream."""
    return {"kind": kind, "name": name, "tokens": tokens, "tick_us": 3.0, "trigger": False, **more}


def alone(b: Bench, tokens: Sequence[int]) -> None:
    """Ops by themselves, launched early and not."""
    for name, count in points.ops(tokens):
        for kind, stream in (("early", "main"), ("edge", "side")):
            told = row(kind, name, count, tick_us=4.0, trigger=kind == "early", **{stream: [name]})
            b.add(told, {stream: [partial(b.op, name, count)]})


def beside(b: Bench, main: Sequence[str], side: Sequence[str], tokens: int, after: Mapping[str, float]) -> None:
    """Two chains of ops, or one if the other is empty.

    ``after``: how long a second tick holds a stream's back; that of the main one lets what follows be launched early,
    unless the side has one too.
    """
    makers: dict[str, list[Maker]] = {}
    for stream, names in (("main", main), ("side", side)):
        early = stream == "main" and bool(side) and "side" not in after
        ticks = [partial(b.tick, after[stream], trigger=early)] if stream in after else []
        makers[stream] = [*ticks, *(partial(b.op, name, tokens) for name in names)]
    kind = "pair" if main and side else "chain"
    b.add(row(kind, label(main, side), tokens, main=list(main), side=list(side), after_us=dict(after)), makers)


def label(main: Sequence[str], side: Sequence[str]) -> str:
    """Ops of both streams, or of the one that has any."""
    return " beside ".join(" ".join(names) for names in (main, side) if names)


def steps(b: Bench, tokens: Sequence[int]) -> None:
    """What plans have side by side, and the chains in it by themselves."""
    for model, count in product(points.SHARDS, tokens):
        pairs = list(points.beside(model))
        for names in {tuple(names): None for pair in pairs for names in pair if len(names) > 1}:
            told = row("chain", label(names, []), count, trigger=True, main=list(names), side=[])
            b.add(told, {"main": [partial(b.op, name, count) for name in names]})
        for main, side in pairs:
            makers = {at: [partial(b.op, name, count) for name in own] for at, own in (("main", main), ("side", side))}
            for high in (False, True) if side[0].endswith("w13") else (False,):
                told = row("step", label(main, side), count, trigger=True, main=main, side=side, model=model, high=high)
                b.add(told, makers)


def experts(b: Bench) -> None:
    """The routed experts beside the shared one and its parts, begun apart."""
    for model, tokens in (("flash8", 1), ("pro8", 1), ("flash", 1), ("flash8", 8)):
        routed, shared = [f"{model}.experts"], [f"{model}.{part}" for part in ("w13", "swiglu", "w2")]
        beside(b, routed, [], tokens, {"main": 0.2, "side": 0.2})
        beside(b, [], shared, tokens, {"main": 0.2})
        for wait in (0.2, 3.0, 6.0):
            beside(b, routed, shared, tokens, {"main": wait})
        for late in (shared, shared[:1], shared[2:]):
            beside(b, routed, late, tokens, {"main": 0.2, "side": 4.0})
        beside(b, shared[:1], shared[2:], tokens, {})


def workgroups(b: Bench) -> None:
    """One workgroup beside products and reads, and behind launches of many."""
    small: dict[str, Maker] = {
        "keys": partial(b.op, "flash.keys"), "compress": partial(b.op, "flash.compress"), "loads": partial(b.hop, 12),
        "count": partial(b.tick, 4.0),
    }  # fmt: skip
    large: dict[str, list[Maker]] = {
        "nothing": [], "q_b": [partial(b.op, "flash8.q_b")] * 3, "kv128": [partial(b.op, "flash.kv128")] * 2,
        "experts": [partial(b.op, "flash8.experts")] * 2, "reads 132": [partial(b.read, 24, 132)],
        "reads 528": [partial(b.read, 48, 528)],
    }  # fmt: skip
    for (one, make), (what, others) in product(small.items(), large.items()):
        makers = {"main": [partial(b.tick, 0.2), *others], "side": [partial(b.tick, 2.5), make]}
        b.add(row("one", f"{one} beside {what}"), makers, 8)
    for many in (1, 128, 1024, 2048):
        makers = {"main": [partial(b.tick, 6.0, workgroups=many)], "side": [partial(b.tick, 0.1)]}
        b.add(row("out", f"one behind {many}"), makers, 8)


def profiled(b: Bench, folder: Path) -> Iterator[dict[str, Any]]:
    """The rows with their kernels."""
    path = folder / "pairs.pt.trace.json"
    for first in range(0, len(b.rows), AT_ONCE):
        rows = b.rows[first : first + AT_ONCE]
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _, _, graph in rows:
                for _ in range(REPLAYS):
                    graph.replay()
                torch.cuda.synchronize()
        profile.export_chrome_trace(str(path))
        replays = launches_of(path, carveouts())[0]
        path.unlink()
        if len(replays) != REPLAYS * len(rows):
            raise SystemExit(f"{len(replays)} replays in the trace of {len(rows)} rows")
        for at, (told, repeat, _) in enumerate(rows):
            yield {**told, "kernels": reduced(replays[at * REPLAYS : (at + 1) * REPLAYS], repeat)}


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", default=",".join(map(str, points.TOKENS)), help="1 and 8 among them")
    parser.add_argument("--processes", type=int, default=min(14, os.cpu_count() or 1), help="that compile beforehand")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    tokens, began = tuple(int(t) for t in args.tokens.split(",")), time.monotonic()

    def say(what: str) -> None:
        print(f"{what} after {time.monotonic() - began:.0f} s", flush=True)

    points.compile_ahead(tokens, target_of(torch.device("cuda")).arch, args.processes)
    say("compiled")
    bench = Bench()
    alone(bench, tokens)
    say(f"{len(bench.rows)} graphs of ops")
    steps(bench, tokens)
    for part in (experts, workgroups):
        part(bench)
    say(f"{len(bench.rows)} graphs")
    moved = {f"{name} {count}": points.moved(name, count) for name, count in points.ops(tokens)}
    rows = ",\n".join(json.dumps(row) for row in profiled(bench, args.out))
    facts = {"schema": 2, "machine": machine_facts(), "bytes": moved}
    (args.out / "pairs.json").write_text(f'{json.dumps(facts)[:-1]}, "rows": [\n{rows}\n]}}\n', encoding="utf-8")
    say("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
