"""Try every config of a kernel's launch tables, and their candidates, on its bench cases; write the best.

    python kernels/bench/tune.py --out OUT.jsonl [--kernels a,b] [--write]

One table is varied at a time, the others as they are chosen. A config is timed only after its results agree with
those of the default config, which went through the gate. ``--write`` puts the best config of each case into
``dsv4_kernels/tuned/<arch>.json`` with the case's sizes as limits; rows that the table would choose anyway, or that
gain less than 3 percent, are left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from dsv4_kernels.launch import Config, LaunchTable, asked_sizes, pinned, recorded
from dsv4_kernels.registry import Arguments, Case, KernelSpec, specs
from dsv4_kernels.target import target_of
from dsv4_kernels.testing.compare import check_arguments, clone, distance, run
from dsv4_kernels.testing.inputs import Inputs
from dsv4_kernels.testing.timer import time_call

TUNED = Path(__file__).resolve().parents[1] / "dsv4_kernels" / "tuned"
GAIN = 0.97


def main() -> int:
    """Tune; 1 if a default config fails its gate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kernels", default="")
    parser.add_argument("--cases", default="", help="names of cases, comma-separated (default: all bench cases)")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    names = [name for name in args.kernels.split(",") if name]
    wanted = [name for name in args.cases.split(",") if name]
    best: dict[str, list[dict[str, Any]]] = {}
    good = True
    with args.out.open("a", encoding="utf-8") as lines:
        for spec in specs().values():
            if names and spec.name not in names:
                continue
            for case in (c for c in spec.cases if c.bench and (not wanted or c.name in wanted)):
                rows = tune_case(spec, case, torch.device("cuda"))
                good &= bool(rows)
                for row in rows:
                    lines.write(json.dumps(row) + "\n")
                    lines.flush()
                keep_best(rows, best)
    if args.write:
        write(target_of(torch.device("cuda")).arch, best)
    return 0 if good else 1


def tune_case(spec: KernelSpec, case: Case, device: torch.device) -> list[dict[str, Any]]:
    """One row per table and config that was tried; none if the default is wrong."""
    call = spec.wrapper()
    arguments = case.build(Inputs(device, 1))
    verdict = check_arguments(spec, case.name, arguments, call)
    if not verdict.passes:
        print(f"{spec.name} {case.name}: RED {verdict.text}", flush=True)
        return []
    with asked_sizes() as sizes, recorded():
        call(**arguments)
    default = {name: value.clone() for name, value in run(spec, call, clone(arguments)).items()}
    moved = spec.cost(arguments).bytes
    rows = []
    for table in (table for table in spec.tables if table.name in sizes):
        chosen = table.choose(target_of(device), **sizes[table.name])
        tried = dict.fromkeys((chosen, *table.configs(target_of(device)), *table.candidates))
        for config in tried:
            row = {"kernel": spec.name, "case": case.name, "table": table.name, "sizes": sizes[table.name],
                   "config": config.to_json(), "chosen": config == chosen}  # fmt: skip
            rows.append(row | try_config(spec, table, config, arguments, default, moved))
            print(spec.name, case.name, table.name, config, rows[-1].get("us"), rows[-1]["trouble"], flush=True)
    del arguments, default
    torch.cuda.empty_cache()
    return rows


def try_config(
    spec: KernelSpec, table: LaunchTable, config: Config, arguments: Arguments, default: Arguments, moved: int
) -> dict[str, Any]:
    """Microseconds with ``config`` pinned, or what is wrong with it."""
    call = spec.wrapper()
    with pinned({table.name: config}):
        try:
            got = run(spec, call, clone(arguments))
            off = max(distance(got[name], default[name]) for name in got)
            if not off < 1e-2:
                return {"trouble": f"differs by {off:.2e}"}
            return {
                "us": round(time_call(call, clone(arguments), moved, replays=10, budget_ms=40.0).us, 3),
                "trouble": "",
            }
        except Exception as error:  # noqa: BLE001 - a config that cannot run is a finding
            return {"trouble": f"{type(error).__name__}: {str(error)[-120:]}"}


def keep_best(rows: list[dict[str, Any]], best: dict[str, list[dict[str, Any]]]) -> None:
    """Add the best row of each table to ``best`` if it gains enough over the one chosen now."""
    for table in dict.fromkeys(row["table"] for row in rows):
        timed = [row for row in rows if row["table"] == table and row.get("us")]
        now = next((row["us"] for row in timed if row["chosen"]), None)
        if now is None:
            continue
        first = min(timed, key=lambda row: row["us"])
        if first["us"] < GAIN * now:
            best.setdefault(table, []).append({"limits": first["sizes"], "config": first["config"]})


def write(arch: str, best: dict[str, list[dict[str, Any]]]) -> None:
    """Merge into the arch's file: rows with the same limits are replaced; smaller limits come first."""
    TUNED.mkdir(exist_ok=True)
    file = TUNED / f"{arch}.json"
    held: dict[str, list[dict[str, Any]]] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    for table, rows in best.items():
        kept = [row for row in held.get(table, []) if all(row["limits"] != new["limits"] for new in rows)]
        held[table] = sorted(kept + rows, key=lambda row: tuple(row["limits"].values()))
    file.write_text(json.dumps(held, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
