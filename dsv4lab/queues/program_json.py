"""Programs as JSON, so that published micro-benchmarks can be replayed. The schema is in docs/queue-model.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsv4lab.errors import UsageError
from dsv4lab.queues.costs import Machine
from dsv4lab.queues.roof import duration_us, shares
from dsv4lab.queues.workload import PACKETS, Cost, Workload, op_rows, repeat

TOP = {"name", "ops", "launch", "repeat", "synchronise", "priorities", "process"}
FIELDS = {
    "name", "stream", "after", "duration_us", "bytes", "flops", "workgroups", "packet", "layer", "occupancy",
    "bandwidth", "compute", "precision", "count",
}  # fmt: skip
LAUNCHES = ("graph", "eager")
PROCESSES = ("hip", "torch")


def workload_from_json(data: Any, machine: Machine) -> Workload:
    """Read a program document; ops without ``duration_us`` are costed from their bytes, flops and workgroups.

    Raises:
        UsageError: a field is missing, unknown or of the wrong type; the text names the op and the field.

    """
    ops = op_rows(data)
    _known(data, TOP, "program")
    launch = data.get("launch", "graph")
    if launch not in LAUNCHES:
        raise UsageError(f"program: launch must be one of {', '.join(LAUNCHES)}, got {launch!r}")
    if data.get("process", "hip") not in PROCESSES:
        raise UsageError(f"program: process must be one of {', '.join(PROCESSES)}, got {data['process']!r}")
    names: dict[str, int] = {}
    parts: list[tuple[str, int, str, tuple[int, ...], Cost, str]] = []
    last: dict[str, int] = {}
    for i, op in enumerate(ops):
        _append(i, op, machine, names, parts, last)
    workload = Workload(
        names=tuple(p[0] for p in parts),
        layers=tuple(p[1] for p in parts),
        streams=tuple(p[2] for p in parts),
        waits=tuple(p[3] for p in parts),
        costs=tuple(p[4] for p in parts),
        kinds=tuple(p[5] for p in parts),
        steps=(0,) * len(parts),
        graphs=launch == "graph",
        priorities=_priorities(data.get("priorities", {})),
        synchronise=bool(data.get("synchronise", False)),
        label=str(data.get("name", "program")),
    )
    return repeat(workload, _whole(data, "repeat", "program", 1))


def _append(
    i: int,
    op: Mapping[str, Any],
    machine: Machine,
    names: dict[str, int],
    parts: list[tuple[str, int, str, tuple[int, ...], Cost, str]],
    last: dict[str, int],
) -> None:
    where = f"program op {i}"
    _known(op, FIELDS, where)
    name, stream = _text(op, "name", where), _text(op, "stream", where)
    packet = op.get("packet", "kernel")
    if packet not in PACKETS:
        raise UsageError(f"{where}: packet must be one of {', '.join(PACKETS)}, got {packet!r}")
    before = tuple(_earlier(where, ref, names, len(ops_done(names))) for ref in _list(op, "after", where))
    cost = _cost(op, machine, where)
    for k in range(_whole(op, "count", where, 1)):
        waits = tuple(sorted({w for w in before if parts[w][2] != stream})) if k == 0 else ()
        parts.append((name, _whole(op, "layer", where, -1, low=-1), stream, waits, cost, packet))
    last[stream] = len(parts) - 1
    names[name] = len(parts) - 1
    names[f"#{i}"] = len(parts) - 1


def ops_done(names: Mapping[str, int]) -> list[str]:
    """References by position (``#0``, ``#1``, ...) that exist so far."""
    return [n for n in names if n.startswith("#")]


def _earlier(where: str, ref: Any, names: Mapping[str, int], done: int) -> int:
    key = f"#{ref}" if isinstance(ref, int) and not isinstance(ref, bool) else ref
    if not isinstance(key, str) or key not in names:
        raise UsageError(f"{where}: after takes names or numbers of earlier ops (0 to {done - 1}), got {ref!r}")
    return names[key]


def _cost(op: Mapping[str, Any], machine: Machine, where: str) -> Cost:
    size, flops = _number(op, "bytes", where), _number(op, "flops", where)
    groups = _number(op, "workgroups", where)
    precision = op.get("precision", "bf16")
    if "duration_us" in op:
        us = _number(op, "duration_us", where)
    elif size or flops:
        us = duration_us(machine, size, flops, groups or machine["cus"], precision)
    else:
        raise UsageError(f"{where}: it needs duration_us, or bytes or flops")
    derived = shares(machine, us, size, flops, groups, precision)
    occupancy, bandwidth, compute = (
        _share(op, k, where) if k in op else own
        for k, own in zip(("occupancy", "bandwidth", "compute"), derived, strict=True)
    )
    return Cost(us, occupancy, bandwidth, compute)


def _known(data: Mapping[str, Any], fields: set[str], where: str) -> None:
    if unknown := set(data) - fields:
        raise UsageError(f"{where} has unknown fields {sorted(unknown)}; it takes {sorted(fields)}")


def _text(op: Mapping[str, Any], key: str, where: str) -> str:
    value = op.get(key)
    if not isinstance(value, str) or not value or value.startswith("#"):
        raise UsageError(f"{where}: {key} must be a text, got {value!r}")
    return value


def _list(op: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = op.get(key, [])
    if not isinstance(value, list):
        raise UsageError(f"{where}: {key} must be a list, got {value!r}")
    return value


def _number(op: Mapping[str, Any], key: str, where: str) -> float:
    value = op.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise UsageError(f"{where}: {key} must be a number of 0 or more, got {value!r}")
    return float(value)


def _share(op: Mapping[str, Any], key: str, where: str) -> float:
    value = _number(op, key, where)
    if value > 1:
        raise UsageError(f"{where}: {key} must be 0 to 1, got {value}")
    return value


def _whole(op: Mapping[str, Any], key: str, where: str, default: int, low: int = 1) -> int:
    value = op.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise UsageError(f"{where}: {key} must be a whole number of {low} or more, got {value!r}")
    return value


def _priorities(data: Any) -> dict[str, int]:
    if not isinstance(data, Mapping) or any(v not in (-1, 0, 1) for v in data.values()):
        raise UsageError("program: priorities maps streams to -1 (high), 0 or 1 (low)")
    return {str(k): int(v) for k, v in data.items()}
