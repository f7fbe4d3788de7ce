"""Overlap lab for the unified-KV DeepSeek-V4 runtime.

``import dsv4lab as lab``; ``client = lab.open("tiny", plan="hip", hw_queues=4)``; ``lab.dashboard(client)``.
Names are loaded when they are first used: importing the package imports neither torch nor plotly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dsv4lab._version import __version__

if TYPE_CHECKING:
    from dsv4lab.config.engine import EngineConfig
    from dsv4lab.config.model import ModelConfig
    from dsv4lab.engine.api import open  # noqa: A004 - `lab.open(...)`
    from dsv4lab.engine.client import EngineClient
    from dsv4lab.engine.request import SamplingParams
    from dsv4lab.errors import LabError
    from dsv4lab.overlap.plan import OverlapPlan, Rule
    from dsv4lab.text.encoding import ChatOptions
    from dsv4lab.timeline.program import StreamProgram
    from dsv4lab.timeline.timeline import Timeline
    from dsv4lab.tuning.bundle.bundle import load_bundle
    from dsv4lab.viz.loaded import load_trace
    from dsv4lab.widgets import dashboard, pool_explorer, queue_lab, trace_explorer, tuning_board

__all__ = [
    "ChatOptions",
    "EngineClient",
    "EngineConfig",
    "LabError",
    "ModelConfig",
    "OverlapPlan",
    "Rule",
    "SamplingParams",
    "StreamProgram",
    "Timeline",
    "__version__",
    "dashboard",
    "load_bundle",
    "load_trace",
    "open",
    "pool_explorer",
    "queue_lab",
    "trace_explorer",
    "tuning_board",
]

_HOMES = {
    "ChatOptions": "dsv4lab.text.encoding",
    "EngineClient": "dsv4lab.engine.client",
    "EngineConfig": "dsv4lab.config.engine",
    "LabError": "dsv4lab.errors",
    "ModelConfig": "dsv4lab.config.model",
    "OverlapPlan": "dsv4lab.overlap.plan",
    "Rule": "dsv4lab.overlap.plan",
    "SamplingParams": "dsv4lab.engine.request",
    "StreamProgram": "dsv4lab.timeline.program",
    "Timeline": "dsv4lab.timeline.timeline",
    "dashboard": "dsv4lab.widgets",
    "load_bundle": "dsv4lab.tuning.bundle.bundle",
    "load_trace": "dsv4lab.viz.loaded",
    "open": "dsv4lab.engine.api",
    "pool_explorer": "dsv4lab.widgets",
    "queue_lab": "dsv4lab.widgets",
    "trace_explorer": "dsv4lab.widgets",
    "tuning_board": "dsv4lab.widgets",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
