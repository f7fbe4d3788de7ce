"""The controls of the Overlap Lab: made here, wired in :mod:`dsv4lab.widgets.overlap_lab`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import ipywidgets as widgets

from dsv4lab.widgets.board import BOARD_THEMES

QUEUE_CHOICES = (1, 2, 4, 8, 16)
PROMPT_CHOICES = (16, 64, 256, 1024, 4096, 16384)
RESTART_NOTE = (
    "<span style='font-size:12px;opacity:.75'>read once, when a process starts: "
    "applying it <b>restarts the worker</b>; requests in flight go on</span>"
)
_WIDTH = {"description_width": "initial"}


def _layout(width: str) -> widgets.Layout:
    return widgets.Layout(width=width, margin="2px 12px 2px 0")


class Controls:
    """All inputs of the lab and the rows that they stand in."""

    def __init__(self, plans: Sequence[str], policies: Sequence[str], kinds: Sequence[str], limits: Any) -> None:
        """``kinds`` are the layer kinds by layer, for the query picker; ``limits`` those of the client."""
        self.following = False
        self.plan = widgets.Dropdown(options=list(plans), description="plan", style=_WIDTH, layout=_layout("170px"))
        self.side_streams = widgets.Dropdown(
            options=[("as the plan says", 0), ("1", 1), ("2", 2), ("3", 3)],
            description="side streams",
            style=_WIDTH,
            layout=_layout("220px"),
        )
        self.policy = widgets.Dropdown(
            options=list(policies), description="queue policy", style=_WIDTH, layout=_layout("220px")
        )
        self.concurrency = widgets.IntSlider(
            min=1,
            max=limits.max_requests,
            description="concurrency level",
            continuous_update=False,
            style=_WIDTH,
            layout=_layout("330px"),
        )
        self.prompt_tokens = widgets.Dropdown(
            options=prompt_choices(limits), description="prompt tokens", style=_WIDTH, layout=_layout("190px")
        )
        self.decode = widgets.ToggleButton(
            description="Start decoding", icon="play", button_style="success", layout=_layout("150px")
        )
        self.queues = widgets.ToggleButtons(
            options=list(QUEUE_CHOICES),
            style={"button_width": "44px"},
            layout=widgets.Layout(width="auto", margin="2px 8px 2px 0"),
        )
        self.apply_queues = widgets.Button(description="Apply", icon="refresh", disabled=True, layout=_layout("130px"))
        self.note = widgets.HTML(RESTART_NOTE)
        self.progress = widgets.FloatProgress(min=0.0, max=1.0, layout=widgets.Layout(width="180px", display="none"))
        self.stage = widgets.Label(layout=widgets.Layout(display="none"))
        self.reads = widgets.Dropdown(
            options=[("no query", -1), *((f"layer {i} ({kind})", i) for i, kind in enumerate(kinds))],
            description="rows read in",
            style=_WIDTH,
            layout=_layout("210px"),
        )
        self.freeze = widgets.ToggleButton(description="Freeze", icon="pause", layout=_layout("100px"))
        self.pin = widgets.ToggleButton(
            description="Pin as baseline",
            icon="thumb-tack",
            tooltip="Keep this busy table to compare with",
            layout=_layout("150px"),
        )
        self.theme = widgets.Dropdown(
            options=list(BOARD_THEMES), description="theme", style=_WIDTH, layout=_layout("130px")
        )
        self.restart = widgets.Button(
            description="Restart the worker",
            icon="refresh",
            button_style="warning",
            layout=widgets.Layout(width="180px", display="none"),
        )

    def rows(self) -> list[widgets.Box]:
        """The controls in the rows that are laid out."""
        wrap = widgets.Layout(flex_flow="row wrap", align_items="center", width="100%")
        return [
            widgets.Box([self.decode, self.concurrency, self.prompt_tokens, self.plan, self.side_streams], layout=wrap),
            widgets.Box(
                [
                    widgets.Label("GPU_MAX_HW_QUEUES"),
                    self.queues,
                    self.apply_queues,
                    self.progress,
                    self.stage,
                    self.note,
                ],
                layout=wrap,
            ),
            widgets.Box([self.policy, self.reads, self.freeze, self.pin, self.theme, self.restart], layout=wrap),
        ]

    def lock(self, locked: bool) -> None:
        """Switch off what must wait for the command that runs."""
        for control in (self.plan, self.side_streams, self.policy, self.concurrency, self.prompt_tokens, self.decode):
            control.disabled = locked
        self.queues.disabled = locked
        if locked:
            self.apply_queues.disabled = True

    def show_decoding(self, on: bool) -> None:
        """Make the decode button say what it will do next."""
        self.decode.value = on
        self.decode.description = "Stop decoding" if on else "Start decoding"
        self.decode.icon = "stop" if on else "play"
        self.decode.button_style = "" if on else "success"

    def show_queues(self, running: int) -> None:
        """Say whether the chosen number of queues is the running one."""
        self.apply_queues.disabled = self.queues.value == running
        self.apply_queues.button_style = "" if self.apply_queues.disabled else "warning"
        self.apply_queues.description = "In force" if self.apply_queues.disabled else "Apply, restart"

    def show_progress(self, fraction: float | None, stage: str = "") -> None:
        """Show how far a restart is; ``None`` takes the bar away."""
        display = "none" if fraction is None else None
        self.progress.value = fraction or 0.0
        self.stage.value = stage
        self.progress.layout.display = self.stage.layout.display = display
        self.note.layout.display = None if fraction is None else "none"

    def offer(self, control: Any, value: object) -> None:
        """Set ``control`` to ``value``, adding it to the options if it is not among them."""
        self.following = True  # new options make ipywidgets pick the first of them for a moment
        try:
            if value not in _values(control.options):
                control.options = [*control.options, value]
            control.value = value
        finally:
            self.following = False


def _values(options: Iterable[Any]) -> list[Any]:
    return [option[1] if isinstance(option, tuple) else option for option in options]


def prompt_choices(limits: Any) -> list[int]:
    """Prompt lengths that leave room for at least as many new tokens; the smallest always."""
    room = min(limits.max_position, limits.pool_tokens) // 2
    return [n for n in PROMPT_CHOICES if n <= room] or [PROMPT_CHOICES[0]]
