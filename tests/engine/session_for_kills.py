"""A search session in a process of its own, to be killed: ``python session_for_kills.py server|engine FOLDER``.

It begins a session in FOLDER, or goes on with the one that is there.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from dsv4lab.config.engine import EngineConfig
from dsv4lab.load.process import ServerSpec
from dsv4lab.tuning.arm_target import ArmTarget
from dsv4lab.tuning.engine_arms import EngineArms, engine_knob
from dsv4lab.tuning.knobs import LOAD, PROCESS, Knob, KnobSpace, Setting
from dsv4lab.tuning.search.plan import GRID, Effort, SearchPlan
from dsv4lab.tuning.search.session import run_search
from dsv4lab.tuning.server_arms import ServerArms
from dsv4lab.tuning.server_plan import ServerPlan
from dsv4lab.tuning.store import MANIFEST

WRONG = Path(__file__).with_name("wrong_server.py")


def of_server(folder: Path) -> tuple[KnobSpace, ArmTarget]:
    knobs = (Knob("env:HOW", ("right", "also right", "right too"), PROCESS), Knob("concurrency", (1,), LOAD))
    server = ServerSpec(shlex.join([sys.executable, str(WRONG)]) + " {port}", stop_s=5.0)
    plan = ServerPlan(server, folder, waves=2, prompt_tokens=4, max_new_tokens=2, warmup=1)
    return KnobSpace(knobs, Setting((("env:HOW", "right"),))), ServerArms(plan)


def of_engine(_folder: Path) -> tuple[KnobSpace, ArmTarget]:
    values = {
        "plan": ("off", "hip"),
        "hw_queues": (2, 1),
        "concurrency": (1,),
        "prompt_tokens": (8,),
        "max_new_tokens": (4,),
    }
    space = KnobSpace(tuple(engine_knob(*item) for item in values.items()), Setting.of(plan="off", hw_queues=2))
    return space, EngineArms(space, EngineConfig("tiny", max_running_requests=1))


def main() -> None:
    kind, folder = sys.argv[1], Path(sys.argv[2])
    space, target = {"server": of_server, "engine": of_engine}[kind](folder)
    plan = SearchPlan(space, GRID, Effort(explore_pairs=2, confirm_pairs=2, burst=1))
    run_search(plan, target, folder, resume=(folder / MANIFEST).exists())


main()
