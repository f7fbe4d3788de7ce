"""The controls of the Queue Lab."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as widgets

from dsv4lab.predict.scenes import SCENES, STEP
from dsv4lab.predict.setting import GPUS, Setting
from dsv4lab.queues.policies import ALL_POLICIES, HIGH
from dsv4lab.widgets.board import BOARD_THEMES

OWN_POLICY = "its own"
MOST_QUEUES, MOST_REQUESTS, MOST_LAYERS = 16, 64, 16
MODELS = ("pro", "flash")
ISL_CHOICES = (1024, 4096, 8192, 16384, 65536, 131072)
_WIDTH = {"description_width": "initial"}
_HELP = {
    "scene": "A model's decode step, or a small program that shows one thing.",
    "device": "The GPU whose command processor and memory are simulated.",
    "runtime": "The generation of HIP or CUDA: how streams get queues, where signals live, how graphs are laid out.",
    "hw_queues": "GPU_MAX_HW_QUEUES: hardware queues per priority that streams share.",
    "plan": "Which op goes to which stream.",
    "side_streams": "Fold the plan onto so many side streams.",
    "policy": "How streams get hardware queues; its own: what the runtime does.",
    "barrier_elision": "Packets of other streams in a ring do not wait for each other (rocm-systems#9895).",
    "side_priority": "Priority of the side streams; only streams of ops launched one by one have one.",
    "graphs": "A step as one launch of a captured graph, instead of op by op.",
    "concurrency": "Concurrency level: requests in flight, so the batch of a decode step.",
    "isl": "Input sequence length (ISL): prompt tokens of a request.",
    "model": "The model whose decode step is simulated.",
    "layers": "Layers simulated, from the first on.",
    "value": "An assumed number of the device that the slider beside it changes.",
    "factor": "The assumed number times this.",
}


def _layout(width: str) -> widgets.Layout:
    return widgets.Layout(width=width, margin="2px 10px 2px 0")


def _choice(name: str, label: str, width: str, options: Sequence[Any] = ()) -> widgets.Dropdown:
    return widgets.Dropdown(
        options=list(options), description=label, style=_WIDTH, layout=_layout(width), tooltip=_HELP[name]
    )


def _slider(name: str, label: str, width: str, most: int) -> widgets.IntSlider:
    return widgets.IntSlider(
        min=1, max=most, description=label, style=_WIDTH, layout=_layout(width), tooltip=_HELP[name]
    )


def _check(name: str, label: str, width: str) -> widgets.Checkbox:
    return widgets.Checkbox(description=label, indent=False, layout=_layout(width), tooltip=_HELP[name], style=_WIDTH)


class QueueControls:
    """All inputs of the Queue Lab; ``settings`` by the name of what they change."""

    def __init__(self, plans: Sequence[str]) -> None:
        self.following = False
        scenes = [("decode step", STEP), *((scene.title, scene.name) for scene in SCENES.values())]
        self.scene = _choice("scene", "show", "300px", scenes)
        self.value = _choice("value", "assumed", "220px")
        self.factor = widgets.FloatLogSlider(
            value=1.0,
            base=2,
            min=-3,
            max=3,
            step=0.25,
            readout_format=".2f",
            description="\N{MULTIPLICATION SIGN}",
            style=_WIDTH,
            layout=_layout("240px"),
            tooltip=_HELP["factor"],
        )
        sides = [("as the plan says", 0), ("1", 1), ("2", 2), ("3", 3)]
        self.settings: dict[str, Any] = {
            "device": _choice("device", "device", "150px", GPUS),
            "runtime": _choice("runtime", "runtime", "225px"),
            "hw_queues": _slider("hw_queues", "hardware queues", "300px", MOST_QUEUES),
            "plan": _choice("plan", "plan", "170px", plans),
            "side_streams": _choice("side_streams", "side streams", "215px", sides),
            "policy": _choice("policy", "queue policy", "195px", (OWN_POLICY, *ALL_POLICIES)),
            "side_priority": _choice("side_priority", "priority", "150px", [("as main", 0), ("high", HIGH)]),
            "graphs": _check("graphs", "graphs", "80px"),
            "barrier_elision": _check("barrier_elision", "barrier elision", "130px"),
            "concurrency": _slider("concurrency", "concurrency level", "300px", MOST_REQUESTS),
            "isl": _choice("isl", "ISL", "130px", ISL_CHOICES),
            "model": _choice("model", "model", "130px", MODELS),
            "layers": _slider("layers", "layers", "230px", MOST_LAYERS),
            "value": self.value,
            "factor": self.factor,
        }
        self.theme = widgets.Dropdown(
            options=list(BOARD_THEMES), description="theme", style=_WIDTH, layout=_layout("125px")
        )
        self.export = widgets.Button(
            description="Export page", icon="download", tooltip="One HTML file, for people without Python"
        )

    def rows(self) -> list[widgets.Box]:
        """The controls in the rows that are laid out."""
        s = self.settings
        rows = (
            [self.scene, s["device"], s["runtime"], s["hw_queues"]],
            [*(s[n] for n in ("plan", "side_streams", "policy", "side_priority", "graphs", "barrier_elision"))],
            [*(s[n] for n in ("model", "layers", "concurrency", "isl"))],
            [self.value, self.factor, self.theme, self.export],
        )
        wrap = {"flex_flow": "row wrap", "align_items": "center", "width": "100%"}
        return [widgets.Box(row, layout=widgets.Layout(**wrap)) for row in rows]

    def follow(self, change: Callable[[QueueControls], None]) -> None:
        """Change controls without anybody's acting on it."""
        self.following = True
        try:
            change(self)
        finally:
            self.following = False

    def show(self, setting: Setting, scene: str, runtimes: Sequence[str], assumed: Sequence[str]) -> None:
        """Say what holds; switch off what has no effect."""
        self.follow(lambda c: c._show(setting, scene, runtimes, assumed))

    def _show(self, setting: Setting, scene: str, runtimes: Sequence[str], assumed: Sequence[str]) -> None:
        _offer(self.settings["runtime"], runtimes)
        _offer(self.value, assumed)
        self.scene.value = scene
        for name, control in self.settings.items():
            if name in ("value", "factor"):
                continue
            value = getattr(setting, name)
            value = value.name if name == "plan" else OWN_POLICY if value is None and name == "policy" else value
            value = MOST_LAYERS if value is None and name == "layers" else 0 if value is None else value
            if isinstance(control, widgets.Dropdown) and value not in _values(control):
                control.options = [*control.options, value]
            control.value = value
        if not setting.values:
            self.factor.value = 1.0
        small = scene != STEP
        for name in ("plan", "side_streams", "model", "layers", "concurrency", "isl", "graphs"):
            self.settings[name].disabled = small
            self.settings[name].tooltip = "a scene has a program of its own" if small else _HELP[name]
        off = setting.graphs or small
        self.settings["side_priority"].disabled = off
        reason = "a captured graph's internal streams are all of normal priority" if off else _HELP["side_priority"]
        self.settings["side_priority"].tooltip = reason


def _values(control: widgets.Dropdown) -> list[Any]:
    return [option[1] if isinstance(option, tuple) else option for option in control.options]


def _offer(control: widgets.Dropdown, options: Sequence[Any]) -> None:
    if list(control.options) != list(options):
        kept = control.value if control.value in options else options[0]
        control.options = list(options)
        control.value = kept
