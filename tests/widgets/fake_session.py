"""A tuning session's folder, written without an engine."""

from __future__ import annotations

import json
from pathlib import Path

from dsv4lab.config.engine import EngineConfig
from dsv4lab.tuning.space import Cell, Load, PlanChoice, SweepSpace
from dsv4lab.tuning.store import SessionStore
from dsv4lab.tuning.trial import CONFIRM, EXPLORE, Trial, digest

HOSTILE = "<img src=x onerror=alert(1)></script>"
SPACE = SweepSpace(
    plans=(PlanChoice("off", "off"), PlanChoice("hip", "hip"), PlanChoice(HOSTILE, {"name": HOSTILE, "rules": []})),
    hw_queues=(1, 4),
    concurrency=(1, 2),
    load=Load(prompt_tokens=8, max_new_tokens=4),
    confirm=6,
    control=False,
)
TOKENS = [[1, 2, 3, 4]]
FASTER = {"off": 1.0, "hip": 0.9, HOSTILE: 1.1}


def trial(cell: Cell, repeat: int, phase: str = EXPLORE, number: int = 0) -> Trial:
    tpot = 10.0 * cell.concurrency_level * FASTER[cell.plan] + 0.01 * repeat
    rate = 1000 * cell.concurrency_level / tpot
    return Trial(phase, number, repeat, cell, (50.0,), (tpot, tpot + 0.2), rate, 0.5, digest(TOKENS))


class Session:
    """A session's folder that is written bit by bit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        settings = {"engine": EngineConfig("tiny").to_json(), "sweep": SPACE.to_json(), "cores": 2}
        manifest = {"cpu": f"CPU {HOSTILE}", "created": "2026-11-29T22:00:00+00:00", "settings": settings}
        self.store = SessionStore.create(folder, json.loads(json.dumps(manifest)))

    def explore(self) -> None:
        for repeat in range(2):
            for cell in SPACE.cells():
                self.store.append("trial", **trial(cell, repeat).to_json())

    def confirm(self) -> None:
        self.store.append("candidate", plan="hip", hw_queues=4)
        for repeat in range(6):
            for level in (1, 2):
                for plan in ("off", "hip"):
                    self.store.append("trial", **trial(Cell(plan, 4, level), repeat, CONFIRM, 1).to_json())

    def finish(self) -> None:
        self.store.append("result", identical=True, best=None)
