"""One tuning session from start to report: explore, pick, confirm, look closely, write down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsv4lab.config.engine import EngineConfig
from dsv4lab.engine.manifest import manifest_of
from dsv4lab.host import usable_cores
from dsv4lab.timeline.records import Manifest, SweepRow
from dsv4lab.tuning.arms import Arm, profile_arm
from dsv4lab.tuning.gate import Divergence, Gate
from dsv4lab.tuning.recommend import LEAST_GAIN, Choice, Recommendation, pick_candidate, recommend
from dsv4lab.tuning.rows import baseline_noise, row_difference, sweep_rows
from dsv4lab.tuning.space import BASELINE, SweepSpace
from dsv4lab.tuning.stats import Difference
from dsv4lab.tuning.store import RESULT, SessionStore, read_manifest, write_json
from dsv4lab.tuning.sweep import Bench, Diverged, Sweep, Tell
from dsv4lab.tuning.target import OpenTarget


@dataclass(frozen=True, slots=True)
class Finding:
    """A row of the sweep and what its paired trials say against ``off``; no difference for ``off`` and controls."""

    row: SweepRow
    difference: Difference | None

    @property
    def verdict(self) -> str:
        """``baseline``, ``control``, or the verdict of :class:`Difference` (of the sweep, before confirmation)."""
        if self.row.control:
            return "control"
        return self.difference.verdict(LEAST_GAIN) if self.difference else "baseline"

    def to_json(self) -> dict[str, Any]:
        """The documented row, with the paired comparison."""
        paired = self.difference.to_json() if self.difference else None
        return {**self.row.to_json(), "verdict": self.verdict, "paired": paired}


@dataclass(frozen=True, slots=True)
class SessionResult:
    """What a session found. Without ``recommendation`` the gate failed, and ``divergence`` says where."""

    folder: Path
    manifest: Manifest
    space: SweepSpace
    findings: tuple[Finding, ...]
    recommendation: Recommendation | None
    divergence: Divergence | None
    control_differs: bool
    arms: tuple[Arm, ...]

    @property
    def identical(self) -> bool:
        """Whether every cell gave the same tokens for the same prompts; the control is not counted."""
        return self.divergence is None

    def to_json(self) -> dict[str, Any]:
        """The documented object of ``tune --json``."""
        return {
            "identical": self.identical,
            "rows": [finding.to_json() for finding in self.findings if not finding.row.control],
            "controls": [finding.to_json() for finding in self.findings if finding.row.control],
            "control_identical": not self.control_differs,
            "best": self.recommendation.to_json() if self.recommendation else None,
            "divergence": self.divergence.to_json() if self.divergence else None,
            "out": str(self.folder),
            "traces": [str(arm.trace) for arm in self.arms],
            "manifest": self.manifest.to_json(),
        }


def session_manifest(space: SweepSpace, config: EngineConfig) -> Manifest:
    """What the session is made with; two sessions with equal manifests can be continued in each other's place."""
    settings = {"engine": config.to_json(), "sweep": space.to_json(), "cores": usable_cores()}
    return replace(manifest_of(config), settings=settings)


def run_session(
    space: SweepSpace, config: EngineConfig, folder: Path, *, open_target: OpenTarget, tell: Tell, resume: bool = False
) -> SessionResult:
    """Run a session in ``folder`` (or what is left of it, with ``resume``) and write ``result.json`` there.

    Raises :class:`dsv4lab.errors.UsageError` if ``folder`` holds another session.
    """
    manifest = session_manifest(space, config)
    if resume:
        manifest = replace(manifest, created=read_manifest(folder).get("created", ""))
    opened = SessionStore.resume if resume else SessionStore.create
    with opened(folder, manifest.to_json()) as store, Bench(config, usable_cores(), open_target) as bench:
        gate = Gate(across_levels=config.dtype == "float32")
        sweep = Sweep(space, bench, store, gate, tell)
        result = _measure(sweep, bench, store, manifest)
        store.append("result", identical=result.identical, best=result.to_json()["best"])
    write_json(folder / RESULT, result.to_json())
    return result


def _measure(sweep: Sweep, bench: Bench, store: SessionStore, manifest: Manifest) -> SessionResult:
    divergence: Divergence | None = None
    recommendation: Recommendation | None = None
    arms: tuple[Arm, ...] = ()
    try:
        _refuse_diverged(store)
        sweep.explore()
        candidate = _candidate(sweep, store)
        if candidate is not None:
            sweep.confirm(candidate)
        noise = baseline_noise(sweep.space, sweep.trials)
        recommendation = recommend(sweep.space, sweep.trials, candidate, noise)
        arms = _profile(sweep, bench, store.folder, recommendation)
    except Diverged as caught:
        divergence = caught.divergence
    rows = sweep_rows(sweep.space, sweep.trials, sweep.busy)
    seed = sweep.space.load.seed
    return SessionResult(
        folder=store.folder,
        manifest=manifest,
        space=sweep.space,
        findings=tuple(Finding(row, row_difference(sweep.trials, row, seed)) for row in rows),
        recommendation=recommendation,
        divergence=divergence,
        control_differs=any(record["cell"]["control"] for record in store.of_kind("diverged")),
        arms=arms,
    )


def _profile(sweep: Sweep, bench: Bench, folder: Path, found: Recommendation) -> tuple[Arm, ...]:
    """The baseline and the candidate, in one process; the baseline alone where there was no candidate."""
    queues = found.candidate.hw_queues if found.candidate else found.use.hw_queues
    wanted = [("baseline", Choice(BASELINE, queues))]
    if found.candidate is not None:
        wanted.append(("best" if found.use == found.candidate else "candidate", found.candidate))
    target = bench.running(queues)
    arms = []
    for role, choice in wanted:
        sweep.tell(0, f"profiling {choice.text}")
        arms.append(profile_arm(target, sweep.space, role, choice, folder))
    return tuple(arms)


def _refuse_diverged(store: SessionStore) -> None:
    """A session whose gate failed stays failed: its trials are no basis for a comparison."""
    for record in store.of_kind("diverged"):
        if not record["cell"]["control"]:
            raise Diverged(Divergence.from_json(record))


def _candidate(sweep: Sweep, store: SessionStore) -> Choice | None:
    """The candidate on record, so that a resumed session confirms what it began to confirm; else a new pick."""
    recorded: Mapping[str, Any] | None = next(store.of_kind("candidate"), None)
    if recorded is not None:
        return Choice(recorded["plan"], recorded["hw_queues"])
    candidate = pick_candidate(sweep.space, sweep.trials)
    if candidate is not None:
        store.append("candidate", plan=candidate.plan, hw_queues=candidate.hw_queues)
    return candidate
