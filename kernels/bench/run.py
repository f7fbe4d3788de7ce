"""Time every bench case of the registry on this GPU, after its correctness gate; one JSON line each.

    python kernels/bench/run.py --out kernels/bench/results/h200.jsonl [--kernels a,b]

A case whose gate is red is written with its verdict and without a time. Each line names machine, versions, clocks,
power, bytes and flops, and how near the time comes to the floor that the cost model and the measured copy rate give.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from dsv4_kernels.launch import recorded
from dsv4_kernels.registry import Case, KernelSpec, specs
from dsv4_kernels.target import target_of
from dsv4_kernels.testing.inputs import Inputs
from dsv4_kernels.testing.timer import time_call
from dsv4_kernels.testing.walk import attempt

COPY_BYTES = 2**31
MATMUL = 8192


def main() -> int:
    """Run; the exit code is 1 if a gate was red."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSONL file to append to")
    parser.add_argument("--kernels", default="", help="names, comma-separated (default: all)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    device = torch.device("cuda")
    machine = machine_facts() | ceilings(device)
    print(json.dumps(machine), flush=True)
    names = [name for name in args.kernels.split(",") if name]
    good = True
    with args.out.open("a", encoding="utf-8") as lines:
        for spec in specs().values():
            if names and spec.name not in names:
                continue
            for case in (case for case in spec.cases if case.bench):
                for row in rows_of(spec, case, device, args.seed, machine):
                    good &= row["gate"] == "green"
                    lines.write(json.dumps(row) + "\n")
                    lines.flush()
                    print(text_of(row), flush=True)
    return 0 if good else 1


def rows_of(spec: KernelSpec, case: Case, device: torch.device, seed: int, machine: dict[str, Any]) -> Any:
    """One row per variant of the kernel on this device."""
    for variant, call in spec.wrappers(target_of(device).arch).items():
        verdict = attempt(spec, case, device, call, seed)
        row = {"kernel": spec.name, "variant": variant, "case": case.name, "gate": "green", "verdict": verdict.text}
        if not verdict.passes:
            yield row | {"gate": "red"} | stamp(machine)
            continue
        arguments = case.build(Inputs(device, seed))
        cost = spec.cost(arguments)
        with recorded() as launches:
            call(**arguments)
        configs = [f"{launch.kernel.__name__} {launch.config}" for launch in launches]
        timing = time_call(call, arguments, cost.bytes)
        floor = cost.floor_us(machine["copy_gbps"], machine["bf16_tflops"])
        yield row | {
            "us": round(timing.us, 3), "us_p10": round(timing.us_p10, 3), "us_p90": round(timing.us_p90, 3),
            "calls": timing.calls, "replays": timing.replays, "bytes": cost.bytes, "flops": cost.flops,
            "gbps": round(cost.bytes / timing.us / 1e3, 1), "tflops": round(cost.flops / timing.us / 1e6, 2),
            "floor_us": round(floor, 3), "of_floor": round(floor / timing.us, 4), "configs": configs,
        } | stamp(machine)  # fmt: skip
        del arguments
        torch.cuda.empty_cache()


def text_of(row: dict[str, Any]) -> str:
    """One line for the reader."""
    head = f"{row['kernel']:<22}{row['variant']:<10}{row['case']:<28}"
    if row["gate"] == "red":
        return f"{head} RED {row['verdict'][:160]}"
    rates = f"{row['us']:>10.2f} us {row['gbps']:>8.0f} GB/s {row['tflops']:>8.1f} TF"
    return f"{head}{rates} {row['of_floor']:>7.1%} of floor"


def stamp(machine: dict[str, Any]) -> dict[str, Any]:
    """Machine, versions, and clocks and power at this moment."""
    return {"machine": machine, "now": smi("clocks.sm,clocks.mem,power.draw,temperature.gpu"), "at": _now()}


def machine_facts() -> dict[str, Any]:
    """GPU, driver and versions."""
    import triton

    hip = torch.version.hip
    return {
        "gpu": torch.cuda.get_device_name(), "driver": smi("driver_version"), "torch": torch.__version__,
        "triton": triton.__version__, "cuda": torch.version.cuda, "hip": hip, "date": _now(),
    }  # fmt: skip


def ceilings(device: torch.device) -> dict[str, float]:
    """Copy rate (bytes read plus written, by a kernel: a graph's own copies are slower) and bf16 matmul rate."""
    source = Inputs(device, 0).normal(COPY_BYTES // 2)
    copy = time_call(lambda x, y: torch.mul(x, 1, out=y), {"x": source, "y": torch.empty_like(source)}, COPY_BYTES)
    a, b = (Inputs(device, n).normal(MATMUL, MATMUL) for n in range(2))
    matmul = time_call(lambda a, b, out: torch.mm(a, b, out=out), {"a": a, "b": b, "out": torch.empty_like(a)}, 1 << 40)
    rates = {"copy_gbps": 2 * COPY_BYTES / copy.us / 1e3, "bf16_tflops": 2 * MATMUL**3 / matmul.us / 1e6}
    return {name: round(rate, 1) for name, rate in rates.items()}


def smi(query: str) -> str:
    """What nvidia-smi says; empty where there is none."""
    try:
        command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return ""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit(main())
