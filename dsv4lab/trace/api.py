"""What a notebook gets for a trace: a timeline that knows where it came from and answers questions as tidy tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dsv4lab.timeline.timeline import Timeline
from dsv4lab.trace.load import LoadReport, Progress, Where, load_any
from dsv4lab.trace.table import Table

if TYPE_CHECKING:
    from dsv4lab.trace.analyse.categories import Exposure
    from dsv4lab.trace.analyse.critical import CriticalPath
    from dsv4lab.trace.analyse.fork import ForkVerdict
    from dsv4lab.trace.analyse.launches import LaunchBoundness
    from dsv4lab.trace.analyse.roofline import RooflinePoint, Work
    from dsv4lab.trace.compare import Comparison


@dataclass(frozen=True, eq=False)
class Trace(Timeline):
    """A timeline loaded from ``path``. Whatever takes a :class:`Timeline` takes it; tables have ``to_pandas()``."""

    path: Path | None = None
    report: LoadReport | None = None

    @classmethod
    def of(cls, timeline: Timeline, path: Path | None = None, report: LoadReport | None = None) -> Self:
        """``timeline`` with its origin attached: any timeline, not only a loaded one, can be asked this way."""
        return cls(**{f.name: getattr(timeline, f.name) for f in fields(Timeline)}, path=path, report=report)

    def __repr__(self) -> str:
        where = self.path.name if self.path is not None else "timeline"
        return f"<Trace {where}: {len(self)} rows, {len(self.streams)} streams, {len(self.queues)} queues>"

    def streams_table(self, main: str | None = None) -> Table:
        """The streams of :meth:`stream_busy` as a tidy table."""
        return Table.of(self.stream_busy(main).streams, "streams")

    def queues_table(self) -> Table:
        """The hardware queues of :meth:`stream_busy` as a tidy table."""
        return Table.of(self.stream_busy().queues, "queues")

    def steps(self, main: str | None = None) -> Table:
        """Busy figures of every step: see :func:`dsv4lab.trace.analyse.steps.step_times`."""
        from dsv4lab.trace.analyse.steps import step_times

        return Table.of(step_times(self, main=main), "steps")

    def ops(self, by: str = "name") -> Table:
        """Work by ``name``, ``op``, ``layer``, ``category``, ``stream`` or ``queue``."""
        from dsv4lab.trace.analyse.ops import work

        return Table.of(work(self, by), f"work by {by}")

    def categories(self) -> Table:
        """Time by category of work, with the part when nothing else ran."""
        from dsv4lab.trace.analyse.categories import by_category

        return Table.of(by_category(self), "categories")

    def exposure(self) -> Exposure:
        """Compute against communication and copies."""
        from dsv4lab.trace.analyse.categories import exposure

        return exposure(self)

    def idle(self) -> Table:
        """Idle time by cause."""
        from dsv4lab.trace.analyse.idle import idle_causes

        return Table.of(idle_causes(self), "idle time by cause")

    def gaps(self) -> Table:
        """Every idle gap with its cause and the rows around it."""
        from dsv4lab.trace.analyse.idle import idle_gaps

        return Table.of(idle_gaps(self), "idle gaps")

    def graphs(self) -> Table:
        """Graph replays with their rows and lanes."""
        from dsv4lab.trace.analyse.launches import graph_replays

        return Table.of(graph_replays(self), "graph replays")

    def launch_boundness(self) -> LaunchBoundness:
        """How far the host ran ahead of the device."""
        from dsv4lab.trace.analyse.launches import launch_boundness

        return launch_boundness(self)

    def roofline(self, known: Mapping[str, Work], *, peak_flops: float, peak_bytes: float) -> list[RooflinePoint]:
        """Rows of known cost under the roofline: see :func:`dsv4lab.trace.analyse.roofline.roofline`."""
        from dsv4lab.trace.analyse.roofline import roofline

        return roofline(self, known, peak_flops=peak_flops, peak_bytes=peak_bytes)

    def critical_path(self, rank: int | None = None) -> CriticalPath:
        """The chain of rows and gaps that makes up the wall."""
        from dsv4lab.trace.analyse.critical import critical_path

        return critical_path(self, rank)

    def fork(self, expected: tuple[str, ...] = (), main: str | None = None) -> ForkVerdict:
        """Whether side streams ran beside the main one; ``expected`` are the streams of the plan."""
        from dsv4lab.trace.analyse.fork import fork_verdict

        return fork_verdict(self, expected, main)

    def arrivals(self) -> Table:
        """Entry skew of every collective over the ranks."""
        from dsv4lab.trace.collectives import arrival_skew

        return Table.of(arrival_skew(self), "collectives")

    def compare(self, other: Timeline, labels: tuple[str, str] = ("A", "B"), main: str | None = None) -> Comparison:
        """Compare with ``other``: see :func:`dsv4lab.trace.compare.compare`."""
        from dsv4lab.trace.compare import compare

        return compare(self, other, labels=labels, main=main)


def load_trace(path: Where, *, progress: Progress | None = None, align: bool = True, cache: bool = True) -> Trace:
    """Load a trace: a file of any known format, or several files, a directory or a glob of ranks.

    Ranks become one timeline, their clocks aligned at collective ends unless ``align`` is off. Damaged files give every
    complete event; ``trace.report`` and ``trace.warnings`` tell what was repaired or lost. Large files are
    remembered in the user's cache folder unless ``cache`` is off. Raises ``TraceError`` if nothing can be loaded.
    """
    timeline, report = load_any(path, progress, align=align, cache=cache)
    return Trace.of(timeline, Path(path).expanduser() if isinstance(path, str | Path) else None, report)
