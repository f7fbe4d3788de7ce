"""A search session as a process: ``search_worker.py FOLDER [URL GRACE BLOCK_AT]``; with URL a worker of several.

It goes on with the session in FOLDER if there is one, and tells on standard output what it is about to do. At the load
numbered ``BLOCK_AT`` (-1: never) it stops for good, in the middle of a setting, alive.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from dsv4lab.tuning.block import Measured
from dsv4lab.tuning.knobs import LIVE, PROCESS, Knob, KnobSpace, Setting
from dsv4lab.tuning.search.plan import GRID, Effort, SearchPlan
from dsv4lab.tuning.search.runner import Progress
from dsv4lab.tuning.search.session import run_search
from dsv4lab.tuning.search.shared import Sharing
from dsv4lab.tuning.simulated_arms import SimulatedArms, SimulatedNoise, additive
from dsv4lab.tuning.store import MANIFEST

SPACE = KnobSpace(
    (Knob("plan", ("off", "hip", "cuda", "moe"), LIVE), Knob("hw_queues", (1, 2, 4), PROCESS)),
    Setting.of(plan="off", hw_queues=1),
)
EFFECT = additive({"plan": {"cuda": -0.05, "hip": 0.02}, "hw_queues": {4: -0.02}})
PLAN = SearchPlan(SPACE, GRID, Effort(explore_pairs=4, confirm_pairs=16, warm_loads=0, burst=1))
NOISE = SimulatedNoise(sd=0.005)
BLOCKED = "blocked"


class Worker(SimulatedArms):
    """Stops at a load."""

    block_at = -1

    def measure(self, setting: Setting, *, seed: int) -> Measured:
        if self.blocks == self.block_at:
            say(BLOCKED)
            threading.Event().wait()
        return super().measure(setting, seed=seed)


def say(text: str) -> None:
    print(text, flush=True)


def tell(progress: Progress) -> None:
    say(progress.text)


def main(folder: str, url: str = "", grace: str = "5", block_at: str = "-1") -> None:
    arms = Worker(SPACE, EFFECT, NOISE)
    arms.block_at = int(block_at)
    sharing = Sharing(url, "shared", float(grace)) if url else None
    resume = (Path(folder) / MANIFEST).exists()
    run_search(PLAN, arms, Path(folder), tell=tell, sharing=sharing, resume=resume)
    say("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
