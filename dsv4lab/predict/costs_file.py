"""The file that ``dsv4lab calibrate`` writes and ``--costs`` reads: fitted values of a device, and how they fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsv4lab.errors import UsageError
from dsv4lab.predict.calibrate import Fit
from dsv4lab.queues.devices import device
from dsv4lab.queues.values import Value, Values, calibrated

SCHEMA = 1


def costs_json(fit: Fit, device_name: str, source: str) -> dict[str, Any]:
    """The document: ``values`` by name, ``residuals`` by row, and what the rows do not tell."""
    before = device(device_name).values
    return {
        "schema": SCHEMA,
        "device": device_name,
        "source": source,
        "values": {
            name: {"value": value, "before": before[name].value, "unit": before[name].unit}
            for name, value in fit.values.items()
        },
        "residuals": [
            {
                "name": r.name,
                "measured_us": r.measured_us,
                "predicted_us": r.predicted_us,
                "error": r.error,
                "held_out": r.held_out,
            }
            for r in fit.residuals
        ],
        "unidentified": list(fit.unidentified),
        "confounded": [list(pair) for pair in fit.confounded],
    }


def read_costs(path: Path, device_name: str) -> Values:
    """The values of a costs file, as ``calibrated`` values of ``device_name``.

    Raises:
        UsageError: the file cannot be read, is malformed, or is of another device.

    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from None
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA or not isinstance(data.get("values"), Mapping):
        raise UsageError(f'{path}: a costs file is {{"schema": {SCHEMA}, "device": ..., "values": {{...}}}}')
    if data.get("device") != device_name:
        raise UsageError(f"{path}: its values are of device {data.get('device')!r}, not of {device_name}")
    return {
        name: _value(path, name, entry, str(data.get("source", path.name))) for name, entry in data["values"].items()
    }


def _value(path: Path, name: str, entry: Any, source: str) -> Value:
    number = entry.get("value") if isinstance(entry, Mapping) else None
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < float("inf"):
        raise UsageError(f"{path}: {name}: value must be a number of 0 or more, got {number!r}")
    return calibrated(float(number), str(entry.get("unit", "")), f"fitted to {source}")
