"""Small programs that each show one thing that hardware queues do, and a model's decode step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dsv4lab.errors import UsageError
from dsv4lab.predict.setting import Setting
from dsv4lab.queues.program_json import workload_from_json
from dsv4lab.queues.simulate import Simulated, simulate

STEP = "step"


@dataclass(frozen=True, slots=True)
class Scene:
    """A program as JSON (docs/queue-model.md), what it is called and what to look at."""

    name: str
    title: str
    look_at: str
    program: dict[str, Any]


def _op(name: str, stream: str, us: float, *after: str) -> dict[str, Any]:
    return {
        "name": name,
        "stream": stream,
        "duration_us": us,
        "occupancy": 0.2,
        **({"after": list(after)} if after else {}),
    }


_ALIAS = [_op(f"{stream}.{n}", stream, 12) for n in range(3) for stream in ("main", "side0", "side1")]
_BARRIER = [
    _op("norm", "main", 6),
    _op("compress", "side0", 10, "norm"),
    _op("store", "side0", 6),
    _op("project", "main", 14),
    _op("rope", "main", 5),
    _op("attention", "main", 16, "store"),
    _op("next.norm", "main", 6),
]
_PAIRS = [
    op
    for n in range(4)
    for op in (
        _op(f"main.{n}", "main", 3.7, *((f"side.{n - 1}",) if n else ())),
        _op(f"side.{n}", "side0", 3.4, f"main.{n}"),
    )
]

SCENES: dict[str, Scene] = {
    scene.name: scene
    for scene in (
        Scene(
            "alias",
            "three streams, too few queues",
            "Streams that share a queue take turns packet by packet, although nothing orders them. More queues help.",
            {"name": "alias", "ops": _ALIAS, "launch": "eager"},
        ),
        Scene(
            "barrier",
            "a fork and a join",
            "A packet with a wait holds up everything behind it in its queue until its producer's signal is seen.",
            {"name": "barrier", "ops": _BARRIER, "launch": "eager"},
        ),
        Scene(
            "edges",
            "two streams hand over to each other",
            "Every hand-over costs a signal. On a runtime with ordering edges the signal lives in device memory and is "
            "seen sooner, and queues that wait do not tax the others.",
            {"name": "edges", "ops": _PAIRS, "launch": "eager"},
        ),
    )
}


def run_scene(name: str, setting: Setting) -> Simulated:
    """The scene on the setting's machine; ``step`` is the setting's own decode step. Raises ``UsageError``."""
    if name == STEP:
        return setting.run()
    if name not in SCENES:
        raise UsageError(f"scene {name!r} is unknown; it takes one of {', '.join((STEP, *SCENES))}")
    on = setting.machine
    return simulate(workload_from_json(SCENES[name].program, on), on)
