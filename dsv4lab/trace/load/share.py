"""Large Kineto files on two cores: a second process decodes every other piece.

Both processes inflate the file and cut it alike; each decodes its own pieces. The helper hands its columns back through
a temporary file. Rows, operators and labels are put in the order of the file, so the result is that of one process.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dsv4lab.trace.load.kineto_rows import COLUMN_TYPES, KinetoRows
from dsv4lab.trace.load.report import LoadReport

SMALLEST = 12 << 20
"""File bytes from which a helper pays for its start."""
PROCESSES = 2
_BUSY = 0.75
_LABELS = ("streams", "queues", "devices")
_OPS = ("op_external", "op_name", "op_piece")


def is_worth_it(path: Path) -> bool:
    """Whether ``path`` is large enough and a second core has nothing else to do."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if path.stat().st_size < SMALLEST or cores < PROCESSES:
        return False
    return not hasattr(os, "getloadavg") or os.getloadavg()[0] < _BUSY * cores


class Helper:
    """The second process. Whatever goes wrong with it, :meth:`result` is ``None`` and the file is read by one."""

    def __init__(self, path: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="dsv4lab-trace-")
        self._out = Path(self._folder.name) / "columns.npz"
        words = [sys.executable, "-m", "dsv4lab.trace.load.helper", str(path.resolve()), str(self._out)]
        root = str(Path(__file__).resolve().parents[3])
        self._process: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                words, cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )

    def result(self) -> dict[str, Any] | None:
        """What the helper wrote, once it has ended."""
        if self._process is None or self._process.wait() != 0:
            return None
        try:
            with np.load(self._out, allow_pickle=False) as stored:
                return {name: stored[name] for name in stored.files}
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """Stop the process if it still runs and remove its files."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()


def store(out: Path, rows: KinetoRows, report: LoadReport) -> None:
    """Write what the helper found."""
    columns = rows.raw_columns()
    facts = {
        "names": rows.names.keys,
        **{name: getattr(rows, name).keys for name in _LABELS},
        "report": report.to_json(),
    }
    arrays: dict[str, Any] = {f"column {name}": values for name, values in columns.items()}
    arrays |= dict(zip(_OPS, rows.ops(), strict=True))
    text = np.frombuffer(msgspec.msgpack.encode(facts), np.uint8)
    np.savez(out, allow_pickle=False, facts=text, **arrays)


def merge(rows: KinetoRows, report: LoadReport, other: dict[str, Any]) -> None:
    """Add the helper's rows to ``rows`` and its counts to ``report``."""
    facts = msgspec.msgpack.decode(other["facts"].tobytes())
    found = LoadReport.from_json(facts["report"])
    report.events += found.events
    report.lost_events += found.lost_events
    report.repairs += found.repairs
    report.findings += found.findings
    names = _table(rows.names.column(facts["names"]))
    columns = {name: other[f"column {name}"] for name in COLUMN_TYPES}
    columns["name"] = names[columns["name"]]
    for label, column in zip(_LABELS, ("stream", "queue", "device"), strict=True):
        columns[column] = _table(getattr(rows, label).column(facts[label]))[columns[column]]
    rows.take(columns, other["op_external"], names[other["op_name"]], other["op_piece"])


def _table(ids: list[int]) -> NDArray[np.int32]:
    """A lookup table whose last entry answers -1."""
    return np.array([*ids, -1], np.int32)
