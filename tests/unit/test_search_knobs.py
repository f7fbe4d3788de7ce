"""Knobs, settings and blocks: what a search session is made of."""

from __future__ import annotations

import json
import math

import pytest

from dsv4lab.errors import UsageError
from dsv4lab.load.trial import Outcome
from dsv4lab.tuning import block as words
from dsv4lab.tuning.arm_target import Outputs
from dsv4lab.tuning.block import Block, Measured
from dsv4lab.tuning.knobs import LIVE, LOAD, PROCESS, Knob, KnobSpace, Setting, value_text

SPACE = KnobSpace(
    (
        Knob("plan", ("off", "hip"), LIVE),
        Knob("hw_queues", (1, 4), PROCESS),
        Knob("env:FAST", (None, "1"), PROCESS),
        Knob("concurrency", (1, 8), LOAD),
    ),
    Setting.from_json({"env:FAST": None, "plan": "off", "hw_queues": 4}),
)


def test_a_space_is_the_product_of_its_knobs() -> None:
    grid = list(SPACE.grid())
    assert len(grid) == len(set(grid)) == SPACE.size == 16
    assert [s.get("concurrency") for s in grid[:2]] == [1, 8]
    assert len(SPACE.candidates()) == 8
    assert [s.label for s in SPACE.strata()] == ["concurrency 1", "concurrency 8"]
    assert SPACE.baseline.names == ("plan", "hw_queues", "env:FAST")  # in the space's order
    point = SPACE.setting({"concurrency": 8, "plan": "hip", "env:FAST": "1", "hw_queues": 1})
    assert point.label == "hip, 1 queue, FAST=1, concurrency 8"
    assert SPACE.baseline_for(point).label == "off, 4 queues, FAST unset, concurrency 8"
    assert SPACE.process_of(point) == Setting.from_json({"hw_queues": 1, "env:FAST": "1"})
    assert SPACE.join(SPACE.tuned_of(point), SPACE.load_of(point)) == point
    assert KnobSpace((), Setting()).strata() == (Setting(),)
    fixed = KnobSpace(
        (Knob("plan", ("off", "hip"), LIVE), Knob("hw_queues", (4,), PROCESS)), Setting.of(plan="off", hw_queues=4)
    )
    assert [fixed.short(s) for s in fixed.grid()] == ["off", "hip"]
    assert fixed.short(Setting.of(hw_queues=4)) == "4 queues"


def test_settings_and_spaces_survive_json() -> None:
    for point in SPACE.grid():
        assert Setting.from_json(json.loads(json.dumps(point.to_json()))) == point
    assert KnobSpace.from_json(json.loads(json.dumps(SPACE.to_json()))) == SPACE


@pytest.mark.parametrize(
    ("name", "values", "scope", "said"),
    [
        ("plan", (), LIVE, "plan: got no value"),
        ("plan", ("off", "off"), LIVE, "off more than once"),
        ("hw_queues", (1, True), PROCESS, "1 more than once"),
        ("rate", (math.inf,), LOAD, "finite numbers"),
        ("plan", ("off",), "sometimes", "scope is 'sometimes'"),
        ("concurrency", (1,), LIVE, "load knobs"),
        ("plan", ("off",), LOAD, "load knobs"),
        ("env:A B", ("1",), PROCESS, "environment variable"),
        ("flag:x", ("1",), PROCESS, "an option such as --name"),
        ("a b", ("1",), LIVE, "no identifier"),
    ],
)
def test_knobs_are_checked(name: str, values: tuple[object, ...], scope: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Knob(name, values, scope)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"plan": "cuda", "hw_queues": 4, "env:FAST": None}, "plan: got cuda, it takes off or hip"),
        ({"plan": "hip", "hw_queues": 4}, "knob env:FAST is not set"),
        ({"plan": "hip", "hw_queues": 4, "env:FAST": None, "concurrency": 1}, "concurrency is not among"),
    ],
)
def test_a_baseline_is_a_point_of_the_space(values: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        KnobSpace(SPACE.knobs, Setting.from_json(values))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="given more than once"):
        KnobSpace((*SPACE.knobs, SPACE.knobs[0]), SPACE.baseline)


def test_values_are_told_in_words() -> None:
    assert value_text("side_streams", None) == "side streams as planned"
    assert value_text("side_streams", 1) == "1 side stream"
    assert value_text("flag:--tp", 8) == "--tp 8"
    assert value_text("flag:--graphs", True) == "--graphs"
    assert value_text("flag:--graphs", None) == "no --graphs"
    assert value_text("rate", None) == "no rate"
    assert Setting().label == "as it is"
    with pytest.raises(UsageError, match="knob tp"):
        Setting.of(plan="hip").replace("tp", 8)


def test_blocks_survive_json_and_keep_what_was_measured() -> None:
    measured = Measured(process=3, tpot_ms=(2.0, 1.0, 9.0), ttft_ms=(5.0,), tokens_per_s=70.5, wall_s=0.4, tokens="ab")
    block = Block.of(measured, setting=SPACE.baseline, trial=2, phase=words.EXPLORE, pair=1, position=0, seed=9)
    assert block.tpot == 2.0
    assert Block.from_json(json.loads(json.dumps(block.to_json()))) == block
    failed = Block.of(
        Measured(outcome=words.CRASHED, why="signal 9"),
        setting=SPACE.baseline,
        trial=0,
        phase="explore",
        pair=0,
        position=1,
    )
    text = json.dumps(failed.to_json(), allow_nan=False)
    again = Block.from_json(json.loads(text))
    assert (again.ok, again.why, math.isnan(again.tpot), math.isnan(again.wall_s)) == (False, "signal 9", True, True)


def test_outcomes_are_the_words_of_a_servers_trial() -> None:
    assert {outcome.value for outcome in Outcome} | {words.OUTPUTS_DIFFER} == set(words.OUTCOMES)


def test_outputs_are_compared_token_by_token_then_by_logits() -> None:
    first = Outputs(((1, 2, 3), (4,)), fingerprints=((7, 8, 9), (1,)))
    assert first.difference(first) is None
    assert "prompt 0, new token 1: 5 where the baseline gave 2" in str(first.difference(Outputs(((1, 5, 3), (4,)))))
    assert "its end where the baseline gave 3" in str(first.difference(Outputs(((1, 2), (4,)))))
    assert "logits" in str(first.difference(Outputs(first.tokens, fingerprints=((7, 0, 9), (1,)))))
    assert first.difference(Outputs(first.tokens)) is None  # one that has no fingerprints
    assert first.difference(Outputs(((1, 2, 3),))) is not None
