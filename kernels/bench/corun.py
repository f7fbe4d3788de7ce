"""What kernels lose beside each other on this GPU: rows of a probe's file, of synthetic kernels only.

    python kernels/bench/corun.py --out DIR [--rounds 9]

Writes DIR/corun.json in the format that `dsv4lab calibrate` reads (docs/queue-model.md). Three kinds of kernel: `read`
streams memory that no cache holds, `hop` follows a chain of dependent loads with one workgroup, `fill` keeps every
workgroup slot busy for several waves. Each is timed in a row by itself, then beside another on a second stream, both
in one captured graph whose time counts from first start to last end. The rows of pairs carry the times alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
import triton
import triton.language as tl

POOL_MIB = 2048
"""Memory that reads go through, many times any cache."""
BLOCK = 2048
HOPS = 4
CHAIN = 48
STRIDE = 1 << 13
"""Numbers between two stops of a hop: 32 KiB, so that no two share a line or a row of memory."""

Work = Callable[[], None]


@triton.jit(do_not_specialize=["tiles", "first"])
def _read_kernel(source, out, tiles, first, BLOCK: tl.constexpr):
    """Workgroup ``i`` of ``n`` reads tiles ``first + i``, ``first + i + n``, ... of ``tiles`` in all, 8 KiB each."""
    n = tl.num_programs(0)
    offsets = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for tile in range(tl.program_id(0), tiles, n):
        total += tl.load(source + (first + tile).to(tl.int64) * BLOCK + offsets)
    tl.store(out + tl.program_id(0) * BLOCK + offsets, total)


@triton.jit(do_not_specialize=["first"])
def _hop_kernel(stops, out, first, HOPS: tl.constexpr):
    """One workgroup: where the next number lies is what the last one said."""
    at = first
    for _ in tl.static_range(HOPS):
        at = tl.load(stops + at)
    tl.store(out, at)


@triton.jit(do_not_specialize=["turns"])
def _fill_kernel(out, turns, BLOCK: tl.constexpr):
    """Arithmetic on registers for a time that ``turns`` gives."""
    x = tl.arange(0, BLOCK).to(tl.float32) + tl.program_id(0)
    for _ in range(turns):
        x = x * 0.999 + 0.5
    tl.store(out + tl.arange(0, BLOCK), x)


class Bench:
    """Memory, streams, and a program measured as a captured graph."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        count = POOL_MIB * 2**20 // 4
        self.pool = torch.zeros(count, device="cuda")
        stops = torch.arange(count // STRIDE, dtype=torch.int64, device="cuda").roll(-1) * STRIDE
        self.stops = torch.zeros(count // 2, dtype=torch.int64, device="cuda")
        self.stops[::STRIDE] = stops[: self.stops[::STRIDE].numel()] % (count // 2)
        self.out = torch.zeros(1 << 24, device="cuda")
        self.places = torch.zeros(1 << 10, dtype=torch.int64, device="cuda")
        self.tile = 0
        self.stop = 0
        self.sides = [torch.cuda.Stream() for _ in range(7)]

    def read(self, mib: float, workgroups: int, warps: int = 4) -> Work:
        """Read ``mib`` MiB that were not read lately."""
        tiles = int(mib * 2**20 / 4 / BLOCK)
        if self.tile + tiles > self.pool.numel() // BLOCK:
            self.tile = 0
        first, self.tile = self.tile, self.tile + tiles
        return lambda: _read_kernel[(workgroups,)](self.pool, self.out, tiles, first, BLOCK=BLOCK, num_warps=warps)

    def hop(self) -> Work:
        """Hop over ``HOPS`` stops that were not visited lately."""
        if (self.stop + HOPS) * STRIDE >= self.stops.numel():
            self.stop = 0
        first, self.stop = self.stop * STRIDE, self.stop + HOPS
        return lambda: _hop_kernel[(1,)](self.stops, self.places, first, HOPS=HOPS, num_warps=4)

    def fill(self, workgroups: int, turns: int) -> Work:
        """Occupy slots."""
        return lambda: _fill_kernel[(workgroups,)](self.out, turns, BLOCK=1024, num_warps=4)

    def us(self, main: list[Work], *sides: list[Work]) -> float:
        """Median microseconds of a graph with ``main`` on one stream and ``sides`` on others, forked at its start."""
        for work in (*main, *(work for side in sides for work in side)):
            work()  # compiled before the capture
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            current = torch.cuda.current_stream()
            for stream, side in zip(self.sides, sides, strict=False):
                stream.wait_stream(current)
                with torch.cuda.stream(stream):
                    for work in side:
                        work()
            for work in main:
                work()
            for stream, _ in zip(self.sides, sides, strict=False):
                current.wait_stream(stream)
        times = []
        for _ in range(self.rounds + 3):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self.pool[: 1 << 26].add_(0.0)  # nothing of the round before is left in a cache, and clocks are up
            torch.cuda._sleep(400_000)  # the host is through with the launch before the GPU begins
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3)
        return statistics.median(times[3:])


def op(name: str, stream: str, us: float, workgroups: int, count: int = 1, **more: float) -> dict[str, Any]:
    """An op of a program document."""
    return {"name": name, "stream": stream, "duration_us": us, "workgroups": workgroups, "count": count, **more}


def rows_of(bench: Bench) -> list[dict[str, Any]]:
    """All rows."""
    rows: list[dict[str, Any]] = []

    def keep(name: str, measured: float, *ops: dict[str, Any], **told: Any) -> float:
        program = {"name": name, "launch": "graph", "ops": list(ops)}
        rows.append({"name": name, "program": program, "measured_us": measured, "clock": "gpu", "told": told})
        print(f"{name}: {measured:.2f} us {told}", flush=True)
        return measured

    size = 2**20
    for workgroups in (1, 8, 33, 66, 132, 264, 528):
        mib = min(64.0, 2.0 * workgroups)
        one = bench.us([bench.read(mib, workgroups)])
        five = bench.us([bench.read(mib, workgroups) for _ in range(5)])
        each = (five - one) / 4
        ops = {"name": "read", "stream": "main", "bytes": mib * size, "workgroups": workgroups, "count": 5}
        keep(
            f"5 reads of {mib:g} MiB in {workgroups} workgroups", five, ops, each_us=each, gbps=mib * size / each / 1e3
        )
    chain = bench.us([bench.hop() for _ in range(CHAIN)])
    hop = (chain - bench.us([bench.hop() for _ in range(8)])) / (CHAIN - 8)
    keep(f"{CHAIN} chains of {HOPS} hops", chain, op("hop", "main", hop, 1, CHAIN), each_us=hop)
    for streams in (1, 2, 4, 8):
        forks(bench, keep, streams, hop)
    for workgroups in (8, 33, 66, 132, 264):
        beside_hops(bench, keep, workgroups, hop)
    for a, b in ((33, 33), (66, 66), (132, 132), (264, 264), (33, 132), (132, 264)):
        beside_reads(bench, keep, a, b)
    behind_fill(bench, keep, hop)
    return rows


def forks(bench: Bench, keep: Callable[..., float], streams: int, hop: float) -> None:
    """One chain of hops on each of ``streams`` streams, forked at once."""
    one = [[bench.hop()] for _ in range(streams - 1)]
    both = bench.us([bench.hop()], *one)
    ops = [op(f"k{n}", "main" if not n else f"side{n - 1}", hop, 1) for n in range(streams)]
    keep(f"hops on {streams} streams", both, *ops)


def beside_hops(bench: Bench, keep: Callable[..., float], workgroups: int, hop: float) -> None:
    """A chain of hops beside reads that take about two thirds of its time."""
    mib = min(48.0, 2.0 * workgroups)
    each = (bench.us([bench.read(mib, workgroups) for _ in range(5)]) - bench.us([bench.read(mib, workgroups)])) / 4
    count = max(1, round(CHAIN * hop / each))
    reads = [bench.read(mib, workgroups) for _ in range(count)]
    alone = bench.us(reads)
    hops = CHAIN + CHAIN // 2
    both = bench.us([bench.hop() for _ in range(hops)], reads)
    keep(
        f"{hops} chains of hops beside reads in {workgroups} workgroups", both,
        op("hop", "main", hop, 1, hops), op("read", "side0", each, workgroups, count, bytes=mib * 2**20),
        reads_alone_us=alone, hops_alone_us=bench.us([bench.hop() for _ in range(hops)]),
        gbps=mib * 2**20 / each / 1e3,
    )  # fmt: skip


def beside_reads(bench: Bench, keep: Callable[..., float], a: int, b: int) -> None:
    """Two rows of reads side by side."""
    first, second = ([bench.read(min(32.0, 2.0 * n), n) for _ in range(6)] for n in (a, b))
    alone = bench.us(first), bench.us(second)
    ops = [
        op("read", stream, us / 6, n, 6, bytes=min(32.0, 2.0 * n) * 2**20)
        for stream, us, n in zip(("main", "side0"), alone, (a, b), strict=True)
    ]
    keep(f"reads in {a} workgroups beside reads in {b}", bench.us(first, second), *ops, alone_us=alone)


def behind_fill(bench: Bench, keep: Callable[..., float], hop: float) -> None:
    """Hops beside a kernel that has more workgroups than fit at once: when is there room for theirs?"""
    turns = 2000
    for waves in (0.5, 1, 2, 4):
        workgroups = int(132 * 16 * waves)
        alone = bench.us([bench.fill(workgroups, turns)])
        hops = max(1, min(200, int(0.8 * alone / hop)))
        both = bench.us([bench.hop() for _ in range(hops)], [bench.fill(workgroups, turns)])
        keep(
            f"{hops} chains of hops beside a kernel of {waves:g} waves", both,
            op("hop", "main", hop, 1, hops), op("fill", "side0", alone, workgroups), fill_alone_us=alone,
            hops_alone_us=bench.us([bench.hop() for _ in range(hops)]),
        )  # fmt: skip


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    from run import machine_facts, smi

    bench = Bench(args.rounds)
    rows = rows_of(bench)
    machine = {"torch": torch.__version__, "triton": triton.__version__, "date": datetime.now(UTC).isoformat(),
               **machine_facts(), "clocks_and_limit": smi("clocks.sm,clocks.mem,power.limit")}  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    document = {"schema": 1, "device": "h200", "machine": machine, "found": {}, "rows": rows}
    (args.out / "corun.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
