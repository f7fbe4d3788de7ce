"""Search sessions on simulated arms, run for real in no time."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsv4lab.tuning.knobs import LIVE, LOAD, PROCESS, Knob, KnobSpace, Setting
from dsv4lab.tuning.search.plan import GRID, Effort, SearchPlan
from dsv4lab.tuning.search.session import run_search
from dsv4lab.tuning.simulated_arms import SimulatedArms, SimulatedNoise, additive
from dsv4lab.tuning.store import MANIFEST, RECORDS, read_manifest, read_records, write_json

HOSTILE = "<img src=x onerror=alert(1)>|x"
SPACE = KnobSpace(
    (
        Knob("plan", ("off", "hip", "cuda"), LIVE),
        Knob("env:QUEUES", ("4", HOSTILE), PROCESS),
        Knob("concurrency", (1, 4), LOAD),
    ),
    Setting((("plan", "off"), ("env:QUEUES", "4"))),
)
EFFORT = Effort(alpha=0.05, explore_pairs=4, confirm_pairs=12)
HIP = -0.06
SLOWER = {HOSTILE: 0.02}
EFFECT = additive({"plan": {"hip": HIP, "cuda": 0.03}, "env:QUEUES": SLOWER})
QUIET = SimulatedNoise(sd=0.003)


def simulated(folder: Path, *, seed: int = 1, resume: bool = False, exact: bool = True, **fields: Any) -> Path:
    """A finished session in ``folder``. ``fields`` are of :class:`SimulatedArms`; without any ``hip`` is faster."""
    plan = SearchPlan(SPACE, GRID, EFFORT, exact=exact)
    arms = SimulatedArms(SPACE, fields.pop("effect", EFFECT), fields.pop("noise", QUIET), seed=seed, **fields)
    run_search(plan, arms, folder, resume=resume)
    return folder


def rewritten(folder: Path, out: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Path:
    """A copy of a session, each record changed or (None) left out."""
    out.mkdir(parents=True)
    write_json(out / MANIFEST, read_manifest(folder))
    records = [new for old in read_records(folder / RECORDS)[0] if (new := change(old)) is not None]
    (out / RECORDS).write_text("".join(json.dumps(record) + "\n" for record in records))
    return out


def again(
    folder: Path, out: Path, factor: Callable[[Setting], float] = lambda _s: 1.0, sd: float = 0.001, seed: int = 0
) -> Path:
    """The session once more: all blocks slower by ``factor`` of their setting, and by noise of their own."""
    chance = random.Random(seed)

    def change(record: dict[str, Any]) -> dict[str, Any]:
        if record["kind"] != "block" or record["outcome"] != "ok":
            return record
        scale = factor(Setting.from_json(record["setting"])) * math.exp(chance.gauss(0.0, sd))
        times = {name: [ms * scale for ms in record[name]] for name in ("tpot_ms", "ttft_ms")}
        return {**record, **times, "tokens_per_s": record["tokens_per_s"] / scale}

    return rewritten(folder, out, change)


def twin(folder: Path, out: Path) -> Path:
    """The same search by another worker."""
    return rewritten(folder, out, lambda r: {**r, "id": "twin", "host": "elsewhere"} if r["kind"] == "worker" else r)
