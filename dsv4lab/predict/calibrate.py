"""Fit values of a device to measured programs: a probe's file, or published micro-benchmarks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from dsv4lab.errors import UsageError
from dsv4lab.predict.golden import minimise
from dsv4lab.queues.costs import machine
from dsv4lab.queues.program_json import workload_from_json
from dsv4lab.queues.simulate import simulate

TOP_FIELDS = {"schema", "device", "machine", "found", "rows"}
ROW_FIELDS = {"name", "program", "measured_us", "runtime", "hw_queues", "held_out", "clock", "told"}
CLOCKS = ("gpu", "host")
ROUNDS, SPAN = 8, 4.0
ALIKE = 0.995
"""Two values are not told apart if their effects on the rows are this parallel (cosine)."""

FITTED = (
    "gap_us", "barrier_us", "signal_host_us", "signal_device_us", "poll_tax_us", "corun_loss", "graph_us", "submit_us",
    "graph_submit_us", "segment_submit_us", "stream_sync_us", "oversubscription_us", "kernel_floor_us",
    "cu_bandwidth_gbps", "latency_load", "dispatch_us",
)  # fmt: skip
"""What a calibration fits unless told otherwise: what packets and kernels cost, not what data sheets say."""

BLIND = 0.002
"""A value is not identified if halving or doubling it moves no row's prediction by more than this fraction."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured program. ``clock``: ``gpu`` (first start to last end; of eager launches from the host's first call)
    or ``host`` (call to return).

    A ``held_out`` row is predicted and reported, never fitted.
    """

    name: str
    program: Mapping[str, Any]
    measured_us: float
    runtime: str | None = None
    hw_queues: int | None = None
    held_out: bool = False
    clock: str = "gpu"


@dataclass(frozen=True, slots=True)
class Residual:
    """``error`` is predicted over measured, less 1."""

    name: str
    measured_us: float
    predicted_us: float
    held_out: bool

    @property
    def error(self) -> float:
        """Relative error."""
        return self.predicted_us / self.measured_us - 1.0


@dataclass(frozen=True, slots=True)
class Fit:
    """``values``: fitted numbers by name. ``unidentified``: names that the rows say nothing about. ``confounded``:
    pairs of fitted names whose effects on the rows are alike, so that only their sum is known.
    """

    values: Mapping[str, float]
    residuals: tuple[Residual, ...]
    unidentified: tuple[str, ...]
    confounded: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe's file: its rows, and the device that it says they are of."""

    rows: tuple[Measured, ...]
    device: str | None = None


def load_probe(path: Path) -> Probe:
    """A probe's file, ``{"schema"?: 1, "device"?, "machine"?, "found"?, "rows": [{"name", "program", "measured_us",
    "runtime"?, "hw_queues"?, "held_out"?, "clock"?, "told"?}]}``. ``machine`` says where it ran, ``found`` and ``told``
    what the probe read from its times; none of them is looked at.

    Raises:
        UsageError: the file cannot be read, or a row is malformed.

    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("rows"), list) or data.get("schema", 1) != 1:
        raise UsageError(f'{path}: a probe file is {{"schema": 1, "rows": [...]}}')
    if unknown := set(data) - TOP_FIELDS:
        raise UsageError(f"{path}: unknown fields {sorted(unknown)}; it takes {sorted(TOP_FIELDS)}")
    device = data.get("device")
    if device is not None and not isinstance(device, str):
        raise UsageError(f"{path}: device must be a name, got {device!r}")
    return Probe(tuple(_row(f"{path}: row {i}", row) for i, row in enumerate(data["rows"])), device)


def _row(where: str, row: Any) -> Measured:
    if not isinstance(row, dict) or not {"name", "program", "measured_us"} <= set(row) or set(row) - ROW_FIELDS:
        raise UsageError(f"{where}: it takes {sorted(ROW_FIELDS)}, the first of them name, program and measured_us")
    if not isinstance(row["measured_us"], int | float) or not row["measured_us"] > 0:
        raise UsageError(f"{where}: measured_us must be above 0, got {row['measured_us']!r}")
    if row.get("clock", "gpu") not in CLOCKS:
        raise UsageError(f"{where}: clock must be one of {', '.join(CLOCKS)}, got {row['clock']!r}")
    return Measured(**{name: value for name, value in row.items() if name != "told"})


def predict(row: Measured, device: str, changes: Mapping[str, float]) -> float:
    """Microseconds that the model gives for ``row``."""
    on = machine(device, row.runtime, row.hw_queues, changes)
    run = simulate(workload_from_json(row.program, on), on)
    if row.clock == "host":
        return run.elapsed_ns / 1e3
    return run.wall_ns / 1e3 if run.workload.graphs else max(run.times.end) / 1e3


def fit(rows: Sequence[Measured], device: str, names: Sequence[str] = FITTED) -> Fit:
    """Fit values ``names`` of ``device`` to the rows that are not held out, one value after the other, in rounds.

    The sum of squared relative errors is minimised by golden-section search over a factor of four either way.

    Raises:
        UsageError: no rows to fit, or an unknown value.

    """
    used = [row for row in rows if not row.held_out]
    if not used:
        raise UsageError("calibration needs at least one row that is not held out")
    start = machine(device).values
    for name in names:
        if name not in start:
            raise UsageError(f"there is no value {name!r}; it takes one of {', '.join(sorted(start))}")
    values = {name: start[name].value for name in names if start[name].value > 0}
    moved = {name: _moved(used, device, values, name) for name in values}
    blind = tuple(name for name in names if not moved.get(name))
    free = [name for name in values if name not in blind]
    for _ in range(ROUNDS):
        for name in free:
            rows_of = _moved(used, device, values, name)
            values[name] = _search(rows_of, device, values, name) if rows_of else values[name]
    found = tuple(Residual(r.name, r.measured_us, predict(r, device, values), r.held_out) for r in rows)
    return Fit({n: values[n] for n in free}, found, blind, _confounded(used, device, values, free))


def _moved(rows: Sequence[Measured], device: str, values: Mapping[str, float], name: str) -> list[Measured]:
    """The rows whose prediction depends on value ``name``."""
    out = []
    for row in rows:
        low, high = (predict(row, device, {**values, name: values[name] * f}) for f in (0.5, 2.0))
        if abs(high - low) > BLIND * row.measured_us:
            out.append(row)
    return out


def _confounded(
    rows: Sequence[Measured], device: str, values: Mapping[str, float], names: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """Pairs of ``names`` that move the rows in the same proportions."""
    effects = {}
    for name in names:
        high = {**values, name: values[name] * 1.1}
        effect = np.array([(predict(r, device, high) - predict(r, device, values)) / r.measured_us for r in rows])
        effects[name] = effect / (np.linalg.norm(effect) or 1.0)
    return tuple((a, b) for a, b in combinations(names, 2) if abs(float(effects[a] @ effects[b])) > ALIKE)


def _loss(rows: Sequence[Measured], device: str, values: Mapping[str, float]) -> float:
    return sum((predict(r, device, values) / r.measured_us - 1.0) ** 2 for r in rows)


def _search(rows: Sequence[Measured], device: str, values: Mapping[str, float], name: str) -> float:
    return minimise(lambda value: _loss(rows, device, {**values, name: value}), values[name], SPAN)
