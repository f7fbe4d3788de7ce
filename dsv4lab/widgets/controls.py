"""The controls of the Overlap Lab: made here, wired in :mod:`dsv4lab.widgets.overlap_lab`."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ipywidgets as widgets

from dsv4lab.widgets.board import BOARD_THEMES

QUEUE_CHOICES = (1, 2, 4, 8, 16)
RESTART_NOTE = "read once, when a process starts: applying it <b>restarts the worker</b>; requests in flight go on"
SIMULATED_NOTE = "simulated: takes effect at once"
FORMS = ("PNG", "SVG", "HTML", "CSV", "trace")
_WIDTH = {"description_width": "initial"}
_HELP = {
    "where": "What the controls act on: the engine behind this client, or a GPU that the queue model simulates.",
    "runtime": "The generation of HIP or CUDA, which decides how streams get queues and how graphs are laid out.",
    "model": "The model whose decode step is simulated.",
    "concurrency": "Concurrency level: requests in flight at once.",
    "isl": "Input sequence length (ISL): prompt tokens of a request.",
    "speculation": "Drafts that are verified in one step.",
    "plan": "Overlap plan: which op goes to which stream. Takes effect from the next forward on.",
    "side_streams": "Fold the plan onto so many side streams.",
    "policy": "How streams get hardware queues.",
    "priority": "Priority of the side streams. HIP gives each priority a pool of queues of its own.",
    "graphs": "A step as one launch of a captured graph, instead of op by op.",
    "queues": "GPU_MAX_HW_QUEUES: hardware queues that the streams share.",
    "reads": "Mark the pool rows that the next query of the oldest request reads in this layer.",
}


@dataclass(frozen=True, slots=True)
class Offer:
    """What a control offers and what holds. ``options`` of a slider are its ends; ``reason``: why it is off."""

    options: tuple[Any, ...]
    value: Any
    reason: str = ""


def _layout(width: str) -> widgets.Layout:
    return widgets.Layout(width=width, margin="2px 10px 2px 0")


def _choice(name: str, label: str, width: str) -> widgets.Dropdown:
    return widgets.Dropdown(description=label, style=_WIDTH, layout=_layout(width), tooltip=_HELP[name])


class Controls:
    """All inputs of the lab and the rows that they stand in."""

    def __init__(self, places: Iterable[tuple[str, str]], kinds: Iterable[str]) -> None:
        """``places`` are label and value of what can be acted on; ``kinds`` the layer kinds, for the query picker."""
        self.following = False
        self.where = _choice("where", "on", "205px")
        self.where.options = list(places)
        self.where.index = 0
        self.runtime = _choice("runtime", "runtime", "200px")
        self.model = _choice("model", "model", "130px")
        self.speculation = _choice("speculation", "speculation", "160px")
        self.plan = _choice("plan", "plan", "170px")
        self.side_streams = _choice("side_streams", "side streams", "215px")
        self.policy = _choice("policy", "queue policy", "195px")
        self.priority = _choice("priority", "priority", "150px")
        self.isl = _choice("isl", "prompt tokens", "165px")
        self.concurrency = widgets.IntSlider(
            min=1,
            max=2,
            description="concurrency level",
            continuous_update=False,
            style=_WIDTH,
            layout=_layout("270px"),
            tooltip=_HELP["concurrency"],
        )
        self.graphs = widgets.Checkbox(
            description="graphs", indent=False, layout=_layout("80px"), tooltip=_HELP["graphs"], style=_WIDTH
        )
        self.settings: dict[str, Any] = {
            name: getattr(self, name)
            for name in (
                *("runtime", "model", "speculation", "plan", "side_streams", "policy", "priority"),
                *("isl", "concurrency", "graphs"),
            )
        }
        self._make_queues()
        self._make_buttons(kinds)

    def _make_queues(self) -> None:
        self.queues = widgets.ToggleButtons(
            options=list(QUEUE_CHOICES),
            style={"button_width": "42px"},
            layout=widgets.Layout(width="auto", margin="2px 8px 2px 0"),
            tooltip=_HELP["queues"],
        )
        self.apply_queues = widgets.Button(description="Apply", icon="refresh", disabled=True, layout=_layout("130px"))
        self.note = widgets.HTML()
        self.progress = widgets.FloatProgress(min=0.0, max=1.0, layout=widgets.Layout(width="180px", display="none"))
        self.stage = widgets.Label(layout=widgets.Layout(display="none"))
        self.reasons = widgets.HTML()

    def _make_buttons(self, kinds: Iterable[str]) -> None:
        self.decode = widgets.ToggleButton(
            description="Start decoding", icon="play", button_style="success", layout=_layout("140px")
        )
        self.reads = _choice("reads", "rows read in", "205px")
        self.reads.options = [("no query", -1), *((f"layer {i} ({kind})", i) for i, kind in enumerate(kinds))]
        self.reads.index = 0
        self.edit = widgets.ToggleButton(
            description="Edit plan", icon="pencil", tooltip="Show the plan op by op", layout=_layout("110px")
        )
        self.freeze = widgets.ToggleButton(
            description="Freeze", icon="pause", tooltip="Hold the pictures still", layout=_layout("90px")
        )
        self.pin = widgets.ToggleButton(
            description="Pin as baseline",
            icon="thumb-tack",
            tooltip="Keep these figures to compare with",
            layout=_layout("140px"),
        )
        self.form = widgets.Dropdown(options=list(FORMS), layout=_layout("80px"), tooltip="Kind of file")
        self.export = widgets.Button(
            description="Export",
            icon="download",
            tooltip="Save pictures, page, table or trace",
            layout=_layout("90px"),
        )
        self.theme = widgets.Dropdown(
            options=list(BOARD_THEMES), description="theme", style=_WIDTH, layout=_layout("125px")
        )
        self.restart = widgets.Button(
            description="Restart the worker",
            icon="refresh",
            button_style="warning",
            layout=widgets.Layout(width="170px", display="none"),
        )

    def rows(self) -> list[widgets.Box]:
        """The controls in the rows that are laid out."""
        rows = (
            (self.decode, self.where, self.runtime, self.model, self.concurrency, self.isl),
            (
                *(self.plan, self.edit, self.side_streams, self.policy),
                *(self.priority, self.graphs, self.speculation),
            ),
            (
                widgets.Label("GPU_MAX_HW_QUEUES"),
                *(self.queues, self.apply_queues, self.progress, self.stage, self.note),
            ),
            (self.freeze, self.pin, self.form, self.export, self.theme, self.reads, self.restart),
        )
        wrap = {"flex_flow": "row wrap", "align_items": "center", "width": "100%"}
        boxes = [widgets.Box(row, layout=widgets.Layout(**wrap)) for row in rows]
        return [*boxes[:2], self.reasons, *boxes[2:]]

    def lock(self, locked: bool) -> None:
        """Switch off what must wait for the command that runs; what follows tells what is on again."""
        for control in (*self.settings.values(), self.decode, self.queues, self.where):
            control.disabled = locked
        if locked:
            self.apply_queues.disabled = True

    def show(self, offers: Mapping[str, Offer], *, usable: bool) -> None:
        """Make the settings say what is offered and what holds; switch them off unless ``usable``."""
        self.following = True  # new options make ipywidgets pick the first of them for a moment
        try:
            for name, offer in offers.items():
                self._offer(self.settings[name], offer)
                reason = offer.reason or _HELP[name]
                if self.settings[name].tooltip != reason:
                    self.settings[name].tooltip = reason
                self.settings[name].disabled = bool(offer.reason) or not usable
        finally:
            self.following = False
        self.decode.disabled = self.queues.disabled = not usable
        self.where.disabled = False
        reasons: dict[str, list[str]] = {}
        for name, offer in offers.items():
            if offer.reason:
                reasons.setdefault(offer.reason, []).append(name.replace("_", " "))
        said = " \N{MIDDLE DOT} ".join(
            f"<b>{html.escape(', '.join(names))}</b>: {html.escape(reason)}" for reason, names in reasons.items()
        )
        self.reasons.value = f"<span style='font-size:12px;opacity:.75'>{said}</span>" if said else ""

    def _offer(self, control: Any, offer: Offer) -> None:
        if isinstance(control, widgets.IntSlider):
            control.min, control.max = offer.options
        elif isinstance(control, widgets.Dropdown):
            options = offer.options if offer.value in _values(offer.options) else (*offer.options, offer.value)
            if tuple(control.options) != options:
                control.options = options
        control.value = offer.value

    def show_queues(self, running: int, *, at_once: bool) -> None:
        """Say whether the chosen number of queues is the running one, and what applying it does."""
        waits = self.queues.value != running
        self.apply_queues.layout.display = "none" if at_once else None
        self.apply_queues.disabled = not waits
        self.apply_queues.button_style = "warning" if waits else ""
        self.apply_queues.description = "Apply, restart" if waits else "In force"
        said = SIMULATED_NOTE if at_once else RESTART_NOTE
        self.note.value = f"<span style='font-size:12px;opacity:.75'>{said}</span>"

    def choose_queues(self, count: int) -> None:
        """Have ``count`` chosen, adding it to the choices if it is not among them."""
        self.following = True
        try:
            if count not in self.queues.options:
                self.queues.options = sorted({*self.queues.options, count})
            self.queues.value = count
        finally:
            self.following = False

    def show_decoding(self, on: bool) -> None:
        """Make the decode button say what it will do next."""
        self.decode.value = on
        self.decode.description = "Stop decoding" if on else "Start decoding"
        self.decode.icon = "stop" if on else "play"
        self.decode.button_style = "" if on else "success"

    def show_progress(self, fraction: float | None, stage: str = "") -> None:
        """Show how far a restart is; ``None`` takes the bar away."""
        display = "none" if fraction is None else None
        self.progress.value = fraction or 0.0
        self.stage.value = stage
        self.progress.layout.display = self.stage.layout.display = display
        self.note.layout.display = None if fraction is None else "none"


def _values(options: Iterable[Any]) -> list[Any]:
    return [option[1] if isinstance(option, tuple) else option for option in options]
