"""From the loaders' raw columns to a :class:`Timeline`: lanes, ranks, launches, labels, warnings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv4lab.timeline.timeline import UNKNOWN, Ids, Kind, Timeline
from dsv4lab.trace.analyse import suspect
from dsv4lab.trace.load.join import launch_of, lookup
from dsv4lab.trace.load.report import LoadReport

SIMULATED = "its rows are a prediction of the hardware-queue model, nobody measured them"
OLD_QUEUES = "this ROCm exporter wrote the hardware queue as 'stream': rows are listed in streams and in queues"
NO_ROWS = "no GPU rows in this trace"
_AMD = re.compile(r"AMD|Instinct|Radeon|gfx\d", re.IGNORECASE)
_RANK_IN_NAME = re.compile(r"(?:rank[-_]?|TP[-_])(\d+)", re.IGNORECASE)


def rank_of(header: Mapping[str, Any], path: Path) -> tuple[int, int | None]:
    """``(rank, world size)``: from ``distributedInfo``, else from the name of the file or its folder, else rank 0."""
    info = header.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    rank, world = info.get("rank"), info.get("world_size")
    if not isinstance(rank, int):
        named = _RANK_IN_NAME.search(path.name) or _RANK_IN_NAME.search(path.parent.name)
        rank = int(named[1]) % 2**31 if named else 0
    return rank % 2**31, world if isinstance(world, int) else None


def platform_of(header: Mapping[str, Any], host_names: Sequence[str]) -> str:
    """``"rocm"``, ``"cuda"``, ``"cpu"`` or ``"unknown"``, from the header and the names of runtime calls."""
    own = header.get("dsv4lab")
    if isinstance(own, dict) and own.get("platform") in ("cpu", "cuda", "rocm", "simulated"):
        return str(own["platform"])
    if any(key.startswith(("hip_", "roctracer", "rocprofiler")) for key in header):
        return "rocm"
    if any(key.startswith(("cuda_", "cupti")) for key in header):
        return "cuda"
    devices = device_properties(header)
    if any(_AMD.search(str(d.get("name", ""))) or d.get("warpSize") == 64 for d in devices):
        return "rocm"
    if any(d.get("name") for d in devices):
        return "cuda"
    if any(name.startswith("hip") for name in host_names):
        return "rocm"
    return "cuda" if any(name.startswith(("cuda", "cu")) for name in host_names) else "unknown"


def device_properties(header: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries of ``deviceProperties`` that are objects."""
    found = header.get("deviceProperties")
    return [d for d in found if isinstance(d, dict)] if isinstance(found, list) else []


def by_device(ids: Ids, device: Ids, labels: Sequence[str], devices: Sequence[str]) -> tuple[Ids, list[str]]:
    """Lanes told apart by device where rows of several devices are in one file: labels become ``gpu<d>/<label>``."""
    known = ids != UNKNOWN
    if len(np.unique(device[known & (device != UNKNOWN)])) < 2:
        return ids, list(labels)
    width = len(labels) + 1
    keys, lane = np.unique((device[known].astype(np.int64) + 1) * width + ids[known], return_inverse=True)
    out = np.full(len(ids), UNKNOWN, np.int32)
    out[known] = lane
    names = []
    for key in keys:
        at, label = divmod(int(key), width)
        names.append(f"gpu{devices[at - 1]}/{labels[label]}" if at else labels[label])
    return out, names


def join_launches(
    columns: dict[str, NDArray[Any]], op_external: NDArray[np.int64], op_name: Ids, report: LoadReport
) -> None:
    """Fill ``queued_ns`` and ``op`` of GPU rows from the host calls that launched them (changes ``columns``)."""
    kind = columns["kind"]
    gpu = np.flatnonzero(kind <= int(Kind.MEMSET))
    host = np.flatnonzero(kind == int(Kind.HOST))
    launch = launch_of(
        columns["correlation"][gpu], columns["start_ns"][gpu], columns["correlation"][host], columns["start_ns"][host]
    )
    found = launch != UNKNOWN
    owner = host[launch[found]]
    if len(host):
        report.findings["rows without a launch"] += int((~found).sum())
    queued = columns["queued_ns"]
    fill = found.copy()
    fill[found] &= queued[gpu[found]] == UNKNOWN
    queued[gpu[fill]] = columns["start_ns"][host[launch[fill]]]
    early = columns["start_ns"][owner] > columns["start_ns"][gpu[found]]
    report.findings["rows that start before their launch"] += int(early.sum())
    external = columns.pop("external")
    op = np.full(len(kind), UNKNOWN, np.int32)
    op[gpu] = lookup(op_external, op_name, external[gpu])
    missing = found & (op[gpu] == UNKNOWN)
    op[gpu[missing]] = lookup(op_external, op_name, external[host[launch[missing]]])
    columns["op"] = op


def finish(
    columns: dict[str, Any],
    report: LoadReport,
    *,
    names: Sequence[str],
    streams: Sequence[str],
    queues: Sequence[str],
    main_stream: str | None,
    meta: Mapping[str, Any],
    warnings: Sequence[str],
) -> Timeline:
    """The checked timeline, its oddities counted in ``report``; says so if no row is busy."""
    timeline = Timeline.build(**columns, names=names, streams=streams, queues=queues, main_stream=main_stream)
    timeline.check()
    found = suspect.findings(timeline)
    report.findings.update(found)
    report.findings, report.repairs = +report.findings, +report.repairs
    said = [*warnings, *report.warnings(), *suspect.warnings(timeline, found)]
    if not bool(timeline.busy_mask.any()):
        said.append(NO_ROWS)
    return replace(timeline, warnings=tuple(said), meta={**meta, "load_report": report.to_json()})
