"""The grid of sparse attention on this GPU: every candidate kernel and split count, gate first, one JSON line each.

    python kernels/bench/attention.py --out FILE [--what gate,default,decode,prefill] [--quick] [--seconds 200]

Decode: heads 16, 64, 128; tokens 1 to 128; 192 to 4096 rows of a 400,000-row pool, as the recorded peers were timed.
Each line is one candidate (``kernel``, ``config``, ``splits``); a candidate whose gate is red is not timed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from dsv4_kernels.launch import PDL, Config, config, pinned
from dsv4_kernels.registry import Case, spec
from dsv4_kernels.sparse_decode.cases import decode_arguments, two_pools
from dsv4_kernels.sparse_prefill.cases import prefill_arguments
from dsv4_kernels.testing.inputs import Inputs
from dsv4_kernels.testing.timer import time_call
from dsv4_kernels.testing.walk import attempt
from run import ceilings, machine_facts, stamp

POOL_ROWS = 400_000
ONE_COPY = 1 << 40  # bytes a call is said to move, so that it is timed on one set of arguments, as the peers were
TOKENS, LENGTHS = (1, 4, 8, 32, 64, 128), (192, 640, 1152, 4096)
PREFILL = ((64, 1024, 640), (64, 4096, 640), (64, 8192, 1152), (128, 1024, 640), (128, 4096, 640), (128, 8192, 1152))
Candidate = tuple[str, str, dict[str, Config]]


_skipped: list[str] = []


def candidates(op: str, heads: int) -> Iterator[Candidate]:
    """Variant, label and pins of everything worth timing for ``heads`` on a Hopper GPU, without what is skipped."""
    found = all_candidates(op, heads)
    return (c for c in found if not any(text in c[1] for text in _skipped))


def all_candidates(op: str, heads: int) -> Iterator[Candidate]:
    """Everything worth timing for ``heads``."""
    table, extra = op, {"TOKENS": 1} if op == "sparse_prefill" else {}
    yield "hopper", "hopper", {}
    if heads >= 64:
        shapes = [(8, 2, 64, 64, 0)]
    else:
        shapes = [(4, 3, heads, 64, 1), (4, 3, heads, 32, 0), (4, 4, heads, 32, 0), (4, 4, heads, 16, 0)]
    for warps, stages, block_h, block_k, on_rows in shapes:
        options = PDL if op == "sparse_decode" else {}
        chosen = config(warps, stages, options, BLOCK_H=block_h, BLOCK_K=block_k, KEYS_ON_ROWS=on_rows, **extra)
        yield "portable", str(chosen), {table: chosen}


def wrapper_of(op: str, variant: str) -> Callable[..., Any]:
    """The function of a candidate; the Hopper kernel also for heads that the default would not give it."""
    if variant == "hopper":
        module = importlib.import_module(f"dsv4_kernels.{op}.hopper_op")
        found: Callable[..., Any] = getattr(module, f"{op}_hopper")
        return found
    return spec(op).wrapper(variant)


def split_choices(heads: int, tokens: int, length: int, block_k: int) -> list[int]:
    """Split counts around one full wave of 132 SMs, and two and four."""
    programs = tokens * -(-heads // 64)
    most = min(-(-length // block_k), 64)
    wave = max(1, 132 // programs)
    picked = {1, wave, max(1, wave // 2), max(1, wave // 4), max(1, 264 // programs), max(1, 528 // programs)}
    return sorted({min(n, most) for n in picked})


def block_of(pins: dict[str, Config]) -> int:
    """Keys of a block."""
    return next((c["BLOCK_K"] for c in pins.values()), 64)


def gate(op: str, quick: bool, among: list[int]) -> dict[str, str]:
    """Verdict by candidate label, over the cases of the op that suit its heads."""
    verdicts: dict[str, str] = {}
    found = spec(op)
    kinds = ("ragged", "poisoned", "strided", "far", "many", "chunk", "prefix")
    cases = [c for c in found.cases if c.name.startswith(kinds)]
    for heads in among:
        for variant, label, pins in candidates(op, heads):
            for case in cases:
                if heads_of(case) != heads or (quick and case.name.startswith("far")):
                    continue
                with pinned(pins):
                    verdict = attempt(found, case, torch.device("cuda"), wrapper_of(op, variant))
                bad = "" if verdict.passes else f"{case.name}: {verdict.text}"
                key = f"{heads} {variant} {label}"
                verdicts[key] = verdicts.get(key, "") + bad
                if bad:
                    print("RED", op, key, bad, flush=True)
    return verdicts


def heads_of(case: Case) -> int:
    """Heads of a case, from its shapes."""
    return int(case.build(Inputs("meta", 0))["q"].shape[1])


def decode_rows(seconds: float, verdicts: dict[str, str], quick: bool, among: list[int]) -> Iterator[dict[str, Any]]:
    """Timings of every decode candidate on the grid, until the time is up."""
    end = time.monotonic() + seconds
    found = spec("sparse_decode")
    pool = Inputs("cuda", 0).normal(POOL_ROWS, 512)
    grid = [(h, t, n) for h in among for t in TOKENS for n in LENGTHS]
    for heads, tokens, length in grid[:: 5 if quick else 1]:
        arguments = decode_arguments(Inputs("cuda", 1), heads, (length,) * tokens, rows=POOL_ROWS, pool=pool)
        cost = found.cost(arguments)
        for variant, label, pins in candidates("sparse_decode", heads):
            if verdicts.get(f"{heads} {variant} {label}"):
                continue
            for splits in split_choices(heads, tokens, length, block_of(pins)):
                if time.monotonic() > end:
                    return
                call = wrapper_of("sparse_decode", variant)
                try:
                    with pinned(pins):
                        us = timed(call, arguments, {"splits": splits})
                except Exception as error:  # noqa: BLE001 - a config that does not fit is a result too
                    print("FAILED", variant, label, heads, tokens, length, str(error)[:200], flush=True)
                    continue
                yield {
                    "kernel": "sparse_decode", "variant": variant, "config": label, "splits": splits, "heads": heads,
                    "tokens": tokens, "length": length, **us, "bytes": cost.bytes, "flops": cost.flops,
                }  # fmt: skip


def default_rows(seconds: float, among: list[int]) -> Iterator[dict[str, Any]]:
    """What callers get, on a bf16 and on an fp8 pool: no pins, the splits that follow from the shapes."""
    end = time.monotonic() + seconds
    pools = {"sparse_decode": {"pool": Inputs("cuda", 0).normal(POOL_ROWS, 512)}}
    pools["sparse_decode_fp8"] = two_pools(Inputs("cuda", 0), POOL_ROWS, 512)
    for heads, tokens, length in [(h, t, n) for h in among for t in TOKENS for n in LENGTHS]:
        for name, pool in pools.items():
            if time.monotonic() > end:
                return
            arguments = decode_arguments(
                Inputs("cuda", 1), heads, (length,) * tokens, rows=POOL_ROWS, pool=pools["sparse_decode"]["pool"]
            )
            arguments |= pool
            cost = spec(name).cost(arguments)
            yield {
                "kernel": name, "variant": "default", "heads": heads, "tokens": tokens, "length": length,
                **timed(spec(name).wrapper(), arguments, {}), "bytes": cost.bytes, "flops": cost.flops,
            }  # fmt: skip


def timed(call: Callable[..., Any], arguments: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Median and percentiles of a graph of 20 calls on one set of arguments, as the peers were timed."""
    timing = time_call(lambda **kw: call(**kw, **extra), arguments, ONE_COPY, replays=15, budget_ms=60.0)
    return {"us": round(timing.us, 3), "us_p10": round(timing.us_p10, 3), "us_p90": round(timing.us_p90, 3)}


