"""Overlap on this GPU: correctness gate, then plans against each other at every batch, decode steps in graphs.

    python kernels/bench/overlap.py --out DIR [--shape flash-tp8] [--layers 12] [--minutes 8]

Writes DIR/overlap-SHAPE.json after every part, DIR/probe.json, and traces of `off` and of the best plan. A shape with
``-tp8`` is one rank's share of eight; its all-reduces are left out. Weights are random, fp8 with fp4 experts. Contexts
are random rows; every request stands at the same position. The gate comes first, and without it nothing is timed.
``--dry-run`` walks through it on the CPU with the tests' recorded device and model `tiny`: its times mean nothing.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from run import machine_facts, smi

from dsv4lab.checkpoint.source import synthetic_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.model import ModelConfig
from dsv4lab.config.presets import first_layers, preset
from dsv4lab.engine.auto_plan import choose
from dsv4lab.engine.device_runs import DeviceRuns
from dsv4lab.engine.runner import Runner
from dsv4lab.kv.metadata import BatchItem
from dsv4lab.overlap.plan import OFF, OverlapPlan, resolve_plan
from dsv4lab.overlap.recording import replay_lanes
from dsv4lab.overlap.spin import SpinBench
from dsv4lab.predict.probe import model_device, probe, probe_file
from dsv4lab.tuning.stats import difference, median, percentile

PLANS = ("off", "hip", "cuda", "moe", "cuda+moe")
PAGE = 256


def main() -> int:
    """Run all parts that fit into the time; 1 if the gate was red."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", default="flash-tp8", choices=("flash", "flash-tp8", "pro-tp8"))
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--isl", type=int, default=8192)
    parser.add_argument("--concurrency", default="1,2,4,8,16,32,64")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--in-a-row", type=int, default=8, help="replays of one measurement")
    parser.add_argument("--replays", type=int, default=1000, help="of the best plan, each compared bit for bit")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--kv", default="bf16", choices=("bf16", "fp8"))
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    return Bench(args).run()


