"""Keep what the queue model's check needs of a `dsv4lab bench overlap` on a GPU, small enough for the repository.

    python scripts/keep_bench.py OUT docs/measurements/h200-overlap/NAME [--carveout KERNEL=PERCENT ...]

Copies the record, the programs of serial plans, the kernels of their traces, and
`probe.json` and `corun.json` where they are, and writes a MANIFEST.json with sizes and checksums. Where OUT holds
several shapes, each gets a folder NAME-SHAPE. Then it prints what the model says of each: the rows of `whatif --bench`,
and lines for the table in docs/queue-model.md. tests/unit/test_queue_own_gpu.py takes up the folder by itself.
--carveout adds what kernels asked to have as shared memory to a record that does not tell: benches write it themselves.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dsv4lab.cli.main import main as cli
from dsv4lab.predict.bench_check import SERIAL, BenchFolder, Checked, check
from dsv4lab.predict.probe import model_device
from dsv4lab.queues.costs import machine

COLUMNS = (
    "hip", "cuda", "side", "moe", "cuda+moe", "hip+moe", "side+moe", "side+query+moe", "side+query+moe+high",
    "side+query", "side+query+route", "keys+moe+high",
)  # fmt: skip
"""Of the table in docs/queue-model.md."""
ARGS = (
    "correlation", "stream", "grid", "block", "registers per thread", "shared memory",
)  # fmt: skip
GPU = (
    "name", "numSms", "warpSize", "regsPerMultiprocessor", "sharedMemPerMultiprocessor",
    "maxThreadsPerMultiprocessor",
)  # fmt: skip
BUSY = ("kernel", "gpu_memcpy", "gpu_memset")


def main(argv: Sequence[str]) -> int:
    """Copy and ask, or say what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="OUT", type=Path)
    parser.add_argument("target", metavar="NAME", type=Path)
    parser.add_argument("--carveout", metavar="KERNEL=PERCENT", type=carveout, action="append", default=[])
    args = parser.parse_args(argv)
    source, target = args.source, args.target
    records = sorted(source.glob("overlap-*.json"))
    if not records:
        sys.stderr.write(f"{source}: there is no record overlap-SHAPE.json\n")
        return 1
    shapes = [record.stem.removeprefix("overlap-") for record in records]
    targets = [target.with_name(f"{target.name}-{shape}") if len(shapes) > 1 else target for shape in shapes]
    for shape, to in zip(shapes, targets, strict=True):
        keep(source, to, shape, dict(args.carveout))
    return max(report(to) for to in targets)


def carveout(text: str) -> tuple[str, int]:
    """``KERNEL=PERCENT``."""
    kernel, _, percent = text.partition("=")
    if not kernel or not percent.isdecimal() or int(percent) > 100:
        raise argparse.ArgumentTypeError(f"{text!r}: it takes KERNEL=PERCENT, 0 to 100")
    return kernel, int(percent)


def keep(source: Path, target: Path, shape: str, carveouts: Mapping[str, int]) -> None:
    """What there is of ``shape`` in ``source``, made small; ``carveouts`` for a record that does not tell them."""
    target.mkdir(parents=True, exist_ok=True)
    record = json.loads((source / f"overlap-{shape}.json").read_text(encoding="utf-8"))
    programs = json.loads((source / f"programs-{shape}.json").read_text(encoding="utf-8"))
    write(target / f"overlap-{shape}.json", kept({"carveouts": carveouts, **record} if carveouts else record))
    serial = {n: {p: q for p, q in plans.items() if p in SERIAL} for n, plans in programs.items()}
    write(target / f"programs-{shape}.json", serial)
    for plan in SERIAL:
        for path in sorted(source.glob(f"overlap-{shape}-{plan}-[0-9]*.pt.trace.json.gz")):
            text = json.dumps(kernels_of(json.loads(gzip.decompress(path.read_bytes()))), separators=(",", ":"))
            (target / path.name).write_bytes(gzip.compress(text.encode(), mtime=0))
    for name in ("probe.json", "corun.json"):
        if (source / name).is_file():
            write(target / name, json.loads((source / name).read_text(encoding="utf-8")))
    told = "; carveouts were added" if carveouts and "carveouts" not in record else ""
    manifest(target, record, f"reduced by scripts/keep_bench.py: serial plans, kernels only{told}")


def report(target: Path) -> int:
    """Print the model's rows for ``target``; what ``whatif`` returned."""
    device = model_device(json.loads((target / "MANIFEST.json").read_text(encoding="utf-8"))["machine"].get("gpu", ""))
    if device is None:
        sys.stderr.write(f"{target}: kept, but the queue model has no device for its GPU\n")
        return 1
    found = cli(["whatif", str(target), "--bench", "--device", device])
    if found == 0:
        sys.stdout.write("\n".join(table_lines(target.name, check(BenchFolder(target), machine(device)))) + "\n")
    return found


def table_lines(name: str, rows: Sequence[Checked]) -> list[str]:
    """Lines of the table in docs/queue-model.md: measured gains, and points off."""
    by_level: dict[int, dict[str, str]] = {}
    for row in rows:
        points = f"{round(100 * row.error, 1) + 0.0:+.1f}".replace("-", "\N{MINUS SIGN}")
        by_level.setdefault(row.level, {})[row.plan] = f"{100 * row.measured:.1f} ({points})"
    return [
        f"| {name} | {level} | {' | '.join(cells.get(plan, '') for plan in COLUMNS)} |"
        for level, cells in by_level.items()
    ]


def kept(record: dict[str, Any]) -> dict[str, Any]:
    """The record without gate and profiles."""
    levels = [
        {
            "concurrency": level["concurrency"],
            "plans": [
                {"plan": p["plan"], "rounds_us": [round(us, 2) for us in p["rounds_us"]]} for p in level["plans"]
            ],
        }
        for level in record["levels"]
    ]
    names = ("kind", "schema", "settings", "device", "machine", "bytes_per_us", "carveouts")
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


def manifest(target: Path, record: dict[str, Any], note: str) -> None:
    """What lies there."""
    files = [
        {"file": path.name, "bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in sorted(target.iterdir())
        if path.name != "MANIFEST.json"
    ]
    write(target / "MANIFEST.json", {"note": note, "machine": record.get("machine", {}), "files": files})


def write(path: Path, data: Any) -> None:
    """As JSON."""
    path.write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