def prefill_rows(seconds: float, verdicts: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Timings of the prefill candidates: a window of 128 rows of this forward, the other keys from the pool."""
    end = time.monotonic() + seconds
    found = spec("sparse_prefill")
    for heads, tokens, keys in (*PREFILL, (16, 4096, 640), (16, 4096, 128), (64, 4096, 128)):
        arguments = prefill_arguments(Inputs("cuda", 1), heads, (tokens,), keys - 128, rows=70_000)
        cost = found.cost(arguments)
        for variant, label, pins in [*candidates("sparse_prefill", heads), ("portable", "table", {})]:
            if verdicts.get(f"{heads} {variant} {label}") or time.monotonic() > end:
                continue
            try:
                with pinned(pins):
                    us = timed(wrapper_of("sparse_prefill", variant), arguments, {})
            except Exception as error:  # noqa: BLE001 - a config that does not fit is a result too
                print("FAILED", variant, label, heads, tokens, keys, str(error)[:200], flush=True)
                continue
            yield {
                "kernel": "sparse_prefill", "variant": variant, "config": label, "heads": heads, "tokens": tokens,
                "length": keys, **us, "bytes": cost.bytes, "flops": cost.flops,
                "tflops": round(cost.flops / us["us"] / 1e6, 1),
            }  # fmt: skip


def main() -> int:
    """Run; the exit code is 1 if a gate was red."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--what", default="gate,decode,prefill")
    parser.add_argument("--quick", action="store_true", help="every fifth point of the grid")
    parser.add_argument("--seconds", type=float, default=200.0, help="for each of decode and prefill")
    parser.add_argument("--heads", default="16,64,128")
    parser.add_argument("--skip", default="", help="leave out candidates with this in their label")
    args = parser.parse_args()
    among = [int(h) for h in args.heads.split(",")]
    what = args.what.split(",")
    if args.skip:
        _skipped.append(args.skip)
    verdicts = {op: gate(op, args.quick, among) if "gate" in what else {} for op in ("sparse_decode", "sparse_prefill")}
    print("gates:", {op: sum(map(bool, v.values())) for op, v in verdicts.items()}, "red", flush=True)
    if what == ["gate"]:
        return int(any(text for v in verdicts.values() for text in v.values()))
    machine = machine_facts() | ceilings(torch.device("cuda"))
    print(json.dumps(machine), flush=True)
    with args.out.open("a", encoding="utf-8") as lines:
        rows = []
        if "default" in what:
            rows.append(default_rows(args.seconds, among))
        if "decode" in what:
            rows.append(decode_rows(args.seconds, verdicts["sparse_decode"], args.quick, among))
        if "prefill" in what:
            rows.append(prefill_rows(args.seconds, verdicts["sparse_prefill"]))
        for row in (row for part in rows for row in part):
            lines.write(json.dumps(row | {"gate": "green" if "gate" in what else "not run"} | stamp(machine)) + "\n")
            lines.flush()
            keys = ("variant", "config", "splits", "heads", "tokens", "length", "us", "tflops")
            print(row["kernel"], *(f"{k}={row[k]}" for k in keys if k in row), flush=True)
    return int(any(text for v in verdicts.values() for text in v.values()))


if __name__ == "__main__":
    sys.exit(main())
