"""Keep what the queue model's check needs of a `dsv4lab bench overlap` on a GPU, small enough for the repository.

    python scripts/keep_bench.py OUT docs/measurements/h200-overlap/NAME

Copies the record (medians instead of rounds), the programs of serial plans, the kernels of their traces, and
`probe.json` and `corun.json` where they are, and writes a MANIFEST.json with sizes and checksums.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

SERIAL = ("off", "unfused")
ARGS = (
    "correlation", "stream", "grid", "block", "registers per thread", "shared memory",
)  # fmt: skip
GPU = (
    "name", "numSms", "warpSize", "regsPerMultiprocessor", "sharedMemPerMultiprocessor",
    "maxThreadsPerMultiprocessor",
)  # fmt: skip
BUSY = ("kernel", "gpu_memcpy", "gpu_memset")


def main() -> int:
    """Copy, or say what is missing."""
    if len(sys.argv) != 3:
        sys.stderr.write(f"{__doc__}")
        return 2
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    records = sorted(source.glob("overlap-*.json"))
    if len(records) != 1:
        sys.stderr.write(f"{source}: it takes one record overlap-SHAPE.json, there are {len(records)}\n")
        return 1
    target.mkdir(parents=True, exist_ok=True)
    shape = records[0].stem.removeprefix("overlap-")
    record = json.loads(records[0].read_text(encoding="utf-8"))
    programs = json.loads((source / f"programs-{shape}.json").read_text(encoding="utf-8"))
    write(target / records[0].name, kept(record))
    serial = {n: {p: q for p, q in plans.items() if p in SERIAL} for n, plans in programs.items()}
    write(target / f"programs-{shape}.json", serial)
    for path in sorted(source.glob(f"overlap-{shape}-*.pt.trace.json.gz")):
        if path.name.removeprefix(f"overlap-{shape}-").partition("-")[0] in SERIAL:
            text = json.dumps(kernels_of(json.loads(gzip.decompress(path.read_bytes()))), separators=(",", ":"))
            (target / path.name).write_bytes(gzip.compress(text.encode(), mtime=0))
    for name in ("probe.json", "corun.json"):
        if (source / name).is_file():
            write(target / name, json.loads((source / name).read_text(encoding="utf-8")))
    manifest(target, record)
    return 0


def kept(record: dict[str, Any]) -> dict[str, Any]:
    """The record without rounds, gate and profiles."""
    levels = [
        {
            "concurrency": level["concurrency"],
            "plans": [{"plan": p["plan"], "rounds_us": [round(median(p["rounds_us"]), 2)]} for p in level["plans"]],
        }
        for level in record["levels"]
    ]
    names = ("kind", "schema", "settings", "device", "machine", "bytes_per_us")
    return {**{name: record[name] for name in names if name in record}, "levels": levels}


def kernels_of(trace: dict[str, Any]) -> dict[str, Any]:
    """The device's rows with what says how large they are, times in three decimals from the first row on."""
    rows = [event for event in trace["traceEvents"] if event.get("cat") in BUSY]
    first = min(row["ts"] for row in rows)
    events = [
        {
            "ph": "X", "cat": row["cat"], "name": row["name"][:120], "pid": row["pid"], "tid": row["tid"],
            "ts": round(row["ts"] - first, 3), "dur": row["dur"],
            "args": {name: row["args"][name] for name in ARGS if name in row["args"]},
        }
        for row in sorted(rows, key=lambda row: row["ts"])
    ]  # fmt: skip
    gpus = [{name: gpu[name] for name in GPU} for gpu in trace["deviceProperties"][:1]]
    return {"schemaVersion": 1, "deviceProperties": gpus, "traceEvents": events}


def manifest(target: Path, record: dict[str, Any]) -> None:
    """What lies there."""
    files = [
        {"file": path.name, "bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in sorted(target.iterdir())
        if path.name != "MANIFEST.json"
    ]
    note = "reduced by scripts/keep_bench.py: medians of rounds, serial plans, kernels only"
    write(target / "MANIFEST.json", {"note": note, "machine": record.get("machine", {}), "files": files})


def write(path: Path, data: Any) -> None:
    """As JSON."""
    path.write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
