"""Small bundles for tests, made without measuring anything."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsv4lab.tuning.bundle.archive import members_of, write_archive
from dsv4lab.tuning.bundle.layout import BundleManifest
from dsv4lab.tuning.overlap.record import Bytes, Gate, LaneBusy, Level, OverlapRecord, PlanTimes, Profile
from dsv4lab.tuning.overlap.settings import Settings

TRACE = "overlap-tiny-off-1.pt.trace.json.gz"


def level(concurrency: int, off: float, unfused: float, hip: float) -> Level:
    """Eight rounds that drift together: ratios are exact."""

    def times(plan: str, us: float, serial: str, side: float | None = None) -> PlanTimes:
        rounds = tuple(us * (1 + at / 100) for at in range(8))
        return PlanTimes(plan, rounds, us + 5, 1 if side is None else 3, 1 if side is None else 3, serial, side)

    plans = (times("off", off, "off"), times("unfused", unfused, "unfused"), times("hip", hip, "unfused", 200.0))
    return Level(concurrency, plans, Bytes(3_000_000, 1_000_000 * concurrency), auto="hip")


def record(**changes: Any) -> OverlapRecord:
    lanes = (LaneBusy("7", "main", 1_600_000, 0, 20), LaneBusy("13", "side", 300_000, 250_000, 8))
    fields: dict[str, Any] = {
        "settings": Settings("flash-tp8", "cuda", 6, 8192, (1, 4), rounds=8),
        "device": "NVIDIA H200",
        "machine": {"gpu": "NVIDIA H200", "torch": "2.11"},
        "gate": Gate(green=True, verdicts={"2: hip, graph": True}),
        "bytes_per_us": 4_000_000.0,
        "levels": (level(1, 1000.0, 1100.0, 920.0), level(4, 1500.0, 1450.0, 1400.0)),
        "profiles": (Profile("off", 1, 2, 2_000_000, 1_900_000, 1_650_000, lanes, TRACE),),
    }
    return OverlapRecord(**{**fields, **changes})


def trace_bytes() -> bytes:
    rows = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": f"k{n}",
            "pid": 0,
            "tid": 7,
            "ts": 10.0 * n,
            "dur": 5.0,
            "args": {"stream": 7, "device": 0, "correlation": n},
        }
        for n in range(4)
    ]
    return gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": rows}).encode(), mtime=0)


def contents(**changes: bytes | None) -> dict[str, bytes]:
    """Members by name; keys of ``changes`` have ``_`` for ``/`` and ``.``: None leaves a member out."""
    checks = [
        {"backend": "triton", "kernel": kernel, "case": "a", "passes": True, "text": "max 0"}
        for kernel in ("rms_norm", "swiglu")
    ]
    probe = {"schema": 1, "machine": {"gpu": "NVIDIA H200"}, "found": {"queues": 8, "period_us": 1.6}, "rows": []}
    found: dict[str, bytes | None] = {
        "selfcheck.json": json.dumps({"checks": checks}).encode(),
        "probe.json": json.dumps(probe).encode(),
        "overlap.json": json.dumps(record().to_json()).encode(),
        "report.md": b"# Overlap\n",
        f"traces/{TRACE}": trace_bytes(),
    }
    found |= {f"{name}.json": data for name, data in changes.items()}
    return {name: data for name, data in found.items() if data is not None}


def manifest(members: Mapping[str, bytes], **changes: Any) -> BundleManifest:
    fields: dict[str, Any] = {
        "device": "NVIDIA H200",
        "kind": "cuda",
        "created": "2026-11-30T05:00:00+00:00",
        "dsv4lab": "0.1.0",
        "machine": {"gpu": "NVIDIA H200", "torch": "2.11"},
        "members": members_of(members),
        "failures": {},
        "seconds": {"selfcheck": 10.0},
    }
    return BundleManifest(**{**fields, **changes})


def write(path: Path, members: Mapping[str, bytes] | None = None, **changes: Any) -> Path:
    """A bundle at ``path``; ``changes`` are of its manifest."""
    held = contents() if members is None else members
    write_archive(path, manifest(held, **changes), held)
    return path