def model_of(shape: str, layers: int) -> ModelConfig:
    """The first ``layers`` layers of a released model, or one rank's share of them."""
    whole = preset(shape.partition("-")[0])
    cut = replace(first_layers(whole, layers), name=shape, mtp_layers=0, dspark=None)
    if not shape.endswith("-tp8"):
        return cut
    return replace(
        cut,
        vocab_size=whole.vocab_size // 8,
        num_attention_heads=whole.num_attention_heads // 8,
        o_groups=max(1, whole.o_groups // 8),
        moe_intermediate_size=whole.moe_intermediate_size // 8,
    )


class Bench:
    """One model on one GPU, and the file that fills up with what was found."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.end = time.monotonic() + 60 * args.minutes
        self.sizes = [int(n) for n in args.concurrency.split(",")]
        self.dry = args.dry_run
        if self.dry:
            self.sizes, args.isl, args.rounds, args.replays = [1, 3], 300, 2, 5
        self.found: dict[str, Any] = {"arguments": {k: str(v) for k, v in vars(args).items()}, "machine": machine()}

    def run(self) -> int:
        """The parts, in order of importance."""
        self.open()
        if not self.gate():
            self.save()
            return 1
        for n in self.sizes:
            if self.left() < 20:
                self.found.setdefault("left_out", []).append(f"concurrency {n}: no time")
                continue
            self.found.setdefault("steps", {})[str(n)] = self.time_plans(n)
            self.save()
        for part in (self.many_replays, self.probe, self.traces):
            if self.left() > 15:
                part()
                self.save()
            else:
                self.found.setdefault("left_out", []).append(part.__name__)
        self.save()
        print(json.dumps(self.found.get("summary", {}), indent=1))
        return 0

    def left(self) -> float:
        """Seconds."""
        return self.end - time.monotonic()

    def open(self) -> None:
        """Weights, pool with random rows, runner."""
        begun = time.monotonic()
        model, device = (preset("tiny"), "cpu") if self.dry else (model_of(self.args.shape, self.args.layers), "cuda")
        most, pages = max(self.sizes), -(-(self.args.isl + 64) // PAGE)
        config = EngineConfig(
            self.args.shape.partition("-")[0],
            device=device,
            dtype="float32" if self.dry else "bfloat16",
            weights="dense" if self.dry else "stored",
            max_running_requests=most,
            max_total_tokens=most * pages * PAGE,
            chunked_prefill_size=512,
            kv_cache_dtype="float32" if self.dry else self.args.kv,
            index_cache_dtype="float32" if self.dry else self.args.kv,
            graph_buckets=tuple(sorted({*self.sizes, 4})),
            max_graphs=256,
        )
        weights = dry_weights(model) if self.dry else synthetic_weights(model, 0, torch.bfloat16, device)
        self.runner = Runner(model, weights, config, device=dry_device() if self.dry else None)
        fill(self.runner)
        self.pages = pages
        self.say("open", {"seconds": time.monotonic() - begun, "layers": len(model.compress_ratios)})

    @property
    def gpu(self) -> DeviceRuns:
        """The runner's device."""
        assert self.runner.gpu is not None
        return self.runner.gpu

    def items(self, n: int) -> list[BatchItem]:
        """One token of each of ``n`` requests at position ISL, which completes an entry of ratio 4."""
        at = self.args.isl | 3
        return [
            BatchItem(s, tuple(range(1 + (s - 1) * self.pages, 1 + s * self.pages)), at, (1 + s,))
            for s in range(1, n + 1)
        ]

    def launcher(self, n: int, plan: OverlapPlan) -> Callable[[], Any]:
        """Issue one decode step of ``n`` requests under ``plan`` as a graph, capturing it now."""
        shape = self.runner.prepare(self.items(n), "decode")

        def launch() -> Any:
            with torch.inference_mode():
                return self.gpu.launch(shape, plan, lambda compiled: compiled)

        launch().record()
        return launch

    def gate(self) -> bool:
        """Same bits of logits and pool for all plans, graphs and eager; padding; no allocation in replays."""
        verdicts: dict[str, bool] = {}
        for n in (min(2, max(self.sizes)), 3) if max(self.sizes) >= 3 else (1,):
            self.runner.set_plan("off")
            first = self.runner.forward(self.items(n), "decode").logits
            verdicts[f"finite {n}"] = bool(torch.isfinite(first).all())
            pool = [t.clone() for ts in self.runner.pool.resources().values() for t in ts]
            for name in PLANS:
                self.runner.set_plan(name)
                again = self.runner.forward(self.items(n), "decode").logits
                verdicts[f"graph {name} {n}"] = same([first], [again]) and self.pool_is(pool)
                verdicts[f"eager {name} {n}"] = same([first], [self.eager(n, name)]) and self.pool_is(pool)
        verdicts["no_alloc"] = self.replays_allocate_nothing()
        self.found["gate"] = {"green": all(verdicts.values()), "verdicts": verdicts}
        self.say("gate", {name: good for name, good in verdicts.items() if not good} or "green")
        return all(verdicts.values())

    def eager(self, n: int, plan: str) -> torch.Tensor:
        """Logits of the step without a graph, on the same padded inputs."""
        shape = self.runner.prepare(self.items(n), "decode")
        compiled = self.runner._programs.compiled(shape, resolve_plan(plan))
        with torch.inference_mode():
            self.gpu.streams.launch(compiled, self.runner.arena).record()
        return self.runner.arena.buffers["logits"][:n].to("cpu", copy=True)

    def pool_is(self, before: Sequence[torch.Tensor]) -> bool:
        """Whether every byte of the pool is that of ``before``."""
        return same(before, [t for ts in self.runner.pool.resources().values() for t in ts])

    def replays_allocate_nothing(self) -> bool:
        """A hundred replays leave the allocator as it was."""
        launch = self.launcher(min(self.sizes), resolve_plan("cuda"))
        before = self.allocated()
        for _ in range(5 if self.dry else 100):
            launch()
        self.gpu.streams.api.synchronize()
        return self.allocated() == before

    def allocated(self) -> int:
        """Bytes that torch has handed out."""
        return 0 if self.dry else int(torch.cuda.memory_allocated())

    def time_plans(self, n: int) -> dict[str, Any]:
        """Every plan in turn; ratios to `off` within a round.

        ``us`` is a step of several in a row; ``single_us`` one alone, with the host's launch.
        """
        plans = [p for p in map(resolve_plan, PLANS) if p == OFF or self.differs(n, p)]
        launches = [self.launcher(n, plan) for plan in plans]
        us = self.gpu.turns_us(plans, self.args.rounds, self.args.in_a_row)
        rows = {plan.name: timing(times, us[0]) for plan, times in zip(plans, us, strict=True)}
        for plan, launch in zip(plans, launches, strict=True):
            program = self.program(n, plan)
            rows[plan.name]["lanes"] = len(replay_lanes(program))
            rows[plan.name]["streams"] = len(program.streams)
            rows[plan.name]["single_us"] = statistics.median(launch().us() for _ in range(7))
        auto = choose(plans, us).plan.name
        best = min(rows, key=lambda name: rows[name]["us"])
        self.found.setdefault("summary", {})[str(n)] = {
            "off_us": rows["off"]["us"], "best": best, "delta": rows[best]["delta"], "auto": auto,
            "auto_delta": rows[auto]["delta"], "tokens_per_s": n * 1e6 / rows[best]["us"],
        }  # fmt: skip
        self.say(f"concurrency {n}", {name: f"{row['us']:.1f} us {row['delta']:+.1%}" for name, row in rows.items()})
        return {"plans": rows, "auto": auto}

    def program(self, n: int, plan: OverlapPlan) -> Any:
        """The stream program of ``n`` requests."""
        shape = self.runner.prepare(self.items(n), "decode")
        return self.runner._programs.compiled(shape, plan).program

    def differs(self, n: int, plan: OverlapPlan) -> bool:
        """Whether ``plan`` moves anything in a step of ``n`` requests."""
        return len(self.program(n, plan).streams) > 1

    def many_replays(self) -> None:
        """The best plan of the smallest batch over and over, its logits compared every time."""
        n = min(self.sizes)
        best = self.found["summary"][str(n)]["best"]
        launch = self.launcher(n, resolve_plan(best))
        first = self.runner.arena.buffers["logits"][:n].clone()
        good = 0
        for _ in range(self.args.replays):
            launch()
            good += bool(torch.equal(self.runner.arena.buffers["logits"][:n], first))
        self.found["replays"] = {"plan": best, "n": n, "replays": self.args.replays, "identical": good}
        self.say("replays", self.found["replays"])

    def probe(self) -> None:
        """The probe's file, for `dsv4lab calibrate`."""
        bench = SpinBench(self.gpu.streams.api, rounds=5)
        side = bench.distinct_streams(4 if self.dry else 30)
        rows, found = probe(bench.measure, side)
        told = {**found.to_json(), "host_us": bench.host_us()}
        device = model_device(str(self.found["machine"].get("gpu", "")))
        document = probe_file(device, self.found["machine"], rows, told)
        (self.args.out / "probe.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        self.say("probe", told)

    def traces(self) -> None:
        """Two steps of `off` and of the best plan under torch's profiler, as gzipped Kineto files."""
        n = min(self.sizes)
        for name in ("off", self.found["summary"][str(n)]["best"]):
            launch = self.launcher(n, resolve_plan(name))
            activities = list(torch.profiler.supported_activities())
            with torch.profiler.profile(activities=activities) as profile:
                for _ in range(2):
                    launch().record()
            path = self.args.out / f"{self.args.shape}-{name.replace('+', '_')}.pt.trace.json"
            profile.export_chrome_trace(str(path))
            path.with_suffix(".json.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
        self.say("traces", "written")

    def say(self, what: str, value: object) -> None:
        """Tell it, with the seconds that are left."""
        print(f"[{self.left():5.0f} s left] {what}: {json.dumps(value, default=str)}", flush=True)

    def save(self) -> None:
        """Write what there is."""
        path = self.args.out / f"overlap-{self.args.shape}.json"
        path.write_text(json.dumps(self.found, indent=1, default=str) + "\n", encoding="utf-8")


def timing(us: Sequence[float], off: Sequence[float]) -> dict[str, Any]:
    """Median, and the relative difference to `off` over the rounds, with its interval."""
    found = difference([math.log(mine / other) for mine, other in zip(us, off, strict=True)])
    return {
        "us": median(us), "us_p10": percentile(us, 10), "us_p90": percentile(us, 90),
        "delta": found.delta, "low": found.low, "high": found.high, "rounds": found.pairs,
    }  # fmt: skip


def same(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    """Equal bytes."""
    return all(
        torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
        for a, b in zip(left, right, strict=True)
    )


def fill(runner: Runner) -> None:
    """Random finite numbers into every plain tensor of the pool, which stands for contexts of any length."""
    generator = torch.Generator(runner.place.device).manual_seed(1)
    for tensors in runner.pool.resources().values():
        for tensor in tensors:
            if tensor.is_floating_point():
                tensor.normal_(0.0, 0.5, generator=generator)


def machine() -> dict[str, Any]:
    """What the figures come from."""
    python = {"python": platform.python_version(), "torch": torch.__version__}
    if not torch.cuda.is_available():
        return python
    return {**python, **machine_facts(), "clocks_and_limit": smi("clocks.sm,clocks.mem,power.limit")}


def dry_weights(model: ModelConfig) -> Any:
    """Dense weights of the smallest model."""
    from dsv4lab.checkpoint.synthetic import random_weights

    return random_weights(model, 0)


def dry_device() -> Any:
    """The tests' recorded device."""
    from tests.cpu.fake_device import FakeDevice

    return FakeDevice()


if __name__ == "__main__":
    sys.exit(main())
