"""Predicted against measured: the folder of a ``dsv4lab bench overlap`` on a GPU, from its serial traces alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from dsv4lab.config.presets import preset
from dsv4lab.errors import TraceError
from dsv4lab.overlap.plan import resolve_plan
from dsv4lab.predict.kernel_rows import Asked, replays_of
from dsv4lab.predict.layer_ops import StepShape
from dsv4lab.predict.replay_plan import Baseline, Step, ask_step, baseline, perfect, step_bytes, step_of
from dsv4lab.queues.costs import Machine
from dsv4lab.timeline.program import StreamProgram

SERIAL = ("off", "unfused")
"""Serial plans, the one that gains are against first."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Gains of a plan at a concurrency level, as fractions of a step under ``off``; ``perfect``: the guess that side
    work costs nothing. ``base``: the serial plan whose trace it was predicted from.
    """

    level: int
    plan: str
    base: str
    measured: float
    predicted: float
    perfect: float

    @property
    def error(self) -> float:
        """Predicted less measured."""
        return self.predicted - self.measured

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "level": self.level, "plan": self.plan, "base": self.base, "measured": self.measured,
            "predicted": self.predicted, "perfect": self.perfect, "error": self.error,
        }  # fmt: skip


class BenchFolder:
    """``overlap-SHAPE.json``, ``programs-SHAPE.json`` and ``overlap-SHAPE-PLAN-LEVEL.pt.trace.json.gz`` of one bench.

    Raises:
        TraceError: there is no such record, or it lacks a field.

    """

    def __init__(self, folder: Path) -> None:
        records = sorted(folder.glob("overlap-*.json"))
        if len(records) != 1:
            raise TraceError(f"{folder}: it takes one record overlap-SHAPE.json, there are {len(records)}")
        self.folder = folder
        self.record = _json(records[0])
        self.shape = records[0].stem.removeprefix("overlap-")
        if not isinstance(self.record.get("levels"), list) or not isinstance(self.record.get("settings"), dict):
            raise TraceError(f"{records[0]}: no record of a bench: it has no levels or no settings")

    @cached_property
    def programs(self) -> Mapping[str, Any]:
        """Programs by level and plan."""
        found: Mapping[str, Any] = _json(self.folder / f"programs-{self.shape}.json")
        return found

    @cached_property
    def carveouts(self) -> Asked:
        """What kernels asked to have as shared memory. A record without it is of kernels that asked for nothing."""
        found = self.record.get("carveouts", {})
        if not isinstance(found, dict) or not all(_is_share(share) for share in found.values()):
            raise TraceError(
                f"{self.folder}: carveouts of the record takes percent (0 to 100) by kernel, or by bytes of shared "
                f"memory in each, not {found!r}"
            )
        return found

    def measured(self) -> dict[int, dict[str, list[float]]]:
        """Microseconds of a step in each round, by level and plan."""
        return {
            int(level["concurrency"]): {p["plan"]: p["rounds_us"] for p in level["plans"]}
            for level in self.record["levels"]
        }

    def step(self, plan: str, level: int, on: Machine) -> Step | None:
        """The step of serial plan ``plan``; None if it was not traced there."""
        trace = self.folder / f"overlap-{self.shape}-{plan}-{level}.pt.trace.json.gz"
        found = self.programs.get(str(level), {}).get(plan)
        if found is None or not trace.is_file():
            return None
        program, settings = StreamProgram.from_json(found), self.record["settings"]
        name, _, share = self.shape.partition("-tp")
        shape = StepShape(level, program.tokens, int(settings["isl"]), int(share or 1))
        moved = step_bytes(program, preset(name), shape, int(settings.get("gate_bytes", 2)))
        return step_of(program, replays_of(trace, self.carveouts), on, moved)


def _is_share(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(size, str) and size.isdecimal() for size in value) and all(
            map(_is_percent, value.values())
        )
    return _is_percent(value)


def _is_percent(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= 100  # type: ignore[operator]


def check(folder: BenchFolder, on: Machine) -> list[Checked]:
    """Every plan that was timed at a level where ``off`` was traced, as far as serial traces tell of its kernels."""
    rows = []
    for level, times in folder.measured().items():
        steps = {plan: folder.step(plan, level, on) for plan in SERIAL}
        if steps[SERIAL[0]] is None:
            continue
        bases = {name: baseline(step, on) for name, step in steps.items() if step is not None}
        for plan in (p for p in times if p not in SERIAL):
            row = _row(level, plan, times, bases, on)
            rows += [row] if row is not None else []
    return rows


def _row(
    level: int, plan: str, times: Mapping[str, Sequence[float]], bases: Mapping[str, Baseline], on: Machine
) -> Checked | None:
    """From the first serial trace that has the plan's ops apart; None if no trace has. A trace is slower than the
    replays that were timed, so the difference between two serial plans is that of the timed ones.
    """
    chosen = resolve_plan(plan)
    for name, base in bases.items():
        try:
            answer = ask_step(base, chosen, on)
        except TraceError:
            continue
        scale, measured = (_ratio(times[of], times[SERIAL[0]]) for of in (name, plan))
        predicted, guess = (1.0 - scale * (1.0 - gain) for gain in (answer.gain, perfect(base.step, chosen)))
        return Checked(level, plan, name, 1.0 - measured, predicted, guess)
    return None


def _ratio(mine: Sequence[float], other: Sequence[float]) -> float:
    """As the bench reports it: over rounds in which both took their turn, so that what drifts cancels."""
    return median(a / b for a, b in zip(mine, other, strict=True))


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: {error}") from None
