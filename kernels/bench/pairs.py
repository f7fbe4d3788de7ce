"""Kernels of a decode step by themselves, launched early or not, and in pairs: what the queue model is held against.

    python kernels/bench/pairs.py --out DIR

Writes DIR/pairs.json, which `dsv4lab.predict.pairs` reads. No decode step runs. Each row is a captured graph of equal
steps: a tick (one warp that counts) on the main stream, then ops on the main and the side stream, forked behind it and
joined before the next step; times are those of torch's profiler, medians over all steps, from the end of the tick.

- `early`, `edge`: an op behind a tick that lets it be launched early, and on another stream behind an edge.
- `chain`, `pair`: the routed experts, the shared expert, and both; products side by side.
- `one`: kernels of one workgroup beside products and reads. `out`: one workgroup behind a launch of many.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
import triton
import triton.language as tl
from corun import _hop_kernel, _read_kernel
from dsv4_kernels.bf16_gemm import cases as bf16
from dsv4_kernels.block_fp8_gemm import cases as gemm
from dsv4_kernels.compress import cases as compress
from dsv4_kernels.launch import carveouts
from dsv4_kernels.moe_gemm import cases as moe
from dsv4_kernels.moe_route import cases as route
from dsv4_kernels.registry import Arguments, spec
from dsv4_kernels.swiglu import cases as swiglu
from dsv4_kernels.testing.inputs import Inputs
from run import machine_facts
from small_points import EXPERTS, GEMMS

from dsv4lab.predict.kernel_rows import launches_of
from dsv4lab.predict.pairs import reduced

Work = Callable[[], object]
Step = dict[str, list[Work]]
Maker = Callable[[], Work]
Makers = Mapping[str, Sequence[Maker]]
L2_BYTES = 60 * 2**20
REPLAYS = 3
MODELS = {"flash8": "flash-tp8", "pro8": "pro-tp8", "flash": "flash"}
PRODUCTS = {"gemv1024": (2048, 4096), "gemv256": (512, 4096), "pgemv": (2048, 7168)}
"""Rows and columns of bf16 weights: compressors of Flash, of its indexer, of Pro."""
CHAIN = ("w13", "swiglu", "w2")
OPS = [
    *((n, t) for t in (1, 8) for n in ("flash8.w13", "flash8.w2", "flash8.swiglu", "flash8.experts", "flash8.q_b")),
    *((f"{m}.{n}", 1) for m in ("pro8", "flash") for n in (*CHAIN, "experts")),
    *((n, 1) for n in ("flash8.index_q_b", "flash8.qkv_a", "pro8.qkv_a", *PRODUCTS, "compress", "keys", "route")),
]
"""Ops with their tokens."""


@triton.jit(do_not_specialize=["turns"])
def _tick_kernel(out, turns, TRIGGER: tl.constexpr):
    """One warp for ``turns`` steps, each after the last; with ``TRIGGER`` what follows may be launched at once."""
    if TRIGGER:
        tl.extra.cuda.gdc_launch_dependents()
    x = tl.arange(0, 32).to(tl.float32)
    for _ in range(turns):
        x = x * 0.999 + 0.5
    tl.store(out + tl.arange(0, 32), x)


def arguments(name: str, tokens: int, inputs: Inputs) -> tuple[str, Arguments]:
    """The kernel and the arguments of an op."""
    model, _, part = name.partition(".")
    if part == "experts":
        return "moe_gemm_quant", moe._fp4(inputs, tokens, EXPERTS[MODELS[model]])
    if part == "swiglu":
        return "swiglu", swiglu._rows(inputs, tokens, EXPERTS[MODELS[model]][2])
    if part:
        return "block_fp8_gemm_quant", gemm._quantising(inputs, tokens, *GEMMS[MODELS[model]][part])
    if name in PRODUCTS:
        return "bf16_gemm", bf16._product(inputs, tokens, *PRODUCTS[name])
    if name == "compress":
        return "compress", compress._compress(inputs, 4, 1, tokens=1, kept=1)
    if name == "keys":
        return "compress_index_pages", compress._keys(inputs, 1, "fp8", tokens=5)
    return "moe_route", route._route(inputs, tokens, route.FLASH)


def bytes_of(name: str, tokens: int) -> dict[str, float]:
    """Weights that each kernel of an op reads."""
    model, _, part = name.partition(".")
    if part == "experts":
        count, d, inter = EXPERTS[MODELS[model]]
        down = count * (1 - (1 - 6 / count) ** tokens) * d * inter * (1 / 2 + 1 / 32)
        return {"_gate_up_lanes_kernel": 2 * down, "_down_lanes_kernel": down}
    if part and part != "swiglu":
        rows, columns = GEMMS[MODELS[model]][part]
        return dict.fromkeys(("_few_vector_kernel", "_few_dot_kernel", "_block_fp8_gemm_kernel"), float(rows * columns))
    if name in PRODUCTS:
        return {"_bf16_gemv_kernel": 2.0 * PRODUCTS[name][0] * PRODUCTS[name][1]}
    return {"_route_few_kernel": 2.0 * 256 * 4096} if name == "route" else {}


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
        self.side = torch.cuda.Stream()
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
        kernel, a = arguments(name, tokens, Inputs(self.device, 1))
        call = spec(kernel).wrapper()
        if name.endswith("experts"):  # other experts each time
            count = a["w13"].shape[0]
            chosen = [torch.rand(tokens, count, device=self.device).topk(6, dim=1).indices for _ in range(12)]
            return [lambda e=e: call(**{**a, "experts": e}) for e in chosen]
        size = sum(v.numel() * v.element_size() for v in a.values() if isinstance(v, torch.Tensor))
        copies = max(4, min(40, 2 * L2_BYTES // max(size, 1) + 1))
        made = [{n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in a.items()} for _ in range(copies)]
        return [lambda b=b: call(**b) for b in made]

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
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            main = torch.cuda.current_stream()
            for first, step in zip(head, steps, strict=True):
                first()
                if step.get("side"):
                    self.side.wait_stream(main)
                for at, works in step.items():
                    with torch.cuda.stream(main if at == "main" else self.side):
                        for work in works:
                            work()
                if step.get("side"):
                    main.wait_stream(self.side)
        self.rows.append((dict(told), repeat, graph))


def row(kind: str, name: str, tokens: int = 1, **more: Any) -> dict[str, Any]:
    """What a row says of itself; ``main`` and ``side``: ops by stream."""
    return {"kind": kind, "name": name, "tokens": tokens, "tick_us": 3.0, "trigger": False, **more}


def alone(b: Bench) -> None:
    """Ops by themselves, launched early and not."""
    for name, tokens in OPS:
        for kind, stream in (("early", "main"), ("edge", "side")):
            told = row(kind, name, tokens, tick_us=4.0, trigger=kind == "early", **{stream: [name]})
            b.add(told, {stream: [partial(b.op, name, tokens)]})


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
    name = " beside ".join(" ".join(names) for names in (main, side) if names)
    kind = "pair" if main and side else "chain"
    b.add(row(kind, name, tokens, main=list(main), side=list(side), after_us=dict(after)), makers)


def experts(b: Bench) -> None:
    """The routed experts beside the shared one and its parts, and products beside each other."""
    for model, tokens in (("flash8", 1), ("pro8", 1), ("flash", 1), ("flash8", 8)):
        routed, shared = [f"{model}.experts"], [f"{model}.{part}" for part in CHAIN]
        beside(b, routed, [], tokens, {"main": 0.2, "side": 0.2})
        beside(b, [], shared, tokens, {"main": 0.2})
        for wait in (0.2, 3.0, 6.0):
            beside(b, routed, shared, tokens, {"main": wait})
        for late in (shared, shared[:1], shared[2:]):
            beside(b, routed, late, tokens, {"main": 0.2, "side": 4.0})
        beside(b, shared[:1], shared[2:], tokens, {})
    for main, side in (
        ("flash8.q_b", "gemv1024"), ("flash8.qkv_a", "gemv1024"), ("flash8.qkv_a", "gemv256"), ("pro8.qkv_a", "pgemv"),
        ("route", "flash8.w13"),
    ):  # fmt: skip
        beside(b, [main], [side], 1, {})


def workgroups(b: Bench) -> None:
    """One workgroup beside products and reads, and behind launches of many."""
    small: dict[str, Maker] = {
        "keys": partial(b.op, "keys"), "compress": partial(b.op, "compress"), "loads": partial(b.hop, 12),
        "count": partial(b.tick, 4.0),
    }  # fmt: skip
    large: dict[str, list[Maker]] = {
        "nothing": [], "q_b": [partial(b.op, "flash8.q_b")] * 3, "gemv1024": [partial(b.op, "gemv1024")] * 2,
        "experts": [partial(b.op, "flash8.experts")] * 2, "reads 132": [partial(b.read, 24, 132)],
        "reads 528": [partial(b.read, 48, 528)],
    }  # fmt: skip
    for (one, make), (what, others) in product(small.items(), large.items()):
        makers = {"main": [partial(b.tick, 0.2), *others], "side": [partial(b.tick, 2.5), make]}
        b.add(row("one", f"{one} beside {what}"), makers, 8)
    for many in (1, 128, 1024, 2048):
        makers = {"main": [partial(b.tick, 6.0, workgroups=many)], "side": [partial(b.tick, 0.1)]}
        b.add(row("out", f"one behind {many}"), makers, 8)


def profiled(b: Bench, folder: Path) -> list[dict[str, Any]]:
    """The rows with their kernels."""
    path = folder / "pairs.pt.trace.json"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _, _, graph in b.rows:
            for _ in range(REPLAYS):
                graph.replay()
            torch.cuda.synchronize()
    profile.export_chrome_trace(str(path))
    replays = launches_of(path, carveouts())[0]
    path.unlink()
    if len(replays) != REPLAYS * len(b.rows):
        raise SystemExit(f"{len(replays)} replays in the trace of {len(b.rows)} rows")
    own = [replays[at : at + REPLAYS] for at in range(0, len(replays), REPLAYS)]
    return [{**told, "kernels": reduced(rs, repeat)} for rs, (told, repeat, _) in zip(own, b.rows, strict=True)]


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    bench = Bench()
    for part in (alone, experts, workgroups):
        part(bench)
    moved = {f"{name} {tokens}": bytes_of(name, tokens) for name, tokens in OPS}
    document = {"schema": 1, "machine": machine_facts(), "bytes": moved, "rows": profiled(bench, args.out)}
    (args.out / "pairs.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
