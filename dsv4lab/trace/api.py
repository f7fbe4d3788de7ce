"""What a notebook gets for a trace file: a timeline that knows where it came from."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from dsv4lab.timeline.timeline import Timeline
from dsv4lab.trace.load import LoadReport, Progress, load_any


@dataclass(frozen=True, eq=False)
class Trace(Timeline):
    """A timeline loaded from ``path``. Whatever takes a :class:`Timeline` takes it."""

    path: Path | None = None
    report: LoadReport | None = None

    @classmethod
    def of(cls, timeline: Timeline, path: Path | None = None, report: LoadReport | None = None) -> Self:
        """``timeline`` with its origin attached."""
        return cls(**{f.name: getattr(timeline, f.name) for f in fields(Timeline)}, path=path, report=report)

    def __repr__(self) -> str:
        where = self.path.name if self.path is not None else "timeline"
        return f"<Trace {where}: {len(self)} rows, {len(self.streams)} streams, {len(self.queues)} queues>"


def load_trace(path: str | Path, *, progress: Progress | None = None, align: bool = True) -> Trace:
    """Load a trace: a file of any known format, or a directory or glob of ranks.

    Ranks become one timeline, their clocks aligned at collective ends unless ``align`` is off. Damaged files give every
    complete event; ``trace.report`` and ``trace.warnings`` tell what was repaired or lost. Raises ``TraceError`` if
    nothing can be loaded.
    """
    timeline, report = load_any(path, progress, align=align)
    return Trace.of(timeline, Path(path).expanduser(), report)
