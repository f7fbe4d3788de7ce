"""What a loader found, repaired and lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class LoadReport:
    """Account of one file.

    ``repairs`` counts events that were read only after a repair, by kind of damage. ``findings`` counts things that
    are odd but kept as they are. ``lost_events`` could not be read at all; ``lost_bytes`` is the text of the last,
    incomplete event of a truncated file.
    """

    file: str
    format: str = "unknown"
    exporter: str = ""
    plain_bytes: int = 0
    events: int = 0
    rows: int = 0
    lost_events: int = 0
    lost_bytes: int = 0
    truncated: bool = False
    repairs: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    cached: bool = False

    def warnings(self) -> list[str]:
        """One plain sentence for each thing a reader of the figures must know."""
        out = []
        if self.truncated:
            out.append(
                f"{self.file}: truncated: {self.events} complete events were kept, "
                f"{self.lost_bytes} bytes of an incomplete one were dropped"
            )
        if self.lost_events:
            out.append(f"{self.file}: {self.lost_events} events could not be read and are missing")
        if self.repairs:
            shown = ", ".join(f"{count} {kind}" for kind, count in sorted(self.repairs.items()))
            out.append(f"{self.file}: repaired while loading: {shown}")
        return out

    def to_json(self) -> dict[str, Any]:
        """The documented ``load_report`` object."""
        return {
            "file": self.file,
            "format": self.format,
            "exporter": self.exporter,
            "plain_bytes": self.plain_bytes,
            "events": self.events,
            "rows": self.rows,
            "lost_events": self.lost_events,
            "lost_bytes": self.lost_bytes,
            "truncated": self.truncated,
            "repairs": dict(self.repairs),
            "findings": dict(self.findings),
            "cached": self.cached,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LoadReport:
        """Inverse of :meth:`to_json`."""
        rest = {k: v for k, v in data.items() if k not in ("repairs", "findings")}
        return cls(**rest, repairs=Counter(data["repairs"]), findings=Counter(data["findings"]))
