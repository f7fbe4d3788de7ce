from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dsv4lab.config.presets import preset
from dsv4lab.errors import PlanError
from dsv4lab.overlap.plan import PRESETS, OverlapPlan, Rule
from dsv4lab.predict.roofline import Scenario
from dsv4lab.widgets.page import live_block
from dsv4lab.widgets.plan_editor import PlanEditor
from dsv4lab.widgets.plan_rows import ListedSource, layer_rows, representative

PRO = replace(preset("pro"), compress_ratios=(128, 4, 128, 4))
SOURCE = ListedSource(Scenario(PRO, 8, 8192, 2))
HOSTILE = "<img src=x onerror=alert(1)></script><b>"


class Desk:
    """An editor whose plans go into a list."""

    def __init__(self) -> None:
        self.applied: list[OverlapPlan] = []
        self.refuse: PlanError | None = None
        self.editor = PlanEditor(self.apply, lambda act: act())
        self.editor.follow(SOURCE, PRESETS["hip"])

    def apply(self, plan: OverlapPlan) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.applied.append(plan)

    def says(self, kind: str, **rest: Any) -> None:
        self.editor._handle_custom_msg({"kind": kind, **rest}, [])

    @property
    def state(self) -> dict[str, Any]:
        return dict(self.editor.state)

    def row(self, name: str) -> dict[str, Any]:
        return next(row for row in self.state["rows"] if row["name"] == name)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_it_shows_the_waits_of_the_plan_in_force(desk: Desk) -> None:
    assert (desk.state["plan"], desk.state["kind"], desk.state["lanes"]) == (
        "hip",
        "csa",
        ["main", "side0", "side1", "side2"],
    )
    assert desk.row("compressor.gemm")["waits"] == [["attn_norm", 1]]
    producers = {producer for producer, _ in desk.row("attention")["waits"]}
    assert producers == {"compressor.store"}
    assert desk.row("compressor.store")["beside"] > 3
    assert desk.state["difference"] == []


def test_fused_ops_are_rows_of_parts_and_split_when_separated(desk: Desk) -> None:
    assert (desk.row("q_norm_rope")["joined"], desk.row("q_norm_rope")["fused"]) == (True, "qk_norm_rope_store")
    desk.says("move", op="kv_norm_rope_store", stream="side2")
    assert not desk.row("q_norm_rope")["joined"]
    assert desk.row("kv_norm_rope_store")["stream"] == "side2"


def test_a_move_applies_at_once_and_undo_takes_it_back(desk: Desk) -> None:
    desk.says("move", op="indexer.weights", stream="side1")
    assert [p.name for p in desk.applied] == ["hip.1"]
    assert desk.state["difference"] == ["indexer.weights: main to side1 (csa)"]
    assert "lab.Rule('indexer.weights', 'side1'" in desk.state["python"]
    desk.says("undo")
    assert desk.applied[-1] == PRESETS["hip"]
    assert desk.state["undo"] == 0


def test_moves_wait_for_apply_when_asked_to(desk: Desk) -> None:
    desk.says("set", name="at_once", value=False)
    desk.says("move", op="moe.shared", stream="side0")
    assert desk.applied == []
    assert desk.state["waits"]
    desk.editor.follow(SOURCE, PRESETS["hip"])  # something else changed meanwhile
    assert desk.state["plan"] == "hip.1"
    desk.says("apply")
    assert [p.name for p in desk.applied] == ["hip.1"]
    assert not desk.state["waits"]


def test_a_plan_from_elsewhere_replaces_what_is_shown(desk: Desk) -> None:
    desk.says("set", name="at_once", value=False)
    desk.says("move", op="moe.shared", stream="side0")
    desk.editor.follow(SOURCE, PRESETS["off"])
    assert (desk.state["plan"], desk.state["reference"], desk.state["waits"]) == ("off", "off", False)


def test_moves_that_make_a_preset_are_called_like_it(desk: Desk) -> None:
    desk.editor.follow(SOURCE, PRESETS["off"])
    desk.says("move", op="moe.shared", stream="side0")
    assert desk.applied == [PRESETS["moe"]]


def test_a_refused_plan_is_an_error_and_goes_back(desk: Desk) -> None:
    desk.refuse = PlanError(f"no op matches {HOSTILE}")
    desk.says("move", op="q_b", stream="side0")
    assert desk.state["error"] == f"no op matches {HOSTILE}"  # shown through textContent
    assert desk.state["plan"] == "hip"


def test_only_this_layer_kind_moves_when_asked_to(desk: Desk) -> None:
    desk.says("set", name="layer_kind", value="hca")
    desk.says("set", name="everywhere", value=False)
    desk.says("move", op="q_b", stream="side0")
    assert desk.applied[-1].rules[0] == Rule("q_b", "side0", "hca")


def test_folding_and_shared_queues_are_told(desk: Desk) -> None:
    desk.editor.follow(SOURCE, PRESETS["hip"], side_streams=1, queue_of=lambda streams: dict.fromkeys(streams, 0))
    assert desk.state["lanes"] == ["main", "side0"]
    assert desk.row("indexer.compressor.gemm")["stream"] == "side0"
    assert "main and side0 share queue 0: they run one after the other" in desk.state["notes"]
    assert "folded onto 1 side stream" in desk.state["notes"]


@pytest.mark.parametrize(
    "message", [{}, {"kind": "format"}, {"kind": "move"}, {"kind": "set", "name": "plan", "value": 3}]
)
def test_nonsense_from_the_page_changes_nothing(desk: Desk, message: dict[str, Any]) -> None:
    desk.editor._handle_custom_msg(message, [])
    assert desk.editor.plan == PRESETS["hip"]
    assert desk.applied == []


@pytest.mark.parametrize("plan", PRESETS.values(), ids=PRESETS)
@pytest.mark.parametrize("kind", ["csa", "hca"])
def test_rows_tell_what_the_program_does(plan: OverlapPlan, kind: str) -> None:
    program = SOURCE.program(plan)
    layer = representative(SOURCE.table, kind)
    rows = layer_rows(program, SOURCE.table, layer)
    own = [op for op in program.ops if op.layer == layer]
    assert {row.stream for row in rows} == {op.stream for op in own}
    assert sum(len(row.waits) for row in rows) == sum(len(op.waits) for op in own)
    assert all(need < i for i, row in enumerate(rows) for need in row.needs)


def test_a_page_of_it_cannot_be_left_by_a_name(desk: Desk) -> None:
    desk.editor.follow(SOURCE, OverlapPlan(HOSTILE, PRESETS["hip"].rules))
    markup = live_block(desk.editor, ["plan_editor.css"]).markup
    assert markup.count("</script>") == 1
    assert "<img" not in markup
