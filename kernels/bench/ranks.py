"""One rank against several on the same weights: TTFT, TPOT, tokens, distance of log-probabilities, overlap's gains.

    python kernels/bench/ranks.py --out FILE                              # two H200s: flash, TP1 against TP2
    python kernels/bench/ranks.py --tp 2 --against FILE --out FILE2       # the second half elsewhere, or later
    python kernels/bench/ranks.py --device cpu --preset tiny --isl 200 --osl 8 --levels 1,2 --out FILE   # a dry run

Weights are random, quantised as released, the same numbers for every number of ranks; ``--num-layers`` is what one
device holds. Each line of FILE is a JSON object: a measured load (``kind`` load), its tokens (``answers``), or a
comparison of two (``compare``), of the first number of ranks, or that of the ``--against`` file, with each other one.
Load lines have medians over requests in milliseconds, and under plan ``auto`` the microseconds of every candidate's
graph, collectives included, on the slowest rank. A comparison goes as far as the tokens of a request agree.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import torch

import dsv4lab as lab
from dsv4lab.engine.results import GenerateResult

TOP = 5


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, compare, write; 1 if greedy tokens differ at once, which rounding does not explain."""
    args = _parse(argv)
    with args.out.open("w", encoding="utf-8") as out:
        _write(out, {"kind": "machine", **_machine(args)})
        results = {**_kept(args.against), **{tp: _measure(tp, args, out) for tp in args.tp}}
        first, *others = results
        rows = [
            {"kind": "compare", "tp": [first, tp], "concurrency_level": level, **_compare(a, results[tp][level])}
            for tp in others
            for level, a in results[first].items()
            if level in results[tp]
        ]
        for row in rows:
            _write(out, row)
    return int(any(row["agreeing_tokens"] == 0 for row in rows))


Answers = dict[str, Any]
"""``tpot_ms``, and ``requests``: ``[token, [[likely token, its log-probability], ...]]`` of every new token."""


def _kept(path: Path | None) -> dict[int, dict[int, Answers]]:
    """Answers by number of ranks and level, as an earlier run wrote them."""
    found: dict[int, dict[int, Answers]] = {}
    for line in [] if path is None else path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["kind"] == "answers":
            found.setdefault(row["tp"], {})[row["concurrency_level"]] = row
    return found


def _answers(result: GenerateResult) -> Answers:
    told = [[[one.token, [list(pair) for pair in one.top]] for one in r.logprobs] for r in result.requests]
    return {"tpot_ms": result.tpot_ms, "requests": told}


def _measure(tp: int, args: argparse.Namespace, out: IO[str]) -> dict[int, Answers]:
    most = max(args.levels)
    pages = -(-(args.isl + args.osl + 8) // 256) + 1
    sampling = lab.SamplingParams(logprobs=TOP)
    found = {}
    with lab.open(
        args.preset,
        device=args.device,
        dtype="bfloat16" if args.device != "cpu" else "float32",
        weights="stored" if args.device != "cpu" else "dense",
        num_layers=args.num_layers,
        plan=args.plan,
        tp_size=tp,
        max_running_requests=most,
        max_total_tokens=most * pages * 256,
        chunked_prefill_size=args.chunk,
    ) as client:
        for level in args.levels:
            client.load(level, args.isl, args.osl, seed=1)  # every batch on the way is captured, and auto has chosen
            result = client.load(level, args.isl, args.osl, seed=0, sampling=sampling)
            found[level] = _answers(result)
            row = {"kind": "load", "tp": tp, "concurrency_level": level, "isl": args.isl, "osl": args.osl}
            times = {"ttft_ms": result.ttft_ms, "tpot_ms": result.tpot_ms, "tokens_per_s": result.tokens_per_s}
            _write(out, {**row, **times, "graphs": _graphs(client, level)})
            _write(out, {"kind": "answers", "tp": tp, "concurrency_level": level, **found[level]})
            print(f"TP{tp} level {level}: TTFT {result.ttft_ms:.1f} ms, TPOT {result.tpot_ms:.2f} ms", flush=True)
    return found


def _graphs(client: lab.EngineClient, level: int) -> list[dict[str, Any]]:
    """Under plan ``auto``: what every candidate's graph of ``level`` requests took, on the slowest rank."""
    graphs = client.status().get("graphs", {"auto": []})  # a CPU has none
    return [row for row in graphs["auto"] if row["requests"] == level]


def _compare(a: Answers, b: Answers) -> dict[str, Any]:
    """Tokens that agree before the first that does not, and how far log-probabilities are apart up to there."""
    agreeing, total, distances, divergences = 0, 0, [], []
    for request, (mine, theirs) in enumerate(zip(a["requests"], b["requests"], strict=True)):
        total += len(mine)
        for place, ((x, likely), (y, others)) in enumerate(zip(mine, theirs, strict=False)):
            here, there = dict(likely), dict(others)
            distances += [abs(value - there[token]) for token, value in here.items() if token in there]
            if x != y:
                gap = likely[0][1] - here.get(y, likely[-1][1])
                divergences.append({"request": request, "place": place, "gap": gap})
                break
            agreeing += 1
    ratio = None if not a["tpot_ms"] or not b["tpot_ms"] else b["tpot_ms"] / a["tpot_ms"]
    return {
        "agreeing_tokens": agreeing,
        "tokens": total,
        "logprob_distance_max": max(distances, default=0.0),
        "logprob_distance_mean": sum(distances) / len(distances) if distances else 0.0,
        "divergences": divergences,
        "tpot_ratio": ratio,
    }


def _machine(args: argparse.Namespace) -> dict[str, Any]:
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if args.device != "cpu" else []
    return {
        "platform": platform.platform(),
        "torch": str(torch.__version__),
        "gpus": gpus,
        "arguments": {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()},
    }


def _write(out: IO[str], row: dict[str, Any]) -> None:
    out.write(json.dumps(row) + "\n")
    out.flush()


def _integers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="one rank against several")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--preset", default="flash")
    parser.add_argument("--num-layers", type=int, default=None, help="default: as many of flash as one H200 holds")
    parser.add_argument("--tp", type=_integers, default=[1, 2])
    parser.add_argument("--against", type=Path, help="a file of an earlier run, whose answers are compared with")
    parser.add_argument("--levels", type=_integers, default=[1, 4, 8])
    parser.add_argument("--isl", type=int, default=8192)
    parser.add_argument("--osl", type=int, default=64)
    parser.add_argument("--chunk", type=int, default=4096)
    parser.add_argument("--plan", default="off")
    args = parser.parse_args(argv)
    if args.num_layers is None and args.preset == "flash":
        args.num_layers = 26  # 3.9 GB a layer in fp4, beside the pool, in 139 GiB
    return args


if __name__ == "__main__":
    sys.exit(main())
