"""Write synthetic Kineto traces of any size, with planted faults and the right answer beside them.

``python tools/gen_trace.py out.json.gz --mb 1000`` streams about a gigabyte of plain JSON with the mix of events of a
real inference trace. ``--fault NAME`` plants a fault. ``out.json.gz.truth.json`` holds the number of events and, for
every stream, rows, summed and merged time in integer nanoseconds.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

FAULTS = {
    "overlap": "two kernels of one stream overlap",
    "annotation": "nested annotations over the kernels of a stream",
    "zerodur": "kernels of zero duration",
    "negdur": "a kernel of negative duration",
    "negts": "times below zero",
    "epoch": "microseconds since the epoch",
    "nostream": "one kernel in ten names no stream",
    "queueonly": "GPU rows name a large queue handle and no stream",
    "nan": "NaN and Infinity among the arguments",
    "badutf8": "a name that is not UTF-8",
    "backslash": "a lone backslash in a name",
    "quote": "bare quotes in the names of Python frames",
    "dupcorr": "correlation ids that repeat",
    "skew": "the GPU clock is 1.5 ms ahead",
    "strnum": "streams and times as text",
    "syncrow": "stream-sync rows beside the kernels",
    "shuffle": "events in random order",
    "nodur": "a kernel without a duration",
    "bigid": "thread ids above 2**53",
    "truncate": "the file stops inside an event",
    "cpustream": "operators carry a stream",
    "orphan": "one launch in six is missing",
    "overflow": "a kernel runs far past its successors",
}
PLATFORMS = ("cuda", "rocm")
LAYER = (
    ("rms_norm_kernel", 0, 2500, 6000),
    ("gemm_bf16", 0, 9000, 30000),
    ("_fwd_indexer_topk_kernel", 1, 6000, 40000),
    ("_compress_kv_kernel", 2, 4000, 20000),
    ("sparse_attn_v4_paged_decode", 0, 20000, 80000),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 3, 10000, 70000),
    ("void at::native::vectorized_elementwise_kernel<4, std::array<char*, 3ul> >(int, float)", 1, 1500, 4000),
    ("fused_moe_kernel", 0, 40000, 160000),
)
FRAMES = (
    "/srv/model/attention.py(812): forward",
    "torch/nn/modules/module.py(1785): _call_impl",
    "<built-in method apply of FunctionMeta object at 0x55d0c1a2b3c0>",
    "/srv/model/ops.py(96): wrapper",
)
SKEW_NS = 1_500_000
OVERFLOW_NS = 4_000_000


def us(ns: int) -> str:
    """Microseconds with three decimals, as exporters print times."""
    return f"{'-' if ns < 0 else ''}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"


@dataclass
class Truth:
    """Right answers: intervals of every stream."""

    events: int = 0
    lanes: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, lane: str, start: int, dur: int) -> None:
        """One GPU row."""
        self.lanes.setdefault(lane, []).append((start, start + dur))

    def report(self) -> dict[str, Any]:
        """JSON-ready answers."""
        lanes = {
            lane: {"events": len(spans), "sum_ns": sum(e - s for s, e in spans), "busy_ns": merged(spans)}
            for lane, spans in self.lanes.items()
        }
        every = [span for spans in self.lanes.values() for span in spans]
        return {"events": self.events, "rows": len(every), "union_ns": merged(every), "lanes": lanes}


def merged(spans: Sequence[tuple[int, int]]) -> int:
    """Length of the union, one interval after the other."""
    total, reach = 0, None
    for start, end in sorted(spans):
        low = start if reach is None else max(start, reach)
        total += max(end - low, 0)
        reach = end if reach is None else max(reach, end)
    return total


class Generator:
    """One trace: ``lines()`` yields the text of every event."""

    def __init__(
        self, *, faults: Sequence[str] = (), platform: str = "rocm", seed: int = 1, frames: int = 4, rank: int = 0
    ) -> None:
        self.faults = frozenset(faults)
        self.rocm = platform == "rocm"
        self.random = random.Random(f"{seed} {rank}")
        self.frames = frames
        self.rank = rank
        self.tid = (1 << 54) + 3 if "bigid" in self.faults else 1000
        self.device = rank + 2 if self.rocm else rank
        self.streams = (0, 1, 2, 3) if self.rocm else (7, 20, 24, 28)
        self.base = 1_700_000_000_000_000_000 if "epoch" in self.faults else 4_909_914_216_204_635
        if "negts" in self.faults:
            self.base = -5_000_000
        self.now = self.base
        self.tail = [self.base] * 4
        self.correlation = 1000
        self.kernels = 0
        self.truth = Truth()

    def has(self, fault: str) -> bool:
        """Whether ``fault`` is planted."""
        return fault in self.faults

    def slice(self, cat: str, name: str, pid: int, tid: object, start: int, dur: int | None, args: str) -> str:
        """The text of a complete event."""
        when = f'"{us(start)}"' if self.has("strnum") and cat == "kernel" else us(start)
        length = "" if dur is None else f', "dur": {us(dur)}'
        return (
            f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
            f'    "ts": {when}{length},\n    "args": {{\n      {args}\n    }}\n  }}'
        )

    def flow(self, phase: str, pid: int, tid: object, at: int) -> str:
        """The text of an arrow's end."""
        binding = ', "bp": "e"' if phase == "f" else ""
        return (
            f'  {{\n    "ph": "{phase}", "id": {self.correlation}, "pid": {pid}, "tid": {tid}, "ts": {us(at)},\n'
            f'    "cat": "ac2g", "name": "ac2g"{binding}\n  }}'
        )

    def place(self, slot: int) -> tuple[str, str, str]:
        """The arguments that place a row, its thread id, and its lane in the truth."""
        stream = self.streams[slot]
        if self.has("queueonly"):
            handle = 140_000_000_000_000 + 4096 * slot
            return f'"queue": {handle}', str(handle), str(handle)
        queue = f', "hsa_queue": {slot % 4}' if self.rocm else ""
        if self.has("nostream") and self.kernels % 10 == 6:
            return f'"grid": [1, 1, 1]{queue}', str(stream), "unknown"
        shown = f'"{stream}"' if self.has("strnum") else str(stream)
        return f'"stream": {shown}{queue}', str(stream), str(stream)

    def timing(self, slot: int, launch: int, dur: int) -> tuple[int, int | None, int]:
        """Start, written duration and true duration of a kernel, faults included."""
        at = self.kernels
        start = max(self.tail[slot] + self.random.randint(200, 2500), launch + self.random.randint(3000, 9000))
        if self.has("overlap") and at % 5 == 4 and self.tail[slot] > self.base:
            start = self.tail[slot] - dur // 3
        if self.has("zerodur") and at % 7 == 3:
            dur = 0
        if self.has("overflow") and at == 17:
            dur = OVERFLOW_NS
        written, true = dur, dur
        if self.has("negdur") and at == 11:
            written, true = -dur, 0
        if self.has("nodur") and at == 13:
            true = 0
        kept = min(true, 40_000) if self.has("overflow") else true
        self.tail[slot] = max(self.tail[slot], start + kept)
        return start, None if self.has("nodur") and at == 13 else written, true

    def kernel(self, name: str, slot: int, launch: int, dur: int) -> Iterator[str]:
        """A GPU row and its arrow's head."""
        start, written, true = self.timing(slot, launch, dur)
        start += SKEW_NS if self.has("skew") else 0
        where, tid, lane = self.place(slot)
        extra = (
            ', "blocks per SM": NaN, "memory bandwidth (GB/s)": -Infinity'
            if self.has("nan") and self.kernels % 9 == 1
            else ""
        )
        if self.kernels == 5:
            name += "\udcff\udcfe" if self.has("badutf8") else "C:\\xyz\\q" if self.has("backslash") else ""
        self.truth.add(lane, start, true)
        ids = f'"External id": {self.correlation}, "device": {self.device}, {where}, "correlation": {self.correlation}'
        yield self.slice("kernel", name, self.device, tid, start, written, f'{ids}, "block": [256, 1, 1]{extra}')
        yield self.flow("f", self.device, tid, start)
        if self.has("syncrow") and self.kernels % 20 == 19:
            sync = f'"device": {self.device}, "stream": {self.streams[slot]}, "correlation": {self.correlation}'
            yield self.slice(
                "cuda_sync", "Stream Sync", self.device, self.streams[slot] + 1_000_000, start, true + 4000, sync
            )
        self.kernels += 1

    def host(self, op: str) -> Iterator[str]:
        """Python frames, operator and launch of one kernel."""
        at, ids = self.now, f'"External id": {self.correlation}'
        for depth in range(self.frames):
            name = FRAMES[depth % 4]
            if self.has("quote") and depth == 0 and "attn" in op:
                name = '{"device": "cuda", "dtype": null}(12): run'
            yield self.slice(
                "python_function", name, 1000, self.tid, at + depth * 40, 9000 - depth * 80, f'"Python id": {depth}'
            )
        stream = ', "stream": 0' if self.has("cpustream") else ""
        dims = (
            '"Input Dims": [[32, 7168], [7168, 2048], [], []], '
            '"Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar", "Scalar"]'
        )
        yield self.slice(
            "cpu_op", f"dsv4::{op.partition('<')[0][:20]}", 1000, self.tid, at + 400, 6400, f"{ids}, {dims}{stream}"
        )
        if not (self.has("orphan") and self.correlation % 6 == 0):
            call = "hipModuleLaunchKernel" if self.rocm else "cudaLaunchKernel"
            yield self.slice(
                "cuda_runtime", call, 1000, self.tid, at + 2000, 3000, f'{ids}, "correlation": {self.correlation}'
            )
            yield self.flow("s", 1000, self.tid, at + 2000)

    def step(self, number: int, layers: int) -> list[str]:
        """All events of one profiler step."""
        begin = self.now
        out: list[str] = []
        for _ in range(layers):
            for name, slot, low, high in LAYER:
                self.correlation += 1
                kept = self.correlation
                if self.has("dupcorr") and self.correlation % 8 == 0:
                    self.correlation = 1001
                out += self.host(name)
                out += self.kernel(name, slot, self.now + 2000, self.random.randint(low, high))
                self.correlation = kept
                self.now += self.random.randint(7000, 12000)
        if self.has("annotation"):
            for stream in self.streams:
                for depth, name in enumerate((f"ProfilerStep#{number}", "decode[bs=32]", "layer_0")):
                    span = max(self.tail) - begin - depth * 20
                    out.append(
                        self.slice(
                            "gpu_user_annotation",
                            name,
                            self.device,
                            stream,
                            begin + depth * 10,
                            span,
                            '"External id": 1',
                        )
                    )
        self.now = max(self.now, *self.tail) + 20000
        out.append(
            self.slice(
                "user_annotation", f"ProfilerStep#{number}", 1000, self.tid, begin, self.now - begin, '"External id": 0'
            )
        )
        if self.has("shuffle"):
            self.random.shuffle(out)
        return out

    def header(self) -> str:
        """Everything before the first event."""
        gpu = "AMD Instinct MI355X" if self.rocm else "NVIDIA H200"
        head = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": self.rank, "name": gpu, "warpSize": 64 if self.rocm else 32}],
            "hip_runtime_version" if self.rocm else "cuda_runtime_version": 70253211 if self.rocm else 12090,
            "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": 8},
            "baseTimeNanoseconds": 1775078550000000000,
        }
        return json.dumps(head)[:-1] + ',\n  "traceEvents": [\n'

    def write(self, file: BinaryIO, *, megabytes: float | None = None, steps: int = 2, layers: int = 4) -> Truth:
        """Write the trace; returns the right answers."""
        size = file.write(self.header().encode())
        owner = f'"pid": {self.device}, "tid": 0, "args": {{"name": "python"}}'
        meta = f'  {{\n    "name": "process_name", "ph": "M", {owner}\n  }}'
        size += file.write(meta.encode())
        self.truth.events += 1
        number = 0
        while number < steps if megabytes is None else size < megabytes * 1e6:
            number += 1
            events = self.step(number, layers)
            self.truth.events += len(events)
            size += file.write((",\n" + ",\n".join(events)).encode("utf-8", "surrogateescape"))
        if self.has("truncate"):
            file.write(b',\n  {\n    "ph": "X", "cat": "kernel", "name": "void at::nat')
        else:
            file.write(b'\n  ],\n  "traceName": "synthetic"\n}\n')
        return self.truth


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--mb", type=float)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--layers", type=int, default=61)
    parser.add_argument("--platform", choices=PLATFORMS, default="rocm")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", action="append", default=[], choices=sorted(FAULTS))
    args = parser.parse_args(argv)
    generator = Generator(faults=args.fault, platform=args.platform, seed=args.seed, rank=args.rank)
    with args.out.open("wb") as raw:
        file: Any = gzip.GzipFile("", "wb", 5, raw, 0) if args.out.suffix == ".gz" else raw
        with file:
            truth = generator.write(file, megabytes=args.mb, steps=args.steps, layers=args.layers)
    Path(f"{args.out}.truth.json").write_text(json.dumps(truth.report(), indent=1) + "\n")


if __name__ == "__main__":
    main()
