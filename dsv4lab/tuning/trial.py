"""One measured load of one cell, as recorded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from dsv4lab.timeline.records import BusySummary, QueueBusy, StreamBusy
from dsv4lab.tuning.space import Cell

EXPLORE = "explore"
CONFIRM = "confirm"


class TrialKey(NamedTuple):
    """What makes a trial unique in its session."""

    phase: str
    round: int
    repeat: int
    cell: Cell


@dataclass(frozen=True, slots=True)
class Trial:
    """Times of one load: ``ttft_ms`` and ``tpot_ms`` hold one value per request, ``tokens`` is :func:`digest`."""

    phase: str
    round: int
    repeat: int
    cell: Cell
    ttft_ms: tuple[float, ...]
    tpot_ms: tuple[float, ...]
    tokens_per_s: float
    wall_s: float
    tokens: str

    @property
    def key(self) -> TrialKey:
        """What the trial is known by."""
        return TrialKey(self.phase, self.round, self.repeat, self.cell)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trial:
        """Inverse of :meth:`to_json`; other keys are ignored."""
        return cls(
            phase=data["phase"],
            round=data["round"],
            repeat=data["repeat"],
            cell=cell_from_json(data["cell"]),
            ttft_ms=tuple(data["ttft_ms"]),
            tpot_ms=tuple(data["tpot_ms"]),
            tokens_per_s=data["tokens_per_s"],
            wall_s=data["wall_s"],
            tokens=data["tokens"],
        )


def cell_from_json(data: Mapping[str, Any]) -> Cell:
    """The inverse of :func:`cell_to_json`."""
    return Cell(data["plan"], data["hw_queues"], data["concurrency_level"], data["control"])


def cell_to_json(cell: Cell) -> dict[str, Any]:
    """Plain data."""
    return asdict(cell)


def busy_from_json(data: Mapping[str, Any]) -> BusySummary:
    """The inverse of :meth:`BusySummary.to_json`."""
    return BusySummary(
        wall_ns=data["wall_ns"],
        union_busy_ns=data["union_busy_ns"],
        sum_busy_ns=data["sum_busy_ns"],
        sum_dur_ns=data["sum_dur_ns"],
        hidden_ns=data["hidden_ns"],
        streams=tuple(StreamBusy(**stream) for stream in data["streams"]),
        queues=tuple(QueueBusy(**queue) for queue in data["queues"]),
        warnings=tuple(data["warnings"]),
    )


def digest(data: object) -> str:
    """A short name for plain data, as the tokens of a load: equal if and only if the data are."""
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]


def by_block(trials: Iterable[Trial], cell: Cell, phase: str = EXPLORE) -> dict[tuple[int, int], Trial]:
    """The trials of ``cell``, by the block (round, repeat) in which they stood beside their neighbours."""
    return {(t.round, t.repeat): t for t in trials if t.cell == cell and t.phase == phase}
