"""The plan editor: a layer's ops in issue order as chips on stream lanes, moved by drag or by key."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import anywidget
import traitlets

from dsv4lab.errors import LabError, PlanError
from dsv4lab.overlap.edit import Vocabulary, as_python, difference, moved
from dsv4lab.overlap.plan import PRESETS, OverlapPlan
from dsv4lab.timeline.program import MAIN
from dsv4lab.viz import theme as themes
from dsv4lab.widgets import front
from dsv4lab.widgets.plan_rows import (
    KIND_NAMES,
    PlanSource,
    Row,
    layer_rows,
    remarks,
    representative,
    shared_queues,
    vocabulary,
)

LEAST_LANES, MOST_LANES = 4, 8
_NUMBER = re.compile(r"\.\d+$")
Submit = Callable[[Callable[[], None]], None]


class PlanEditor(anywidget.AnyWidget):
    """Shows a plan on one layer kind and edits it; :meth:`follow` says what plan is in force, and on what.

    ``apply(plan)`` is called with every change while the editor applies at once, else when the user says so. It may
    raise ``LabError``, which is shown; the change is taken back then. ``submit`` runs what a message from the page asks
    for, on a thread of the caller's choice.
    """

    _esm = front.module("plan_editor.js")
    _css = front.style("plan_editor.css")
    state: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    palettes: traitlets.Dict[str, Any] = traitlets.Dict(front.palettes()).tag(sync=True)
    theme = traitlets.Unicode("auto").tag(sync=True)

    def __init__(self, apply: Callable[[OverlapPlan], None], submit: Submit, theme: str = "auto") -> None:
        self._apply = apply
        self._submit = submit
        self._source: PlanSource | None = None
        self._words = Vocabulary(())
        self._in_force = self._plan = OverlapPlan("off")
        self._undo: list[OverlapPlan] = []
        self._kind = ""
        self._everywhere = True
        self._reference = "off"
        self._at_once = True
        self._side_streams: int | None = None
        self._queue_of: Callable[[Sequence[str]], Mapping[str, int]] | None = None
        self._edits = 0
        self._error = ""
        super().__init__(theme=theme)
        self.on_msg(self._hear)

    @property
    def plan(self) -> OverlapPlan:
        """The plan that is shown: the one in force, unless edits wait to be applied."""
        return self._plan

    def follow(
        self,
        source: PlanSource,
        plan: OverlapPlan,
        *,
        side_streams: int | None = None,
        queue_of: Callable[[Sequence[str]], Mapping[str, int]] | None = None,
    ) -> None:
        """Show ``plan``, which is in force, folded onto ``side_streams``. Edits that wait are dropped if it is new.

        ``queue_of`` tells which hardware queue each of the streams gets.
        """
        if source is not self._source:
            self._source, self._words = source, vocabulary(source)
            if self._kind not in self._words.kinds:
                self._kind = "csa" if "csa" in self._words.kinds else self._words.kinds[0]
        if plan != self._in_force or not self._plan_waits:
            self._plan = plan
        if self._in_force != plan and plan.name in PRESETS:
            self._reference, self._undo = plan.name, []
        self._in_force, self._side_streams, self._queue_of = plan, side_streams, queue_of
        self._show()

    @property
    def _plan_waits(self) -> bool:
        return self._plan != self._in_force and not self._at_once

    def move(self, op: str, stream: str) -> None:
        """Put ``op`` on ``stream``, in the layer kind shown or in all, as chosen."""
        kind = "any" if self._everywhere else self._kind
        plan = moved(self._shown(self._plan), self._words, op, stream, kind)
        self._change(self._named(plan))

    def _shown(self, plan: OverlapPlan) -> OverlapPlan:
        """``plan`` as it runs: folded. It keeps its name."""
        return plan if self._side_streams is None else replace(plan.fold(self._side_streams), name=plan.name)

    def _named(self, plan: OverlapPlan) -> OverlapPlan:
        """``plan`` by the name of the preset that does the same, or by a name that no other edit has."""
        placed = self._words.placed(plan)
        for preset in PRESETS.values():
            alike = (preset.side_streams, preset.high) == (plan.side_streams, plan.high)
            if alike and self._words.placed(preset) == placed:
                return preset
        self._edits += 1
        return replace(plan, name=f"{_NUMBER.sub('', self._plan.name)}.{self._edits}")

    def _change(self, plan: OverlapPlan) -> None:
        before = self._plan
        if plan == before:
            self._show()
            return
        self._plan, self._error = plan, ""
        self._undo.append(before)
        if self._at_once:
            self._put_in_force()
        self._show()

    def _put_in_force(self) -> None:
        plan = self._plan
        try:
            self._apply(plan)
            self._in_force = plan
        except LabError as error:
            self._error = str(error)
            self._plan = self._undo.pop() if self._undo else self._in_force

    def _hear(self, _widget: object, message: Mapping[str, Any], _buffers: object) -> None:
        if isinstance(message, dict) and message.get("kind") in self._ACTS:
            self._submit(lambda: self._act(message))

    def _act(self, message: Mapping[str, Any]) -> None:
        try:
            self._ACTS[message["kind"]](self, message)
        except PlanError as error:
            self._error = str(error)
        self._show()

    def _hear_move(self, message: Mapping[str, Any]) -> None:
        self.move(str(message.get("op")), str(message.get("stream")))

    def _hear_set(self, message: Mapping[str, Any]) -> None:
        name, value = message.get("name"), message.get("value")
        if name == "layer_kind" and value in self._words.kinds:
            self._kind = str(value)
        elif name == "reference" and value in PRESETS:
            self._reference = str(value)
        elif name == "everywhere":
            self._everywhere = bool(value)
        elif name == "at_once":
            self._at_once = bool(value)
            if self._at_once and self._plan != self._in_force:
                self._put_in_force()

    def _hear_undo(self, _message: Mapping[str, Any]) -> None:
        if self._undo:
            self._plan, self._error = self._undo.pop(), ""
            if self._at_once:
                self._put_in_force()

    def _hear_apply(self, _message: Mapping[str, Any]) -> None:
        self._put_in_force()

    def _hear_reference(self, _message: Mapping[str, Any]) -> None:
        self._change(PRESETS[self._reference])

    _ACTS: Mapping[str, Callable[[PlanEditor, Mapping[str, Any]], None]] = {
        "move": _hear_move,
        "set": _hear_set,
        "undo": _hear_undo,
        "apply": _hear_apply,
        "reference": _hear_reference,
    }

    def _show(self) -> None:
        if self._source is None:
            return
        plan = self._shown(self._plan)
        try:
            program = self._source.program(plan)
        except LabError as error:
            self.state = {**self.state, "error": str(error)}
            return
        layer = representative(self._source.table, self._kind)
        rows = layer_rows(program, self._source.table, layer)
        notes = remarks(program, rows, layer)
        if self._queue_of is not None:
            notes += shared_queues(self._queue_of(program.streams))
        if self._side_streams is not None and plan.rules != self._plan.rules:
            notes.append(f"folded onto {self._side_streams} side stream{'s' * (self._side_streams != 1)}")
        reference = PRESETS[self._reference]
        base = self._words.placed(reference)
        self.state = {
            "plan": self._plan.name,
            "waits": self._plan_waits,
            "kinds": [[kind, KIND_NAMES.get(kind, kind)] for kind in self._words.kinds],
            "kind": self._kind,
            "layer": layer,
            "lanes": self._lanes(program.streams),
            "colors": {stream: themes.stream_color(stream, n) for n, stream in enumerate(self._lanes(program.streams))},
            "rows": [_row_state(row, base.get((self._kind, row.name), MAIN)) for row in rows],
            "references": list(PRESETS),
            "reference": self._reference,
            "difference": difference(plan, reference, self._words),
            "notes": notes,
            "everywhere": self._everywhere,
            "at_once": self._at_once,
            "undo": len(self._undo),
            "python": as_python(self._plan),
            "error": self._error,
        }

    def _lanes(self, streams: Sequence[str]) -> list[str]:
        used = max((1 + int(s.removeprefix("side")) for s in streams if s != MAIN), default=0)
        if self._side_streams is None:
            sides = min(max(LEAST_LANES - 1, used + 1), MOST_LANES - 1)
        else:
            sides = self._side_streams
        return [MAIN, *(f"side{n}" for n in range(max(sides, used)))]

    def __repr__(self) -> str:
        return f"<PlanEditor of {self._plan.name}>"


def _row_state(row: Row, base: str) -> dict[str, Any]:
    return {
        "name": row.name,
        "fused": row.fused,
        "joined": row.joined,
        "stream": row.stream,
        "base": base,
        "waits": [[wait.producer, wait.row] for wait in row.waits],
        "needs": list(row.needs),
        "beside": row.beside,
    }
