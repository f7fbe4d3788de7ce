"""One to 16 tokens: launch configs of the kernels of a decode step, on the models' full shapes and their TP-8 shards.

    python kernels/bench/small.py --out OUT.jsonl [--ops gemm,codes,moe,mhc,topk,route,hash,pages,one] [--tokens 1,4]
        [--models flash,flash-tp8] [--seconds 140]

A point is an op, a shape and a number of tokens. Its results with the launch tables as they are go through the
correctness gate (once per op and shape); every candidate config of one table at a time is then pinned, compared with
those results, and timed in a CUDA graph that rotates over as many copies of the arguments as overflow the L2.
Candidates are compiled beforehand by several processes. Points that the time does not suffice for are said.

Printed per point: the present tables' time, then the best candidates of each table; every timing is a JSON line. A
second time, where there is one, is that with activations in the L2, where a step's predecessor leaves them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from dsv4_kernels.launch import CARVEOUT, Config, asked_sizes, pinned, recorded
from dsv4_kernels.registry import Arguments, spec
from dsv4_kernels.target import forced_target, target_of
from dsv4_kernels.testing.compare import check_arguments, clone, distance, run
from dsv4_kernels.testing.inputs import Inputs
from run import machine_facts
from small_choice import choice_points, holds
from small_points import CANDIDATES, Point, fits, points

L2_BYTES = 64 * 2**20
MOST_SETS = 96
MOST_BYTES = 24 * 2**30
MOST_OFF = 1e-2
REPLAYS = 12

Asked = tuple[frozenset[str], tuple[int, ...], frozenset[str]]
"""The arguments of :func:`every_point`."""


@dataclass(frozen=True)
class Trial:
    """A config of one table for a point; no table: the tables as they are, or the rival ``name``."""

    table: str
    config: Config | None
    name: str


def main() -> int:
    """Run; 1 if a gate was red."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSONL file to write")
    parser.add_argument("--ops", default="gemm,moe,mhc", help="groups of ops, comma-separated")
    parser.add_argument("--tokens", default="1,4,8,16")
    parser.add_argument("--models", default="flash-tp8,pro-tp8,flash,pro", help="whose products and experts")
    parser.add_argument("--seconds", type=float, default=140.0, help="no point is begun after that")
    parser.add_argument("--processes", type=int, default=min(14, os.cpu_count() or 1), help="that compile beforehand")
    args = parser.parse_args()
    began = time.monotonic()
    tokens = tuple(int(t) for t in args.tokens.split(","))
    asked = frozenset(args.ops.split(",")), tokens, frozenset(args.models.split(","))
    todo = list(every_point(*asked))
    arch = target_of(torch.device("cuda")).arch
    compile_ahead(asked, arch, args.processes)
    print(f"compiled after {time.monotonic() - began:.0f} s", flush=True)
    good, gated = True, set()
    with args.out.open("w", encoding="utf-8") as lines:
        for at, point in enumerate(todo):
            if time.monotonic() - began > args.seconds:
                print(f"no time for {len(todo) - at} of {len(todo)} points", flush=True)
                break
            gate = (point.kernel, point.label) not in gated
            gated.add((point.kernel, point.label))
            rows = list(rows_of(point, gate))
            good &= all(row["gate"] == "green" for row in rows)
            lines.writelines(json.dumps(row) + "\n" for row in rows)
            lines.flush()
            show(point, rows)
    print(f"done after {time.monotonic() - began:.0f} s", flush=True)
    return 0 if good else 1


def every_point(ops: frozenset[str], tokens: tuple[int, ...], models: frozenset[str]) -> Iterator[Point]:
    """The points of the groups ``ops``; of ``models`` where there are more than choices."""
    yield from points(ops, tokens, models)
    yield from choice_points(ops, tokens)


def trials(point: Point, arch: str) -> list[Trial]:
    """What to time, in order."""
    with forced_target(arch), asked_sizes() as sizes, recorded():
        spec(point.kernel).wrapper()(**point.build(Inputs("meta", 0)))
    found = [Trial("", None, "present"), *(Trial("", None, name) for name in point.rivals)]
    for table in (t for t in spec(point.kernel).tables if t.name in sizes):
        own = CANDIDATES.get(table.name, table.candidates)
        size = sizes[table.name]
        worth = [c for c in dict.fromkeys(own) if fits(table.name, c, size) and holds(table.name, c, size)]
        found += [Trial(table.name, c, str(c)) for c in worth]
    return found


def compile_ahead(asked: Asked, arch: str, processes: int) -> None:
    """Fill Triton's cache; what fails here fails again, and is said, where it is timed."""
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=compile_share, args=(asked, arch, at, processes)) for at in range(processes)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(timeout=75)
        if process.is_alive():
            process.kill()


def compile_share(asked: Asked, arch: str, at: int, of: int) -> None:
    """Compile every ``of``-th distinct launch, from the ``at``-th on."""
    torch.cuda.init()
    seen: set[Any] = set()
    for point in every_point(*asked):
        for trial in trials(point, arch):
            with forced_target(arch), ExitStack() as stack:
                if trial.config is not None:
                    stack.enter_context(pinned({trial.table: trial.config}))
                launches = stack.enter_context(recorded())
                caller_of(point, trial)(**point.build(Inputs("meta", 0)))
            for launch in launches:
                key = compile_key(launch)
                if key in seen:
                    continue
                seen.add(key)
                if len(seen) % of == at:
                    warm(launch)


