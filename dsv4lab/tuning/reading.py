"""A session's folder read back, finished or while another process writes it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4lab.config.engine import EngineConfig
from dsv4lab.tuning.gate import Divergence
from dsv4lab.tuning.recommend import Choice, Recommendation, recommend
from dsv4lab.tuning.rows import baseline_noise, row_difference, sweep_rows
from dsv4lab.tuning.session import Finding
from dsv4lab.tuning.space import Cell, Load, PlanChoice, SweepSpace
from dsv4lab.tuning.store import MACHINE, RECORDS, StoreError, read_manifest, read_records
from dsv4lab.tuning.trial import CONFIRM, EXPLORE, Trial, busy_from_json, cell_from_json

MEASURING, CONFIRMING, FINISHED, DIVERGED = "measuring", "confirming", "finished", "outputs differ"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a session's folder says at one moment. ``size`` is that of its records, to tell whether there is news.

    ``phase`` is ``measuring``, ``confirming``, ``finished`` or ``outputs differ`` (then ``divergence`` says where).
    ``machines`` are those of a merged session, empty for others.
    """

    folder: Path
    size: int
    config: EngineConfig
    cpu: str
    created: str
    space: SweepSpace
    trials: tuple[Trial, ...]
    findings: tuple[Finding, ...]
    candidate: Choice | None
    recommendation: Recommendation | None
    divergence: Divergence | None
    phase: str
    machines: tuple[str, ...] = ()

    @property
    def planned(self) -> int:
        """Timed loads of the whole session, the confirming ones included."""
        explore = sum(len(visit.turns) for visit in self.space.visits())
        pairs = 2 * len(self.space.concurrency) * self.space.confirm if len(self.space.plans) > 1 else 0
        return explore + pairs

    def trials_of(self, cell: Cell, phase: str = EXPLORE) -> list[Trial]:
        """The trials of a cell, in the order they were taken."""
        return [t for t in self.trials if t.cell == cell and t.phase == phase]

    def best(self) -> Finding | None:
        """The row with the lowest TPOT against ``off`` beside it, at its own concurrency level; None before any."""
        compared = [f for f in self.findings if not f.row.control and f.row.delta_vs_off is not None]
        return min(compared, key=lambda f: f.row.delta_vs_off or 0.0, default=None)


def read_session(folder: str | Path) -> Reading:
    """Read the session in ``folder``, whoever writes it meanwhile; a line being written is left out.

    Raises :class:`StoreError` if there is no session or its files are damaged.
    """
    home = Path(folder)
    manifest = read_manifest(home)
    if "sweep" not in manifest["settings"]:
        raise StoreError(f"{home} is a search session, no sweep: dsv4lab report shows it")
    path = home / RECORDS
    try:
        size = path.stat().st_size
        records, _ = read_records(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        return _reading(home, size, manifest, records)
    except (KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{home}: its records do not fit its manifest ({type(error).__name__}: {error})") from error


def _reading(folder: Path, size: int, manifest: Mapping[str, Any], records: list[dict[str, Any]]) -> Reading:
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        by_kind.setdefault(record["kind"], []).append(record)
    space = space_from_json(manifest["settings"]["sweep"])
    trials = tuple(Trial.from_json(r) for r in by_kind.get("trial", ()))
    busy = {cell_from_json(r["cell"]): busy_from_json(r["stream_busy"]) for r in by_kind.get("busy", ())}
    chosen = by_kind.get("candidate", [])
    candidate = Choice(chosen[0]["plan"], chosen[0]["hw_queues"]) if chosen else None
    broken = next((r for r in by_kind.get("diverged", ()) if not r["cell"]["control"]), None)
    finished = bool(by_kind.get("result"))
    confirmed = any(t.phase == CONFIRM for t in trials)
    decided = None
    if broken is None and (confirmed or finished):
        decided = recommend(space, trials, candidate, baseline_noise(space, trials))
    rows = sweep_rows(space, trials, busy)
    return Reading(
        folder=folder,
        size=size,
        config=EngineConfig.from_json(manifest["settings"]["engine"]),
        cpu=str(manifest.get("cpu", "")),
        created=str(manifest.get("created", "")),
        space=space,
        trials=trials,
        findings=tuple(Finding(row, row_difference(trials, row, space.load.seed)) for row in rows),
        candidate=candidate,
        recommendation=decided,
        divergence=Divergence.from_json(broken) if broken is not None else None,
        phase=DIVERGED if broken else FINISHED if finished else CONFIRMING if candidate else MEASURING,
        machines=tuple(dict.fromkeys(str(r[MACHINE]) for r in records if r.get(MACHINE))),
    )


def space_from_json(data: Mapping[str, Any]) -> SweepSpace:
    """Inverse of :meth:`SweepSpace.to_json`."""
    lists = {name: tuple(data[name]) for name in ("hw_queues", "concurrency")}
    return SweepSpace(
        plans=tuple(PlanChoice(p["name"], p["setting"]) for p in data["plans"]),
        load=Load(**data["load"]),
        rounds=data["rounds"],
        repeats=data["repeats"],
        confirm=data["confirm"],
        control=data["control"],
        **lists,
    )


def launch_flags(config: EngineConfig, space: SweepSpace, cell: Cell) -> str:
    """What starts the engine as in ``cell``: a ``dsv4lab`` line, or Python where the plan is not a preset."""
    setting = space.setting(cell.plan)
    if not isinstance(setting, str):
        return (
            f"lab.open({config.model!r}, plan={setting!r}, hw_queues={cell.hw_queues})"
            f".load({cell.concurrency_level}, {space.load.prompt_tokens}, {space.load.max_new_tokens})"
        )
    where = "--checkpoint" if "/" in config.model else "--preset"
    words = ["dsv4lab", "run", where, config.model, "--concurrency", str(cell.concurrency_level)]
    words += ["--plan", setting, "--hw-queues", str(cell.hw_queues)]
    return shlex.join(words)
