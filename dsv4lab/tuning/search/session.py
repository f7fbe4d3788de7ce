"""A search session from start to result: forecast, explore, confirm, look closely, write down."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from dsv4lab._version import __version__
from dsv4lab.host import cpu_name, usable_cores
from dsv4lab.timeline.pareto import pareto_front
from dsv4lab.timeline.records import Manifest
from dsv4lab.tuning.arm_target import ArmTarget
from dsv4lab.tuning.block import EXPLORE
from dsv4lab.tuning.profiles import record_profiles
from dsv4lab.tuning.search import log as records
from dsv4lab.tuning.search.duel import RUN_OFF_FACTOR
from dsv4lab.tuning.search.forecast import Alike, Forecast, Order, Prior
from dsv4lab.tuning.search.log import SearchLog
from dsv4lab.tuning.search.outcome import CONTENDERS, Level, SearchResult, measured_points, noise_of
from dsv4lab.tuning.search.plan import SearchPlan
from dsv4lab.tuning.search.propose import Proposer
from dsv4lab.tuning.search.runner import Progress, Runner, Tell
from dsv4lab.tuning.search.shared import Sharing, shared_by
from dsv4lab.tuning.search.stand import Stand
from dsv4lab.tuning.search.timer import Timer
from dsv4lab.tuning.store import RESULT, SessionStore, read_manifest, write_json


def run_search(
    plan: SearchPlan,
    target: ArmTarget,
    folder: Path,
    *,
    prior: Prior | None = None,
    alike: Alike | None = None,
    tell: Tell = lambda _progress: None,
    resume: bool = False,
    sharing: Sharing | None = None,
    aside: Callable[[], float] = lambda: 0.0,
) -> SearchResult:
    """Run a session in ``folder`` (or what is left of it, with ``resume``) and write ``result.json`` there.

    ``prior`` says where to begin; of settings that are ``alike`` one is tried. With ``sharing`` this is one worker of
    several; each has a folder of its own. ``target`` is closed at the end. ``aside``: seconds that are no part of the
    session's time.
    Raises :class:`dsv4lab.errors.UsageError` if ``folder`` holds another session, and
    :class:`dsv4lab.errors.EngineError` if the baseline cannot be measured.
    """
    manifest = search_manifest(plan, target, sharing)
    if resume:
        manifest = replace(manifest, created=read_manifest(folder).get("created", ""))
    opened = SessionStore.resume if resume else SessionStore.create
    try:
        with opened(folder, manifest.to_json()) as store:
            log = SearchLog.of(store.records, plan.space)
            log.worker = log.worker or _new_worker(store)
            run_off = RUN_OFF_FACTOR * CONTENDERS * plan.effort.explore_pairs
            pairs = (plan.effort.confirm_pairs + run_off) * len(plan.space.strata())
            timer = Timer(plan.seconds, log.elapsed_s, pairs, aside=aside)
            order = Order(plan.space, _forecasts(plan, prior, store, log, tell), alike)
            facts = {"name": target.name, **target.facts}
            with shared_by(plan, facts, folder, log.worker, sharing) as shared:
                proposer = Proposer(plan, shared.studies, shared.claims, order, log.worker)
                runner = Runner(plan, Stand(plan, target, store, log), store, proposer, order, timer, tell)
                result = _search(runner, plan, target, store, log, proposer, timer, manifest)
            store.append(records.OUTCOME, **result.outcome())
            store.append(records.RESULT)
        write_json(folder / RESULT, result.to_json())
    finally:
        target.close()
    return result


def search_manifest(plan: SearchPlan, target: ArmTarget, sharing: Sharing | None) -> Manifest:
    """What the session is made with; two sessions with equal manifests can be continued in each other's place."""
    facts = target.facts
    return Manifest(
        dsv4lab=__version__,
        python=platform.python_version(),
        torch=importlib.metadata.version("torch"),
        platform=platform.platform(),
        cpu=cpu_name(),
        cpus=os.cpu_count() or 1,
        device=str(facts.get("device", target.name)),
        preset=str(facts.get("model", "")),
        seed=plan.seed,
        settings={
            "search": plan.to_json(),
            "space": plan.space.to_json(),
            "target": {"name": target.name, **facts},
            "study": None if sharing is None else sharing.to_json(),
            "cores": usable_cores(),
        },
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _search(
    runner: Runner,
    plan: SearchPlan,
    target: ArmTarget,
    store: SessionStore,
    log: SearchLog,
    proposer: Proposer,
    timer: Timer,
    manifest: Manifest,
) -> SearchResult:
    runner.explore()
    confirmed = runner.confirm()
    known = proposer.decisions()
    levels = tuple(Level.of(plan.space, load, known, confirmed[load]) for load in plan.space.strata())
    looked = [setting for level in levels for setting in (level.baseline, level.candidate or level.use)]
    record_profiles(target, store, looked, runner.say, timer.whole().left_s)
    return SearchResult(
        folder=store.folder,
        manifest=manifest,
        plan=plan,
        decisions=tuple(log.decisions[trial] for trial in sorted(log.decisions)),
        levels=levels,
        front=pareto_front(measured_points(plan.space, known)),
        noise=noise_of(plan.space, log.blocks),
        trials=len(known),
        choices=runner.choices,
        own_trials=len({d.setting for d in log.decisions.values() if d.phase == EXPLORE}),
    )


def _forecasts(
    plan: SearchPlan, prior: Prior | None, store: SessionStore, log: SearchLog, tell: Tell
) -> tuple[Forecast, ...]:
    """The forecasts on record, so that a resumed session keeps its order; else those of ``prior``, put on record."""
    if log.forecasts is not None:
        return log.forecasts
    if prior is None:
        return ()
    tell(Progress(0, plan.budget, f"forecast by {prior.name}", None))
    found = tuple(prior.forecasts(plan.space))
    store.append(records.PRIOR, by=prior.name, forecasts=[forecast.to_json() for forecast in found])
    return found


def _new_worker(store: SessionStore) -> str:
    worker = uuid.uuid4().hex
    store.append(records.WORKER, id=worker, host=socket.gethostname())
    return worker