def compile_key(launch: Any) -> Any:
    """Equal for launches that compile to the same code (nearly: what a value's alignment gives is in it)."""

    def kind(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return str(value.dtype)
        return (value % 16 == 0, value == 1) if isinstance(value, int) else type(value).__name__

    arguments = tuple((name, kind(value)) for name, value in launch.arguments.items())
    return launch.kernel.__name__, arguments, tuple(sorted(map(str, launch.constants.items()))), str(launch.config)


def warm(launch: Any) -> None:
    """Compile one launch."""
    options = {name: value for name, value in launch.config.options if name != CARVEOUT}
    try:
        launch.kernel.warmup(
            **launch.arguments, **launch.constants, grid=(1,), num_warps=launch.config.num_warps,
            num_stages=launch.config.num_stages, **options,
        )  # fmt: skip
    except Exception as error:  # noqa: BLE001 - said where it is timed
        print(f"not compiled ahead: {launch.kernel.__name__} {launch.config}: {str(error)[-200:]}", flush=True)


def caller_of(point: Point, trial: Trial) -> Callable[..., Any]:
    """The wrapper, or a rival."""
    return point.rivals[trial.name] if trial.name in point.rivals else spec(point.kernel).wrapper()


def rows_of(point: Point, gate: bool) -> Iterator[dict[str, Any]]:
    """One row per trial; after a red gate there is that row alone."""
    device, kernel = torch.device("cuda"), spec(point.kernel)
    arguments = point.build(Inputs(device, 1))
    of = {"op": point.op, "kernel": point.kernel, "label": point.label, "tokens": point.tokens}
    head = {"machine": machine_facts(), **of, "gate": "green"}
    if gate and sum(v.numel() for v in arguments.values() if isinstance(v, torch.Tensor)) < 2**30:
        verdict = check_arguments(kernel, point.label, arguments, kernel.wrapper())
        if not verdict.passes:
            yield head | {"gate": "red", "trial": "present", "table": "", "trouble": verdict.text}
            return
    moved = kernel.cost(arguments).bytes
    wanted = {name: value.clone() for name, value in run(kernel, kernel.wrapper(), clone(arguments)).items()}
    sets = [clone(arguments) for _ in range(copies_of(arguments, moved))]  # ops that update in place wear these out
    for trial in trials(point, target_of(device).arch):
        row = head | {"table": trial.table, "trial": trial.name, "bytes": moved}
        row["config"] = trial.config.to_json() if trial.config else None
        yield row | timed(point, trial, arguments, sets, wanted)
    del sets, arguments
    torch.cuda.empty_cache()


def copies_of(arguments: Arguments, moved: int) -> int:
    """So many sets of arguments that a round moves twice the L2, within the memory there is."""
    held = sum(v.numel() * v.element_size() for v in arguments.values() if isinstance(v, torch.Tensor))
    return max(1, min(MOST_SETS, -(-2 * L2_BYTES // max(moved, 1)), MOST_BYTES // max(held, 1)))


def timed(
    point: Point, trial: Trial, arguments: Arguments, sets: list[Arguments], wanted: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """Microseconds of a call, or what is wrong with it."""
    call, kernel = caller_of(point, trial), spec(point.kernel)
    with ExitStack() as stack:
        if trial.config is not None:
            stack.enter_context(pinned({trial.table: trial.config}))
        try:
            got = run(kernel, call, clone(arguments))
            off = max(distance(got[name], wanted[name]) for name in got)
            if not off < MOST_OFF:
                return {"trouble": f"differs by {off:.2e}"}
            times = {"us": round(graph_us(call, sets), 3)}
            if point.fresh:
                same = {name: sets[0][name] for name in point.fresh}
                times["us_fresh"] = round(graph_us(call, [{**one, **same} for one in sets]), 3)
            return {**times, "trouble": "", "off": off}
        except Exception as error:  # noqa: BLE001 - a config that cannot run is a finding
            return {"trouble": f"{type(error).__name__}: {str(error)[-160:]}"}


def graph_us(call: Callable[..., Any], sets: list[Arguments]) -> float:
    """Median microseconds of a call in a graph of at least 24."""
    calls = max(len(sets), 24)
    stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call(**sets[-1])
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for at in range(calls):
            call(**sets[at % len(sets)])
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)) * 1e3 / calls)
    return statistics.median(times)


def show(point: Point, rows: list[dict[str, Any]]) -> None:
    """The present time, rivals, and the best three candidates of each table."""
    print(f"{point.kernel} {point.label} T={point.tokens}", flush=True)
    for row in rows:
        if row["gate"] == "red":
            print(f"    RED {row['trouble'][:200]}", flush=True)
        elif not row["table"]:
            print(f"    {row.get('us', row['trouble'])!s:>9} {row.get('us_fresh', '')!s:>7} {row['trial']}", flush=True)
    for table in dict.fromkeys(row["table"] for row in rows if row["table"]):
        mine = [row for row in rows if row["table"] == table]
        for row in sorted((r for r in mine if "us" in r), key=lambda r: r["us"])[:3]:
            fresh = row.get("us_fresh", "")
            print(f"    {row['us']:>9} {fresh!s:>7} {row['trial'].replace('launch_pdl=1 ', '')}", flush=True)
        for trouble in dict.fromkeys(r["trouble"][-100:] for r in mine if r["trouble"]):
            print(f"          trouble: {trouble}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
