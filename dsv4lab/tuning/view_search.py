"""The view of a search session: any knobs, on the engine, a server, or a simulation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsv4lab.tuning.block import CONFIRM, OK, WARM_UP, Block
from dsv4lab.tuning.framework import OTHER, framework_of
from dsv4lab.tuning.knobs import KnobSpace, Setting
from dsv4lab.tuning.profiles import PROFILE
from dsv4lab.tuning.search.log import BLOCK, DECISION, GATE, OUTCOME, RESULT, WORKER, Decision
from dsv4lab.tuning.stats import Difference, median
from dsv4lab.tuning.store import RECORDS, StoreError, read_manifest, read_records
from dsv4lab.tuning.trial import busy_from_json
from dsv4lab.tuning.view import (
    BASELINE,
    CANDIDATE,
    FAILURES,
    FINISHED,
    MEASURING,
    SEARCH,
    Profiled,
    Row,
    Sample,
    SessionView,
    Use,
    load_order,
)

Records = list[dict[str, Any]]


def search_view(folder: Path) -> SessionView:
    """Read the session in ``folder``, whoever writes it meanwhile.

    Raises :class:`dsv4lab.tuning.store.StoreError` if there is none or its records do not fit it.
    """
    manifest = read_manifest(folder)
    records, torn = read_records(folder / RECORDS)
    try:
        return _Maker(folder, manifest, records).view(torn)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise StoreError(f"{folder}: its records do not fit its manifest ({type(error).__name__}: {error})") from error


class _Maker:
    def __init__(self, folder: Path, manifest: dict[str, Any], records: Records) -> None:
        self.folder, self.manifest, self.records = folder, manifest, records
        settings = manifest["settings"]
        self.space = KnobSpace.from_json(settings["space"])
        self.search: Mapping[str, Any] = settings["search"]
        self.facts: dict[str, Any] = dict(settings["target"])
        self.blocks = [(Block.from_json(r), _origin(r)) for r in self.of(BLOCK)]
        self.decisions = [Decision.from_json(r) for r in self.of(DECISION)]

    def of(self, kind: str) -> Records:
        return [r for r in self.records if r["kind"] == kind]

    def view(self, torn: int) -> SessionView:
        rows = sorted(self._rows(), key=lambda row: load_order(row.load))
        finished = bool(self.of(RESULT))
        return SessionView(
            folder=self.folder,
            kind=SEARCH,
            target=str(self.facts.get("name", "")),
            title=_title(self.facts),
            facts=self.facts,
            manifest=self.manifest,
            state=FINISHED if finished else MEASURING,
            rows=tuple(rows),
            uses=tuple(sorted(self._uses(rows), key=lambda use: load_order(use.load))),
            profiles=tuple(self._profiles()),
            gates=tuple(dict.fromkeys(_gate_text(r) for r in self.of(GATE) if not r["identical"])),
            machines=self._machines(),
            level=1 - float(self.search.get("alpha", 0.05)),
            gpus=gpus_of(self.facts),
            torn=torn,
        )

    def _rows(self) -> list[Row]:
        """Every point that was measured or failed, baselines first under each load."""
        points = [block.setting for block, _ in self.blocks] + [d.setting for d in self.decisions]
        baselines = {self.space.baseline_for(point): None for point in points}
        return [self._row(point) for point in dict.fromkeys([*baselines, *points])]

    def _row(self, point: Setting) -> Row:
        load, setting = self.space.load_of(point), self.space.tuned_of(point)
        samples = tuple(
            Sample(
                f"{origin}/{block.process}",
                block.phase,
                (block.phase, block.pair, block.position, block.seed),
                block.tpot_ms,
                block.ttft_ms,
                block.tokens_per_s,
            )
            for block, origin in self.blocks
            if block.setting == point and block.ok and block.phase != WARM_UP
        )
        if setting == self.space.baseline:
            return Row(load, setting, BASELINE, samples, None, BASELINE)
        decision = self._decision(point)
        if decision is None:
            return Row(load, setting, CANDIDATE, samples, None, MEASURING, pairs=self._pairs(point))
        failed = decision.outcome != OK
        return Row(
            load,
            setting,
            CANDIDATE,
            samples,
            _difference(decision.delta, decision.low, decision.high, decision.pairs),
            FAILURES.get(decision.outcome, decision.outcome) if failed else decision.verdict,
            decision.why if failed else decision.stopped or None,
            decision.forecast,
            self._pairs(point),
        )

    def _decision(self, point: Setting) -> Decision | None:
        """The one that counts most: a failure, then a confirming one, then the one with the most pairs."""
        own = [d for d in self.decisions if d.setting == point]
        return max(own, key=lambda d: (d.outcome != OK, d.phase == CONFIRM, d.pairs), default=None)

    def _pairs(self, point: Setting) -> tuple[tuple[float, float], ...]:
        """Medians of (setting, baseline) of every pair of which both arms are there."""
        groups: dict[tuple[Any, ...], tuple[list[float], list[float]]] = {}
        trials = {(block.trial, origin) for block, origin in self.blocks if block.setting == point}
        for block, origin in self.blocks:
            if (block.trial, origin) in trials and block.ok and block.pair >= 0 and block.tpot_ms:
                arms = groups.setdefault((origin, block.trial, block.phase, block.pair), ([], []))
                arms[block.setting != point].append(block.tpot)
        return tuple((median(own), median(beside)) for own, beside in groups.values() if own and beside)

    def _uses(self, rows: list[Row]) -> list[Use]:
        outcomes = self.of(OUTCOME)
        if outcomes:
            return [self._use(level, rows) for level in outcomes[-1]["levels"]]
        return [use for load in dict.fromkeys(row.load for row in rows) if (use := _leading(load, rows)) is not None]

    def _use(self, level: Mapping[str, Any], rows: list[Row]) -> Use:
        tuned, change = self.space.tuned_of, _difference(level["delta"], level["low"], level["high"], level["pairs"])
        candidate = level.get("candidate")
        names = ("baseline_tpot_ms", "tpot_ms", "baseline_tokens_per_s", "tokens_per_s")
        before, after, slow, fast = (_number(level.get(name)) for name in names)
        load = Setting.from_json(level["load"])
        baseline = next((row for row in rows if row.load == load and row.role == BASELINE), None)
        if candidate is None and baseline is not None:
            before, slow = baseline.tpot_ms, baseline.tokens_per_s
        return Use(
            load=load,
            use=tuned(Setting.from_json(level["use"])),
            baseline=tuned(Setting.from_json(level["baseline"])),
            candidate=None if candidate is None else tuned(Setting.from_json(candidate)),
            change=change,
            verdict=level["verdict"],
            tpot_ms=(before, after),
            tokens_per_s=(slow, fast),
        )

    def _profiles(self) -> list[Profiled]:
        out = {}
        for record in self.of(PROFILE):
            if record.get("busy"):
                point = Setting.from_json(record["setting"])
                load, setting = self.space.load_of(point), self.space.tuned_of(point)
                role = BASELINE if setting == self.space.baseline else CANDIDATE
                out[point] = Profiled(load, setting, role, busy_from_json(record["busy"]), record.get("trace") or "")
        return sorted(out.values(), key=lambda p: (load_order(p.load), p.role != BASELINE))

    def _machines(self) -> tuple[str, ...]:
        told = [str(r["machine"]) for r in self.records if r.get("machine")]
        hosts = [str(r["host"]) for r in self.of(WORKER) if r.get("host")]
        own = [str(name) for name in (*hosts[:1], self.facts.get("gpu"), self.manifest.get("cpu", "")) if name]
        return tuple(dict.fromkeys(told)) or (", ".join(own),)


def _title(facts: Mapping[str, Any]) -> str:
    if "command" in facts:
        framework = framework_of(facts["command"])
        return framework if framework == OTHER else f"{framework} server"
    return str(facts.get("model") or facts.get("name", ""))


def gpus_of(facts: Mapping[str, Any]) -> int:
    """Devices behind a target: what a server was said to have, or the ranks of an engine."""
    if "gpus" in facts:
        return int(facts["gpus"])
    return int(facts.get("tp_size", 1)) * int(facts.get("dp_size", 1))


def _leading(load: Setting, rows: list[Row]) -> Use | None:
    """Before a session has ended: the row that is furthest ahead; nothing is recommended yet."""
    own = [row for row in rows if row.load == load]
    baseline = next((row for row in own if row.role == BASELINE), None)
    measured = [row for row in own if row.role == CANDIDATE and row.change is not None and row.measured]
    if baseline is None or not measured:
        return None
    best = min(measured, key=lambda row: row.change.delta if row.change else math.inf)
    return Use(
        load,
        baseline.setting,
        baseline.setting,
        best.setting,
        best.change,
        f"{best.verdict}, not confirmed",
        (baseline.tpot_ms, best.tpot_ms),
        (baseline.tokens_per_s, best.tokens_per_s),
    )


def _difference(delta: float | None, low: float | None, high: float | None, pairs: int) -> Difference | None:
    return None if delta is None else Difference(delta, low, high, pairs)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _origin(record: Mapping[str, Any]) -> str:
    """Which session a merged record came from; empty for the session's own."""
    return str((record.get("origin") or {}).get("session", ""))


def _gate_text(record: Mapping[str, Any]) -> str:
    setting, reference = (Setting.from_json(record[name]) for name in ("setting", "reference"))
    return f"{setting.label}, against {reference.label}: {record['why']}"
