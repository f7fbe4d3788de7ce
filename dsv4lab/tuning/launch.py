"""Lines to paste that start what was measured: a line of a framework only for what was measured on that framework."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from dsv4lab.config.engine import EngineConfig
from dsv4lab.tuning.framework import DSV4LAB, PORT, PORTS, framework_of
from dsv4lab.tuning.knobs import (
    CONCURRENCY,
    ENV_PREFIX,
    LOAD_KNOBS,
    MAX_NEW_TOKENS,
    PROMPT_TOKENS,
    KnobValue,
    Setting,
)
from dsv4lab.tuning.view import ENGINE, SERVER, SessionView, Use

_OPTIONS = {
    "plan": "--plan",
    "hw_queues": "--hw-queues",
    "queue_policy": "--queue-policy",
    "side_streams": "--side-streams",
}
_KEPT = {
    "device": "--device",
    "num_layers": "--layers",
    "dtype": "--dtype",
    "weights": "--weights",
    "seed": "--seed",
    "kv_cache_dtype": "--kv-cache-dtype",
    "index_cache_dtype": "--index-cache-dtype",
    "kv_layout": "--kv-layout",
    "speculative": "--speculative",
    "chunked_prefill_size": "--chunked-prefill-size",
    "tp_size": "--tp-size",
    "dp_size": "--dp-size",
    "ep_size": "--ep-size",
    "shared_expert_fusion": "--enforce-shared-experts-fusion",
    "graphs": "--no-graphs",
    "graph_max_bs": "--graph-max-bs",
}
_SWITCHES = ("graphs", "shared_expert_fusion")
"""Of these, options without a value."""
_LOAD_OPTIONS = {
    CONCURRENCY: "--concurrency",
    PROMPT_TOKENS: "--prompt-tokens",
    MAX_NEW_TOKENS: "--max-new-tokens",
}


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """``line`` starts what ``what`` names, for the loads in ``levels``."""

    framework: str
    what: str
    line: str
    levels: tuple[KnobValue, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"framework": self.framework, "what": self.what, "line": self.line, "levels": list(self.levels)}


def launch_lines(view: SessionView) -> list[LaunchLine]:
    """A line per setting that the session says to use; none of a simulation, and none before there is an answer."""
    found: dict[Setting, list[Use]] = {}
    for use in view.uses:
        found.setdefault(use.use, []).append(use)
    lines = []
    for setting, uses in found.items():
        levels = tuple(use.load.get(CONCURRENCY) for use in uses)
        if view.target == SERVER:
            lines.append(
                LaunchLine(framework_of(view.facts["command"]), setting.label, server_line(view.facts, setting), levels)
            )
        elif view.target == ENGINE:
            lines += [
                LaunchLine(DSV4LAB, setting.label, line, levels)
                for line in engine_lines(view.facts, setting, uses[-1].load)
            ]
    return lines


def server_line(facts: Mapping[str, Any], setting: Setting) -> str:
    """The command as it was run, with the setting's environment in front and its flags in place."""
    command: str = facts["command"]
    port = str(PORTS.get(framework_of(command), PORT))
    text = shlex.join([*facts.get("flags", ()), *setting.flags])
    line = command if "{flags}" in command else f"{command} {{flags}}"
    filled = line.replace("{port}", port).replace("{host}", "127.0.0.1").replace("{flags}", text)
    return " ".join((*_environment({**facts.get("env", {}), **setting.env}), filled.strip()))


def engine_lines(facts: Mapping[str, Any], setting: Setting, load: Setting) -> list[str]:
    """How to serve the setting, and how to run its load once; Python where the plan is no preset."""
    plan = setting.get("plan", facts.get("plan", "off"))
    env = _environment(setting.env)
    others = [n for n in setting.names if n not in _OPTIONS and not n.startswith(ENV_PREFIX) and n not in LOAD_KNOBS]
    own_plan = facts.get("plans", {}).get(plan) if isinstance(facts.get("plans"), dict) else None
    if own_plan is not None or others:
        tuned = {n: v for n, v in setting.items if n not in LOAD_KNOBS and not n.startswith(ENV_PREFIX)}
        values = {**_changed(facts), **tuned}
        if own_plan is not None:
            values["plan"] = own_plan
        given = ", ".join(f"{n}={v!r}" for n, v in values.items())
        return [" ".join((*env, f"lab.open({facts['model']!r}, {given})"))]
    model = ["--checkpoint" if "/" in str(facts["model"]) else "--preset", str(facts["model"])]
    words = [w for n, option in _OPTIONS.items() if setting.get(n) is not None for w in (option, str(setting.get(n)))]
    sizes = [w for n, option in _LOAD_OPTIONS.items() if load.get(n) is not None for w in (option, str(load.get(n)))]
    held = {"--max-running-requests": load.get(CONCURRENCY), "--max-total-tokens": facts.get("max_total_tokens")}
    room = [word for option, value in held.items() if value is not None for word in (option, str(value))]
    serve = ["dsv4lab", "serve", *model, *_kept(facts), *words, *room]
    run = ["dsv4lab", "run", *model, *_kept(facts), *sizes, *words]
    return [" ".join((*env, shlex.join(line))) for line in (serve, run)]


def _kept(facts: Mapping[str, Any]) -> list[str]:
    """Options for what the engine was measured with and is not the default."""
    given = _changed(facts)
    words = [[_KEPT[name]] if name in _SWITCHES else [_KEPT[name], str(value)] for name, value in given.items()]
    return [word for option in words for word in option]


def _changed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What the engine was measured with and is not the default."""
    defaults = {field.name: field.default for field in fields(EngineConfig)}
    return {name: facts[name] for name in _KEPT if facts.get(name, defaults[name]) != defaults[name]}


def _environment(env: Mapping[str, str | None]) -> list[str]:
    """Words in front of a command that set its variables, or take them out."""
    gone = [name for name, value in env.items() if value is None]
    taken = ["env", *(word for name in gone for word in ("-u", name))] if gone else []
    return [*taken, *(f"{name}={shlex.quote(value)}" for name, value in env.items() if value is not None)]
