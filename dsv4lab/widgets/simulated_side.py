"""The Overlap Lab on a simulated GPU: the same controls and pictures, by the queue model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dsv4lab.config.presets import PRESETS as MODELS
from dsv4lab.errors import UsageError
from dsv4lab.overlap.plan import PRESETS, OverlapPlan
from dsv4lab.predict.report import caveats
from dsv4lab.predict.roofline import SPECULATIVE
from dsv4lab.predict.setting import Setting, leans, predict, runtimes_of
from dsv4lab.queues.policies import ALL_POLICIES, HIGH
from dsv4lab.queues.simulate import Simulated
from dsv4lab.timeline.timeline import Timeline
from dsv4lab.viz.axes import plural, time_text
from dsv4lab.viz.predicted import Predicted
from dsv4lab.widgets.controls import Offer
from dsv4lab.widgets.pictures import Pictures
from dsv4lab.widgets.plan_editor import PlanEditor
from dsv4lab.widgets.plan_rows import ListedSource

LAYERS = 8
MOST_REQUESTS = 64
ISL_CHOICES = (1024, 4096, 8192, 16384, 65536, 131072)
SHOWN_MODELS = ("pro", "flash", "demo", "tiny")
ONE_POOL = "a captured graph's internal streams are all of normal priority; switch graphs off to ask for more"
OWN_POLICY = "its own"
_AS_OFFERED = {"concurrency", "isl", "speculation", "model", "runtime", "graphs"}
_FIELDS = {"speculation": "speculative", "priority": "side_priority"}


class SimulatedSide:
    """A :class:`Setting` that the controls change.

    The pictures show the first layers at once; the whole model follows when the controls rest.
    """

    live = False
    usable = True

    def __init__(self, plans: Mapping[str, OverlapPlan], pictures: Pictures) -> None:
        self.setting = Setting(layers=LAYERS)
        self._plans = {**PRESETS, **plans}
        self._pictures = pictures
        self._sources: dict[Any, ListedSource] = {}
        self._run: Simulated | None = None
        self._points: list[Predicted] = []
        self._predicted: Setting | None = None

    @property
    def hw_queues(self) -> int:
        """Hardware queues in force."""
        return self.setting.hw_queues

    @property
    def label(self) -> str:
        """The settings in force, in a few words."""
        return f"{self.setting.plan.name} \N{MIDDLE DOT} {plural(self.setting.hw_queues, 'queue')}"

    def on_device(self, name: str) -> None:
        """Simulate another device."""
        self.setting = self.setting.on_device(name)

    def offers(self) -> dict[str, Offer]:
        """What the controls offer; see :class:`dsv4lab.widgets.controls.Controls`."""
        s = self.setting
        self._plans.setdefault(s.plan.name, s.plan)
        sides = (("as the plan says", 0), ("1", 1), ("2", 2), ("3", 3))
        priorities = (("as main", 0), ("high", HIGH))
        hip = s.machine.runtime.family == "hip"
        reason = ONE_POOL if s.graphs else "" if hip else "the CUDA model gives every priority the same connections"
        policies = (OWN_POLICY, *ALL_POLICIES)
        return {
            "runtime": Offer(tuple(runtimes_of(s.device)), s.runtime),
            "model": Offer(tuple(n for n in SHOWN_MODELS if n in MODELS), s.model),
            "speculation": Offer(SPECULATIVE, s.speculative),
            "plan": Offer(tuple(self._plans), s.plan.name),
            "side_streams": Offer(sides, s.side_streams or 0),
            "policy": Offer(policies, s.policy or OWN_POLICY),
            "priority": Offer(priorities, s.side_priority, reason),
            "isl": Offer(ISL_CHOICES, s.isl),
            "concurrency": Offer((1, MOST_REQUESTS), s.concurrency),
            "graphs": Offer((), s.graphs),
        }

    def value(self, name: str) -> Any:
        """What of setting ``name`` is in force."""
        return self.offers()[name].value

    def put(self, name: str, value: Any) -> None:
        """Put a setting into force. Raises ``UsageError``, and keeps the old one, for what cannot be."""
        if name == "plan":
            changes: dict[str, Any] = {"plan": self._plans[value]}
        elif name == "side_streams":
            changes = {"side_streams": value or None}
        elif name == "policy":
            changes = {"policy": None if value == OWN_POLICY else value}
        else:
            changes = {_FIELDS.get(name, name): value}
        if name == "model":
            changes["tp"] = _ranks(value)
        if changes.get("graphs"):
            changes["side_priority"] = 0
        self._try(replace(self.setting, **changes))

    def set_plan(self, plan: OverlapPlan) -> None:
        """Simulate ``plan``."""
        self._plans[plan.name] = plan
        self._try(replace(self.setting, plan=plan))

    def set_queues(self, count: int, _progress: Callable[[float, str], None]) -> None:
        """Simulate so many queues."""
        self._try(replace(self.setting, hw_queues=count))

    def _try(self, setting: Setting) -> None:
        self._run = setting.run()
        self.setting = setting

    def show_plan(self, editor: PlanEditor) -> None:
        """Have the editor show the plan in force."""
        s = self.setting
        key = (s.model, s.tp, s.isl, s.concurrency, s.speculative)
        if key not in self._sources:
            self._sources = {key: ListedSource(s.scenario)}
        editor.follow(self._sources[key], s.plan, side_streams=s.side_streams)

    def draw(self, _reads_layer: int) -> str:
        """Draw the first layers and return a line about them."""
        if self._run is None:
            self._run = self.setting.run()
        self._pictures.show_simulated(self._run.timeline(), self._points, self.label)
        layers = min(LAYERS, len(MODELS[self.setting.model].compress_ratios))
        on = f"simulated {self.setting.device}, {self.setting.runtime}"
        notes = [*self._run.layout.notes, *caveats(self._run)]
        step = f"{layers} layers take {time_text(self._run.wall_ns)}"
        line = f"{on} \N{MIDDLE DOT} {self.label} \N{MIDDLE DOT} {step} \N{MIDDLE DOT} "
        return f"{line}{'; '.join(notes)}{self._pictures.against_pin()}"

    def finish(self) -> None:
        """Simulate the whole model, and what the answer leans on."""
        setting = self.setting
        if setting == self._predicted:
            return
        found = predict(setting)
        about = f"{setting.device}, {setting.runtime}, {setting.model}, TP {setting.tp}, ISL {setting.isl}, "
        about += f"concurrency level {setting.concurrency}"
        self._points.append(
            Predicted(
                f"{setting.plan.name} \N{MIDDLE DOT} {setting.hw_queues}q \N{MIDDLE DOT} c{setting.concurrency}",
                about,
                found.tpot_ms,
                found.off_tpot_ms,
            )
        )
        del self._points[:-MOST_POINTS]
        self._predicted = setting
        self._pictures.show_predicted(self._points)
        if setting.shown_plan.rules:
            self._pictures.show_leans(*leans(setting))
        else:
            self._pictures.show_leans([], 0.0)

    def timeline(self) -> Timeline | None:
        """The simulated timeline, for export."""
        return None if self._run is None else self._run.timeline()

    def facts(self) -> dict[str, object]:
        """The settings in force, for an exported page."""
        s = self.setting
        return {
            "simulated": "not measured",
            "device": s.device,
            "runtime": s.runtime,
            "model": f"{s.model}, TP {s.tp}, {s.speculative} speculation",
            "plan": s.plan.name,
            "hardware queues": s.hw_queues,
            "load": f"{s.concurrency} requests of {s.isl} tokens",
            "launched": "as one captured graph" if s.graphs else "op by op",
        }


MOST_POINTS = 12


def _ranks(model: str) -> int:
    """Tensor-parallel ranks that a model of that size is served on."""
    if model not in MODELS:
        raise UsageError(f"model {model!r} is unknown")
    return {"pro": 8, "flash": 4}.get(model, 1)
