"""The Queue Lab: the queue model with sliders, and its packets moving step by step."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import ipywidgets as widgets

from dsv4lab.errors import UsageError
from dsv4lab.overlap.plan import OFF, PRESETS, OverlapPlan
from dsv4lab.predict.report import caveats
from dsv4lab.predict.scenes import SCENES, STEP, run_scene
from dsv4lab.predict.setting import GPUS, Setting, leans, runtimes_of
from dsv4lab.queues.simulate import Simulated
from dsv4lab.viz.axes import plural, time_text
from dsv4lab.viz.queue_occupancy import queue_occupancy_sheet
from dsv4lab.viz.queue_sweep import queue_sweep_sheet
from dsv4lab.viz.sensitivity import TITLE as LEANS_TITLE
from dsv4lab.viz.sensitivity import sensitivity_sheet
from dsv4lab.viz.sheet import Sheet, empty_sheet
from dsv4lab.viz.stream_busy import stream_busy_sheet
from dsv4lab.widgets.base import View
from dsv4lab.widgets.board import Board
from dsv4lab.widgets.packets import PacketPlayer
from dsv4lab.widgets.page import facts_block, live_block, page_bytes, sheet_blocks
from dsv4lab.widgets.pump import Pump
from dsv4lab.widgets.queue_controls import OWN_POLICY, QueueControls

DRAW_PERIOD_S = 0.03
SWEPT = (1, 2, 3, 4, 6, 8, 16)
QUEUES, BUSY, SWEEP, LEANS = "queues", "busy", "sweep", "leans"
_CELLS = ((QUEUES, False), (BUSY, False), (SWEEP, False), (LEANS, False))
EDGES = "+ordering-edges"


class QueueLab(View):
    """Sliders over a simulated decode step, or a small scene; see :func:`dsv4lab.widgets.queue_lab`.

    Options: those of :class:`Setting` (``device``, ``runtime``, ``plan``, ``hw_queues``, ...), ``plans`` (own plans
    beside the presets), ``scene`` (``step``, ``alias``, ``barrier``, ``edges``) and ``theme``.
    """

    OPTIONS = ("plans", "scene", "theme", *Setting.__slots__)
    _pump: Pump | None = None

    def __init__(self, *, _threaded: bool = True, **options: Any) -> None:
        super().__init__(**options)
        plans = [*PRESETS.values(), *options.pop("plans", ())]
        theme, self.scene = options.pop("theme", "auto"), options.pop("scene", STEP)
        self.setting = _setting(options, plans)
        self._plans = {plan.name: plan for plan in [*plans, self.setting.plan]}
        run_scene(self.scene, self.setting)  # what cannot be is an error now, not in the errors pane
        self.controls = QueueControls(list(self._plans))
        self.player = PacketPlayer(theme)
        self.board = Board(_CELLS, theme)
        self.board.show({SWEEP: queue_sweep_sheet((), {}, 0), LEANS: empty_sheet(LEANS_TITLE, "trying other values")})
        self.headline = widgets.HTML()
        self.about = widgets.HTML()
        self.run: Simulated | None = None
        self._done: tuple[Setting, str] | None = None
        self._swept: tuple[Setting, str] | None = None
        self._walls: dict[str, dict[int, int]] = {}
        self.children = (
            *self.controls.rows(), self.errors, self.about, self.headline, self.player, self.board,
        )  # fmt: skip
        self._pump = Pump(self.guarded(self._draw), DRAW_PERIOD_S)
        self._show()
        for name, control in self.controls.settings.items():
            control.observe(self._when(name), "value")
        self.controls.scene.observe(self._when_scene, "value")
        self.controls.theme.value = theme
        widgets.link((self.controls.theme, "value"), (self.board, "theme"))
        widgets.link((self.controls.theme, "value"), (self.player, "theme"))
        self.controls.export.on_click(lambda button: self._export())
        self._draw()
        if _threaded:
            self._pump.start()

    def close(self) -> None:
        """End the view."""
        if self._pump is not None:
            self._pump.close()
        super().close()

    def change(self, **changes: Any) -> None:
        """Change fields of the setting. Raises ``UsageError``, and keeps the old ones, for what cannot be."""
        before = self.setting
        device = changes.pop("device", None)
        setting = replace(before if device is None else before.on_device(device), **changes)
        if setting.graphs:
            setting = replace(setting, side_priority=0)
        try:
            _ = setting.machine, setting.scenario
            self.setting = setting
        finally:
            self._show()
            self._touch()

    def _touch(self) -> None:
        if self._pump is not None:
            self._pump.touch()

    def _when(self, name: str) -> Callable[[dict[str, Any]], None]:
        def observer(change: dict[str, Any]) -> None:
            if not self.controls.following:
                self.guarded(self._put)(name, change["new"])

        return observer

    def _put(self, name: str, value: Any) -> None:
        self.errors.clear()
        if name == "plan":
            value = self._plans[value]
        elif name == "side_streams":
            value = value or None
        elif name == "policy":
            value = None if value == OWN_POLICY else value
        elif name == "value":
            self._choose_value(value)
            return
        elif name == "factor":
            self._scale_value(value)
            return
        self.change(**{name: value})

    def _choose_value(self, name: str) -> None:
        self.change(values=())
        self.controls.follow(lambda c: setattr(c.factor, "value", 1.0))

    def _scale_value(self, factor: float) -> None:
        name = self.controls.value.value
        usual = replace(self.setting, values=()).machine[name]
        self.change(values=() if factor == 1.0 else ((name, usual * factor),))

    def _when_scene(self, change: dict[str, Any]) -> None:
        self.scene = change["new"]
        self._show()
        self._touch()

    def _show(self) -> None:
        """Make the controls say what holds."""
        s = self.setting
        assumed = [n for n, v in replace(s, values=()).machine.values.items() if v.status == "assumed" and v.value]
        self.controls.show(s, self.scene, runtimes_of(s.device), assumed)
        look_at = SCENES[self.scene].look_at if self.scene in SCENES else ""
        self.about.value = f"<span style='font-size:13px'>{html.escape(look_at)}</span>" if look_at else ""

    def _draw(self) -> None:
        run = run_scene(self.scene, self.setting)
        self.run = run
        self.player.show(run, self._title())
        timeline = run.timeline()
        sheets = {
            QUEUES: queue_occupancy_sheet(timeline.queue_occupancy()),
            BUSY: stream_busy_sheet(timeline.stream_busy()),
        }
        if self._swept == (_any_queues(self.setting), self.scene):
            sheets[SWEEP] = self._sweep_sheet()
        self.board.show(sheets)
        self._say(run, None)
        if self._pump is not None:
            self._pump.later(self.guarded(self._finish))

    def _title(self) -> str:
        s = self.setting
        what = (
            SCENES[self.scene].title
            if self.scene in SCENES
            else f"{s.model}, {s.layers or 'all'} layers, plan {s.plan.name}"
        )
        return f"{what} \N{MIDDLE DOT} {s.device}, {s.runtime}, {plural(s.hw_queues, 'queue')}"

    def _say(self, run: Simulated, base: Simulated | None) -> None:
        text = f"{time_text(run.wall_ns)} in all"
        if base is not None and base.wall_ns:
            change = 100 * (run.wall_ns / base.wall_ns - 1)
            text += f", {change:+.1f} % against off ({time_text(base.wall_ns)})"
        if run.times.taxed:
            text += f" \N{MIDDLE DOT} launches slowed by polling: {run.times.taxed}"
        notes = [*run.layout.notes, *caveats(run)]
        lines = html.escape("; ".join(notes))
        self.headline.value = f"<b>{html.escape(text)}</b> <span style='opacity:.75'>\N{MIDDLE DOT} {lines}</span>"

    def _finish(self) -> None:
        """What takes longer: ``off``, other queue counts, other runtimes, and what the answer leans on."""
        if self.run is None or (self.setting, self.scene) == self._done:
            return
        s, scene = self.setting, self.scene
        self._done = (s, scene)
        sheets: dict[str, Sheet] = {SWEEP: self._sweep(scene, s)}
        if scene == STEP and s.shown_plan.rules:
            base = s.baseline()
            self._say(self.run, base)
            sheets[LEANS] = sensitivity_sheet(*leans(s))
        else:
            sheets[LEANS] = empty_sheet(LEANS_TITLE, "choose the decode step and a plan with side streams")
        self.board.show(sheets)

    def _sweep(self, scene: str, s: Setting) -> Sheet:
        """Simulate the queue counts that are not known yet for what else is set."""
        if self._swept != (_any_queues(s), scene):
            self._swept, self._walls = (_any_queues(s), scene), {}
        lines = {s.plan.name if scene == STEP else SCENES[scene].name: s}
        if (twin := _edges_twin(s)) is not None:
            lines[f"with{'out' * s.runtime.endswith(EDGES)} ordering edges"] = twin
        if scene == STEP:
            lines["off"] = replace(s, plan=OFF, side_streams=None)
        for name, one in lines.items():
            known = self._walls.setdefault(name, {})
            known |= {
                q: run_scene(scene, replace(one, hw_queues=q)).wall_ns for q in {*SWEPT, s.hw_queues} - set(known)
            }
        return self._sweep_sheet()

    def _sweep_sheet(self) -> Sheet:
        counts = sorted(next(iter(self._walls.values())))
        walls = {name: [known[q] for q in counts] for name, known in self._walls.items()}
        return queue_sweep_sheet(counts, walls, self.setting.hw_queues)

    def _export(self) -> None:
        self.board.save_file("queue-lab.html", self.page(), "text/html")

    def page(self) -> bytes:
        """See :meth:`View.page`."""
        s = self.setting
        facts = {
            name: getattr(s, name) for name in ("device", "runtime", "hw_queues", "model", "tp", "isl", "concurrency")
        }
        facts |= {"plan": s.plan.name, "scene": self.scene, "simulated": "not measured"}
        blocks = [facts_block(facts), live_block(self.player, ["packets.css"]), *sheet_blocks(self.board.sheets)]
        return page_bytes("Queue Lab", blocks)


def _any_queues(s: Setting) -> Setting:
    """What two settings that differ in the queue count alone have in common."""
    return replace(s, hw_queues=1)


def _edges_twin(s: Setting) -> Setting | None:
    """The same on the runtime that differs in ordering edges alone, if there is one."""
    name = s.runtime.removesuffix(EDGES) if s.runtime.endswith(EDGES) else s.runtime + EDGES
    return replace(s, runtime=name) if name in runtimes_of(s.device) else None


def _setting(options: dict[str, Any], plans: Iterable[Any]) -> Setting:
    """The setting of the options. Raises ``UsageError`` for what is no plan or cannot be."""
    for plan in plans:
        if not isinstance(plan, OverlapPlan):
            raise UsageError(f"plans takes OverlapPlan objects, got {type(plan).__name__}")
    known = {plan.name: plan for plan in plans}
    wanted = options.get("plan", PRESETS["hip"])
    if isinstance(wanted, str):
        if wanted not in known:
            raise UsageError(f"plan {wanted!r} is unknown; it takes one of {', '.join(known)}, or an OverlapPlan")
        wanted = known[wanted]
    values = {"layers": 4, **options, "plan": wanted}
    device = values.pop("device", GPUS[0])
    setting = replace(Setting().on_device(device), **values)
    _ = setting.machine, setting.scenario
    return setting
