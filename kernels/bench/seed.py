"""The seed's own configuration on four or eight GPUs: Flash and Pro whole, overlap plans in turn, in ten minutes.

    export PYTHONPATH=.:kernels                                       # from a checkout that is not installed
    python kernels/bench/seed.py --out seed.jsonl                     # every stage that the GPUs here can run
    python kernels/bench/seed.py --out seed.jsonl --append --stages flash-tp4,flash-dp8     # what time left out
    python kernels/bench/seed.py --show seed.jsonl                    # the tables
    python kernels/bench/seed.py --device cpu --out dry.jsonl         # every stage on gloo, with few layers
    python kernels/bench/seed.py --layers 5 --isl 1024 --levels 1,4 --minutes 3 --out dry.jsonl     # a dry run on GPUs

Weights are random, quantised as released, and made on the GPUs. At each level one load decodes while plans take turns;
a plan's TPOT is the median time from decode step to decode step (over the tokens that a step brings, with a drafter),
compared round by round with ``off``. Before that, greedy tokens and fingerprints under every plan. After it, a profile
of each rank under ``off`` and under the plan that was best at the lowest level. Lines of the file are JSON objects,
written as they come; ``left_out`` names what there was no time for. **On GPUs it has had a dry run only, on two:**
docs/measurements/seed-h200.md.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import torch
from seed_plan import (
    PAGE,
    SKIPPED,
    Stage,
    chosen,
    level_row,
    markdown,
    new_tokens,
    plan_json,
    pool_tokens,
    step_times,
    turns,
)

import dsv4lab as lab
from dsv4lab.checkpoint.synth import write_synthetic
from dsv4lab.config.presets import preset
from dsv4lab.engine.link import Patience
from dsv4lab.errors import LabError
from dsv4lab.timeline.records import StepRecord
from dsv4lab.trace.collectives import arrival_skew

OPEN_S, LEVEL_S = 40.0, 20.0
"""Seconds that have to be left for a stage, or for a level, to begin."""

PATIENCE_S = 240.0
PROFILED = 6


class Steps:
    """Forwards as they come from the worker."""

    def __init__(self) -> None:
        self._came = threading.Condition()
        self._steps: list[StepRecord] = []

    def __call__(self, records: Sequence[StepRecord], _timeline: object) -> None:
        """Keep ``records``."""
        with self._came:
            self._steps += records
            self._came.notify_all()

    def turn(self, plan: str, requests: int, groups: int, since_ns: int, count: int) -> list[float]:
        """:func:`step_times` of steps that began after ``since_ns``, as soon as there are ``count``."""
        found: list[float] = []

        def enough() -> bool:
            nonlocal found
            later = (step for step in self._steps if step.start_ns >= since_ns)
            found = step_times(later, plan, requests, SKIPPED, groups)
            return len(found) >= count * groups

        with self._came:
            if not self._came.wait_for(enough, PATIENCE_S):
                raise TimeoutError(f"{len(found)} of {count} steps of {requests} requests under {plan} came about")
            self._steps.clear()
        return found


class Bench:
    """All stages, and the file."""

    def __init__(self, args: argparse.Namespace, out: IO[str], model: str | None) -> None:
        self._args = args
        self._out = out
        self._model = model
        self._end = time.monotonic() + 60 * args.minutes

    def run(self, stages: Sequence[Stage]) -> bool:
        """Measure; whether tokens were the same under all plans everywhere."""
        self._write(kind="machine", **_machine(self._args), stages=plan_json(stages))
        good = True
        for stage in stages:
            if self._left() < OPEN_S:
                self._write(kind="left_out", stage=stage.name, what="all of it: no time left")
                continue
            try:
                good &= self._stage(self._fitted(stage))
            except (LabError, TimeoutError) as error:
                self._write(kind="left_out", stage=stage.name, what=f"the rest: {error}")
                good = False
        return good

    def _fitted(self, stage: Stage) -> Stage:
        """What this device can do of it."""
        plans = tuple(p for p in stage.plans if p != "auto" or (self._args.device != "cpu" and stage.dp == 1))
        if plans != stage.plans:
            self._write(kind="left_out", stage=stage.name, what="plan auto: it times graphs on GPUs")
        levels = stage.levels if self._args.levels is None else tuple(filter(stage.takes, self._args.levels))
        return replace(stage, plans=plans, levels=levels)

    def _stage(self, stage: Stage) -> bool:
        args, most = self._args, max(stage.levels)
        began = time.monotonic()
        gpu = args.device != "cpu"
        with lab.open(
            self._model or stage.preset,
            device=args.device,
            dtype="bfloat16" if gpu else "float32",
            weights="stored" if gpu else "dense",
            kv_cache_dtype="fp8",
            num_layers=args.layers,
            plan="off",
            max_running_requests=-(-most // stage.dp),
            max_total_tokens=pool_tokens(stage, args.isl, args.rounds, args.turn),
            chunked_prefill_size=args.chunk,
            patience=Patience(call_s=PATIENCE_S, stall_s=PATIENCE_S),
            **{**stage.fields(), **({} if gpu else {"graphs": False})},
        ) as client:
            self._write(kind="open", stage=stage.name, seconds=time.monotonic() - began)
            same = self._tokens(stage, client)
            best = "off"
            for level in sorted(stage.levels):
                if self._left() < LEVEL_S:
                    self._write(kind="left_out", stage=stage.name, what=f"concurrency {level}: no time left")
                    continue
                row = self._level(stage, client, level)
                if best == "off":
                    best = min(row["plans"], key=lambda plan: float(row["plans"][plan]["delta"]))
            if "auto" in stage.plans:
                self._write(kind="auto", stage=stage.name, graphs=client.status()["graphs"]["auto"])
            for plan in dict.fromkeys(("off", best)):
                if self._left() < LEVEL_S:
                    self._write(kind="left_out", stage=stage.name, what=f"profile of {plan}: no time left")
                else:
                    self._profile(stage, client, plan)
        return same

    def _tokens(self, stage: Stage, client: lab.EngineClient) -> bool:
        """Greedy tokens and fingerprints of as many requests as ranks lead groups, at least two, under every plan."""
        n, found = min(max(2, stage.dp), max(stage.levels)), set()
        for plan in stage.plans:
            client.set_plan(plan)
            result = client.load(n, min(self._args.isl, 2 * PAGE), self._args.osl, fingerprints=True)
            prints = tuple(request.fingerprints for request in result.requests)
            found.add((tuple(map(tuple, result.tokens)), prints))
        same = len(found) == 1
        self._write(kind="tokens", stage=stage.name, requests=n, plans=list(stage.plans), same=same)
        return same

    def _level(self, stage: Stage, client: lab.EngineClient, level: int) -> dict[str, Any]:
        args, steps = self._args, Steps()
        times: dict[str, list[list[float]]] = {plan: [] for plan in stage.plans}
        client.set_plan("off")
        unwatch = client.on_step(steps)
        requests = level // stage.dp  # of a group; groups run in rounds
        try:
            client.start_load(level, prompt_tokens=args.isl, max_new_tokens=new_tokens(stage, args.rounds, args.turn))
            for plan in turns(stage.plans, args.rounds):
                client.set_plan(plan)
                times[plan].append(steps.turn(plan, requests, stage.dp, time.perf_counter_ns(), args.turn))
            accepted = float(client.status()["speculation"]["accepted_per_step"]) if stage.block else 0.0
        finally:
            client.stop_load()
            unwatch()
        row = level_row(stage, level, times, accepted)
        self._write(**row)
        told = ", ".join(f"{plan} {r['tpot_ms']:.3f} ms {100 * r['delta']:+.1f} %" for plan, r in row["plans"].items())
        print(f"[{self._left():4.0f} s left] {stage.name} at {level}: {told}", flush=True)
        return row

    def _profile(self, stage: Stage, client: lab.EngineClient, plan: str) -> None:
        client.set_plan(plan)
        level = sorted(stage.levels)[min(1, len(stage.levels) - 1)]
        profile = client.profile(PROFILED, concurrency=level, prompt_tokens=min(self._args.isl, 4 * PAGE))
        timeline, ranks = profile.timeline, []
        for rank in sorted(set(timeline.rank.tolist())):
            mine = timeline.select(timeline.rank == rank).stream_busy()
            main = [s for s in mine.streams if s.role == "main"]
            ranks.append(
                {
                    "rank": rank,
                    "main_ms": sum(s.busy_ns for s in main) / 1e6,
                    "side_ms": sum(s.busy_ns for s in mine.streams if s.role != "main") / 1e6,
                    "concurrency": mine.concurrency,
                }
            )
        wall, said = sum(step.dur_ns for step in profile.steps) / 1e6, list(profile.warnings)
        row = {"plan": plan, "level": level, "steps": len(profile.steps), "wall_ms": wall, "ranks": ranks}
        self._write(kind="profile", stage=stage.name, **row, arrivals=_arrivals(timeline), warnings=said)

    def _left(self) -> float:
        return self._end - time.monotonic()

    def _write(self, **row: Any) -> None:
        self._out.write(json.dumps(row) + "\n")
        self._out.flush()


def _arrivals(timeline: Any) -> dict[str, Any] | None:
    """How far apart ranks came to their collectives; None where no two ranks show one."""
    if not (found := arrival_skew(timeline)):
        return None
    skews = sorted(one.skew_ns for one in found)
    last = [one.last_rank for one in found]
    return {
        "collectives": len(found),
        "median_skew_us": skews[len(skews) // 2] / 1e3,
        "most_skew_us": skews[-1] / 1e3,
        "last_rank": max(set(last), key=last.count),
    }


def _machine(args: argparse.Namespace) -> dict[str, Any]:
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if args.device != "cpu" else []
    told = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
    return {"platform": platform.platform(), "torch": str(torch.__version__), "gpus": gpus, "arguments": told}


def dry_model(folder: Path) -> str:
    """A checkpoint of a few small layers that eight ranks can share."""
    model = replace(
        preset("tiny"), name="dry", num_attention_heads=8, o_groups=8, moe_intermediate_size=64,
        compress_ratios=(0, 4, 128, 4),
    )  # fmt: skip
    write_synthetic(folder / "dry", model, weights="float32", draft="dspark")
    return str(folder / "dry")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure or show; 1 if tokens differed under some plan."""
    args = _parse(argv)
    if args.show is not None:
        print(markdown([json.loads(line) for line in args.show.read_text(encoding="utf-8").splitlines()]), end="")
        return 0
    gpus = torch.cuda.device_count() if args.device != "cpu" else 8
    stages = chosen(args.stages, gpus)
    with tempfile.TemporaryDirectory() as folder, args.out.open("a" if args.append else "w", encoding="utf-8") as out:
        model = dry_model(Path(folder)) if args.device == "cpu" else None
        good = Bench(args, out, model).run(stages)
    print(markdown([json.loads(line) for line in args.out.read_text(encoding="utf-8").splitlines()]), end="")
    return int(not good)


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _levels(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in _words(text))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="the seed's configuration on four or eight GPUs")
    parser.add_argument("--out", type=Path, default=Path("seed.jsonl"))
    parser.add_argument("--append", action="store_true", help="keep what is in --out")
    parser.add_argument("--show", type=Path, help="print the tables of such a file, and measure nothing")
    parser.add_argument("--stages", type=_words, default=[], help="default: all that these GPUs can run")
    parser.add_argument("--levels", type=_levels, default=None, help="default: each stage's own")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, help="a dry run: only so many layers of a preset, drafters whole")
    parser.add_argument("--isl", type=int, default=None, help="default: 8192, on the CPU 40")
    parser.add_argument("--osl", type=int, default=None, help="tokens that are compared; default: 128, on the CPU 8")
    parser.add_argument("--chunk", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=None, help="turns of each plan; default: 5, on the CPU 1")
    parser.add_argument("--turn", type=int, default=None, help="steps of a turn; default: 16, on the CPU 2")
    parser.add_argument("--minutes", type=float, default=9.5)
    args = parser.parse_args(argv)
    small = args.device == "cpu"
    if small and args.layers is not None:
        parser.error("--layers cuts presets, on GPUs: the CPU has a model of four layers")
    for name, large, little in (("isl", 8192, 40), ("osl", 128, 8), ("rounds", 5, 1), ("turn", 16, 2)):
        if getattr(args, name) is None:
            setattr(args, name, little if small else large)
    return args


if __name__ == "__main__":
    sys.exit(main())
