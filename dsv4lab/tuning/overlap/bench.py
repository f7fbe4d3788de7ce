"""The bench: gate, every level with all plans in turn, replays, profiles, probe; each part is kept at once."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from dsv4lab import host
from dsv4lab._version import __version__
from dsv4lab.backends.kernel_report import shared_memory_asked
from dsv4lab.errors import LabError
from dsv4lab.overlap.device_api import DeviceApi
from dsv4lab.overlap.plan import OFF
from dsv4lab.overlap.recording import replay_lanes
from dsv4lab.overlap.spin import SpinBench
from dsv4lab.predict.probe import model_device, probe, probe_file
from dsv4lab.tuning.overlap import floor, gate, profiles
from dsv4lab.tuning.overlap.arms import SERIAL, alike, known, plans_of
from dsv4lab.tuning.overlap.markdown import markdown
from dsv4lab.tuning.overlap.reading import LevelView, read_level
from dsv4lab.tuning.overlap.record import Level, OverlapRecord, PlanTimes
from dsv4lab.tuning.overlap.settings import Settings
from dsv4lab.tuning.overlap.stage import Stage, Tell

TRACED = (1, 4, 8, 32)
"""Levels at which ``off`` is traced, for the queue model to predict plans from."""

LEVEL_S, PART_S = 20.0, 15.0
"""Seconds that have to be left for a part to begin."""

PROBE_ROUNDS, PROBE_STREAMS = 5, 30


def bench(settings: Settings, out: Path | None, tell: Tell, device: DeviceApi | None = None) -> OverlapRecord:
    """Measure; with ``out``, write record, report, traces and probe there as they come.

    ``settings.device`` is ``cpu``, ``cuda`` or ``hip`` here. Nothing is timed if the gate is red.
    """
    return _Bench(settings, out, tell, device).run()


class _Bench:
    def __init__(self, settings: Settings, out: Path | None, tell: Tell, device: DeviceApi | None) -> None:
        self._settings = settings
        self._out = out
        self._tell = tell
        self._device = device
        self._end = time.monotonic() + 60 * settings.minutes
        self._plans = plans_of(settings.plans)
        facts = machine_facts()
        shown = str(facts["cpu"] if settings.device == "cpu" else facts.get("gpu", settings.device))
        self._record = OverlapRecord(settings, shown, facts)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)

    def run(self) -> OverlapRecord:
        self._say("making weights and pool")
        stage = Stage(self._settings, self._device)
        try:
            self._measure(stage)
        finally:
            stage.close()
        return self._record

    def _measure(self, stage: Stage) -> None:
        for name in SERIAL:
            if not known(name):
                self._keep(self._record.without(f"{name}: no plan of this version"))
        lacking = {plan: why for plan in self._plans if (why := stage.lacks(plan)) is not None}
        for plan, why in lacking.items():
            self._keep(self._record.without(f"{plan}: {why}"))
        self._plans = tuple(plan for plan in self._plans if plan not in lacking)
        self._say("gate: every plan against the serial program, bit for bit")
        self._keep(replace(self._record, gate=gate.check(stage, self._plans)))
        if self._record.gate is None or not self._record.gate.green:
            return
        if torch.cuda.is_available() and stage.on_gpu:
            self._keep(replace(self._record, bytes_per_us=floor.copy_rate()))
        for n in self._settings.concurrency:
            if self._left() < LEVEL_S and self._record.levels:
                self._keep(self._record.without(f"concurrency {n}: no time left"))
                continue
            self._level(stage, n)
        parts = {"replays": self._replays, "probe": self._probe, "profiles": self._profiles}
        for name, part in parts.items():
            if self._left() < PART_S:
                self._keep(self._record.without(f"{name}: no time left"))
            else:
                part(stage)
        self._keep(self._record)

    def _level(self, stage: Stage, n: int) -> None:
        self._say(f"concurrency {n}: capturing" if stage.on_gpu else f"concurrency {n}")
        auto = self._auto(stage, n)
        plans = [plan for plan in self._plans if plan in SERIAL or len(stage.program(n, plan).streams) > 1]
        if auto is not None and auto not in plans:
            plans.append(auto)
        steps = {plan: stage.step(n, plan) for plan in plans}
        labels = {plan: [op.label for op in step.compiled.program.ops] for plan, step in steps.items()}
        serial = {plan: labels[plan] for plan in plans if plan in SERIAL}
        us = stage.turns_us(list(steps.values()), self._settings.rounds, self._settings.in_a_row)
        clocks = smi("clocks.sm,clocks.mem,power.draw,temperature.gpu") if stage.on_gpu else None
        times = []
        for (plan, step), rounds in zip(steps.items(), us, strict=True):
            program = step.compiled.program
            counts = (len(program.streams), len(replay_lanes(program)))
            single, side = stage.single_us(step), self._side_us(stage, n, plan)
            times.append(PlanTimes(plan, tuple(rounds), single, *counts, alike(labels[plan], serial), side))
        level = Level(n, tuple(times), floor.step_bytes(stage, n), auto, clocks)
        self._keep(replace(self._record.with_level(level), carveouts=shared_memory_asked()))
        self._say(_told(read_level(level, self._settings.gpus, self._record.bytes_per_us)))
        stage.forget()

    def _auto(self, stage: Stage, n: int) -> str | None:
        try:
            return stage.auto(n)
        except LabError as error:  # a candidate that cannot run here takes no figures away
            self._keep(self._record.without(f"auto at {n}: {error}"))
            return None

    def _side_us(self, stage: Stage, n: int, plan: str) -> float | None:
        chain = stage.side_step(n, plan)
        if chain is None:
            return None
        rounds = max(5, self._settings.rounds // 5)
        return statistics.median(stage.turns_us([chain], rounds, self._settings.in_a_row)[0])

    def _replays(self, stage: Stage) -> None:
        view = self._views()[0]
        self._say(f"replaying {view.best.plan} {self._settings.replays} times")
        found = gate.replay(stage, view.best.plan, view.concurrency, self._settings.replays)
        self._keep(replace(self._record, replays=found))

    def _profiles(self, stage: Stage) -> None:
        self._say("profiling")
        views = self._views()
        first = views[0]
        wanted = [(first.concurrency, first.control.plan), (first.concurrency, first.best.plan)]
        levels = [view.concurrency for view in views if view.concurrency in TRACED]
        wanted += [(n, plan) for n in levels for plan in (OFF.name, *self._settings.traced)]
        programs: dict[str, dict[str, Any]] = {}
        for n, plan in dict.fromkeys(wanted):
            try:
                found = profiles.profile(stage, plan, n, self._out)
            except (LabError, RuntimeError) as error:  # a profiler that fails takes no figures away
                self._keep(self._record.without(f"profile of {plan} at {n}: {error}"))
                continue
            self._keep(self._record.with_profile(found))
            programs.setdefault(str(n), {})[plan] = stage.program(n, plan).to_json()
        if self._out is not None:
            write(self._out / f"programs-{self._settings.shape}.json", json.dumps(programs) + "\n")

    def _probe(self, stage: Stage) -> None:
        """The probe's file, for ``dsv4lab calibrate``; ``dsv4lab probe`` measures the same."""
        if self._out is None or stage.gpu is None:
            return
        self._say("probing")
        spins = SpinBench(stage.gpu.streams.api, rounds=PROBE_ROUNDS)
        rows, found = probe(spins.measure, spins.distinct_streams(PROBE_STREAMS))
        told = {**found.to_json(), "host_us": spins.host_us()}
        document = probe_file(model_device(self._record.device), self._record.machine, rows, told)
        write(self._out / "probe.json", json.dumps(document, indent=1) + "\n")

    def _views(self) -> list[LevelView]:
        return [read_level(one, self._settings.gpus, self._record.bytes_per_us) for one in self._record.levels]

    def _left(self) -> float:
        return self._end - time.monotonic()

    def _say(self, text: str) -> None:
        self._tell(f"[{max(0.0, self._left()):4.0f} s left] {text}")

    def _keep(self, record: OverlapRecord) -> None:
        self._record = record
        if self._out is not None:
            name = f"overlap-{self._settings.shape}"
            write(self._out / f"{name}.json", json.dumps(record.to_json(), indent=1) + "\n")
            write(self._out / f"{name}.md", markdown(record))


def machine_facts() -> dict[str, Any]:
    """What figures come from: versions, processor, GPU. No paths and no names of people."""
    facts: dict[str, Any] = {
        "dsv4lab": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "triton": _version("triton", "pytorch-triton-rocm", "triton-rocm"),
        "cpu": host.cpu_name(),
        "cores": host.usable_cores(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if torch.cuda.is_available():
        facts |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda, "hip": torch.version.hip}
        facts |= {"driver": smi("driver_version"), "clocks_and_limit": smi("clocks.sm,clocks.mem,power.limit")}
    return facts


def smi(query: str) -> str | None:
    """What nvidia-smi says about the first GPU; None where there is no such program."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def _version(*names: str) -> str | None:
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def _told(view: LevelView) -> str:
    plans = ", ".join(f"{v.plan} {v.us:.1f} us {v.delta.delta:+.1%}" for v in view.plans)
    return f"concurrency {view.concurrency}: {plans}"
