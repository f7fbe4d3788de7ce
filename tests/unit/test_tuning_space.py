from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.errors import UsageError
from dsv4lab.tuning.space import BASELINE, Cell, Load, PlanChoice, SweepSpace, balanced
from dsv4lab.tuning.sweep import load_count

PLANS = tuple(PlanChoice(name, name) for name in ("off", "hip", "cuda"))


def space(**changes: object) -> SweepSpace:
    fields: dict[str, object] = {"plans": PLANS, "hw_queues": (1, 2, 4), "concurrency": (1, 4), **changes}
    return SweepSpace(**fields)  # type: ignore[arg-type]


def test_every_cell_is_measured_rounds_times_repeats_and_the_control_once() -> None:
    s = space(rounds=3, repeats=2)
    measured = Counter(turn.cell for visit in s.visits() for turn in visit.turns)
    assert set(measured) == set(s.cells())
    assert all(count == (1 if cell.control else 6) for cell, count in measured.items())
    assert len(s.cells()) == 3 * 3 * 2 + 2


def test_a_visit_holds_one_queue_count_and_the_control_comes_last() -> None:
    for visit in space(rounds=2).visits():
        assert {turn.cell.hw_queues for turn in visit.turns} == {visit.hw_queues}
        assert {turn.cell.control for turn in visit.turns} == {visit.control}
    assert [visit.control for visit in space(rounds=2).visits()] == [False] * 6 + [True]
    assert not any(visit.control for visit in space(control=False).visits())


def test_queue_counts_come_in_another_order_in_the_next_round() -> None:
    orders = [visit.hw_queues for visit in space(rounds=2, control=False).visits()]
    assert orders == [1, 2, 4, 4, 2, 1]


def test_plans_of_one_repeat_stand_side_by_side() -> None:
    for visit in space().visits():
        turns = [turn for turn in visit.turns if not turn.cell.control]
        for at in range(0, len(turns), 3):
            block = turns[at : at + 3]
            assert {turn.cell.plan for turn in block} in ({"off", "hip", "cuda"}, set())
            assert len({(turn.repeat, turn.cell.concurrency_level) for turn in block}) <= 1


@given(st.integers(2, 5))
def test_balanced_orders_give_every_item_every_place_equally_often(n: int) -> None:
    items = tuple(range(n))
    places = [Counter(balanced(items, block)[place] for block in range(2 * n)) for place in range(n)]
    assert all(set(count.values()) == {2} and len(count) == n for count in places)


def test_one_plan_before_the_other_as_often_as_after_in_two_blocks() -> None:
    first = [balanced(("off", "hip"), block)[0] for block in range(8)]
    assert first.count("off") == 4


def test_load_count_is_what_a_session_makes() -> None:
    s = space(rounds=1, repeats=2, confirm=3)
    explore = 3 * (1 + 6 + 12) + (2 + 2)
    assert load_count(s) == explore + (1 + 4 + 12)
    assert load_count(space(plans=PLANS[:1], rounds=1, repeats=2)) == 3 * (1 + 2 + 4) + (2 + 2)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"plans": ()}, "--plans: got nothing"),
        ({"plans": PLANS[1:]}, "the baseline off must be among them"),
        ({"plans": (*PLANS, PLANS[1])}, "got hip more than once"),
        ({"plans": (PlanChoice("off", {"name": "off", "rules": []}),)}, "the name off is the baseline's"),
        ({"hw_queues": (1, 33)}, "--hw-queues: got 33, it takes integers from 1 to 32"),
        ({"hw_queues": (2, 2)}, "--hw-queues: got 2 more than once"),
        ({"concurrency": ()}, "--concurrency: got nothing"),
        ({"rounds": 0}, "--rounds: got 0"),
        ({"confirm": 0}, "--confirm: got 0"),
        ({"load": Load(max_new_tokens=1)}, "--max-new-tokens: got 1"),
    ],
)
def test_bad_spaces_are_refused_by_name(changes: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        space(**changes)
    assert text in str(caught.value)


def test_labels_and_settings() -> None:
    s = space(plans=(*PLANS, PlanChoice("mine", {"name": "mine", "rules": []})))
    assert s.setting("mine") == {"name": "mine", "rules": []}
    assert Cell("hip", 2, 4).label == "hip, 2 queues, concurrency 4"
    assert Cell(BASELINE, 1, 1).label == "off, 1 queue, concurrency 1"
    assert "all cores" in Cell(BASELINE, 1, 1, control=True).label
