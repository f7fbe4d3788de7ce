"""Plans: rules, presets, folding, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from dsv4lab.errors import PlanError
from dsv4lab.overlap.plan import PRESETS, OverlapPlan, Rule, plan_from_json, resolve_plan


def test_the_first_matching_rule_wins() -> None:
    plan = OverlapPlan("p", (Rule("a.*", "side1"), Rule("a.b", "side0")))
    assert plan.stream_of(("a.b",), "csa", 1) == "side1"
    assert plan.stream_of(("c",), "csa", 1) == "main"


def test_layer_kind_and_token_range_limit_a_rule() -> None:
    plan = OverlapPlan("p", (Rule("a", "side0", layers="hca", min_tokens=2, max_tokens=4),))
    streams = [plan.stream_of(("a",), kind, n) for kind, n in (("hca", 2), ("hca", 1), ("hca", 5), ("csa", 3))]
    assert streams == ["side0", "main", "main", "main"]


def test_folding_keeps_order_and_ends_at_main() -> None:
    cuda = resolve_plan("cuda")
    assert cuda.fold(2).side_streams == ("side0", "side1")
    assert cuda.fold(1).side_streams == ("side0",)
    assert cuda.fold(0).side_streams == ()
    assert cuda.fold(3) is cuda


def test_presets_survive_the_wire() -> None:
    for plan in PRESETS.values():
        assert plan_from_json(plan.to_json()) == plan


def test_presets_join() -> None:
    joined = resolve_plan("hip+moe")
    assert joined.rules == (*PRESETS["hip"].rules, *PRESETS["moe"].rules)


def test_what_a_preset_splits_is_kept_in_unions_and_folds() -> None:
    joined = resolve_plan("unfused+moe")
    assert joined.split == PRESETS["unfused"].split == joined.fold(0).split == joined.gated(8).split
    assert joined.splits("compressor.side_gemm")
    assert not resolve_plan("hip+moe").splits("compressor.side_gemm")


def test_what_goes_first_is_kept_in_unions_and_folds() -> None:
    joined = resolve_plan("side+query+moe+high")
    assert joined.rules == resolve_plan("side+query+moe").rules
    assert joined.high == ("side0",) == joined.gated(8).high
    assert (joined.fold(1).high, joined.fold(0).high) == (("side0",), ())
    assert OverlapPlan("p", high=("side3", "side1")).fold(2).high == ("side1",)
    assert joined != resolve_plan("side+query+moe"), "graphs of the two are two"
    with pytest.raises(PlanError, match="plan high moves nothing: it goes with others, as side\\+high"):
        resolve_plan("high")


def test_keys_leaves_what_selection_waits_for_longest_on_main() -> None:
    plan = resolve_plan("keys+moe+high")
    fused = "compressor.side_gemm"
    for op in ("compressor.gemm", "indexer.compressor.gemm", "indexer.weights_gemm"):
        assert plan.stream_of((op, fused), "csa", 4) == "main"
    for op in ("indexer.compressor.store", "indexer.topk", "attention", "moe.experts"):
        assert plan.stream_of((op,), "csa", 4) == "main"
    aside = {"qkv_a": "side1", "indexer.q_b": "side1", "q_b": "side2", "compressor.store": "side0"}
    for op, stream in aside.items():
        assert plan.stream_of((op,), "csa", 4) == stream
        assert plan.stream_of((op,), "hca", 4) == ("side0" if op == "compressor.store" else "main")


def test_route_moves_the_router_and_leaves_the_shared_expert() -> None:
    plan = resolve_plan("side+query+route")
    assert [plan.stream_of((op,), "swa", 4) for op in ("moe.route", "moe.shared", "moe.experts")] == [
        "side0", "main", "main",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({}, "an overlap plan is"),
        ({"rules": [{"ops": "a"}]}, "rule 0 needs the fields ops and stream"),
        ({"rules": [{"ops": "a", "stream": "side0", "lane": 1}]}, "unknown fields \\['lane'\\]"),
        ({"rules": [{"ops": "a", "stream": "gpu"}]}, "stream 'gpu' is not main, side0"),
        ({"rules": [{"ops": "a", "stream": "side0", "layers": "all"}]}, "layers 'all' is not one of any, swa"),
        ({"rules": [{"ops": "a", "stream": "side0", "min_tokens": "x"}]}, "min_tokens must be a whole number"),
        ({"rules": [{"ops": "a", "stream": "side0", "min_tokens": 3, "max_tokens": 2}]}, "token range 3..2 is empty"),
        ({"rules": [{"ops": 3, "stream": "side0"}]}, "ops must be a text"),
        ({"rules": [], "split": "mhc"}, "split must be a list of patterns"),
        ({"rules": [], "split": [3]}, "split must be a list of patterns"),
        ({"rules": [], "high": "side0"}, "high must be a list of side streams"),
        ({"rules": [], "high": ["fast"]}, "high has 'fast', which is not side0"),
        ({"rules": [], "high": ["main"]}, "main's priority is the engine's field high_priority_main"),
    ],
)
def test_bad_plans_are_refused(data: dict[str, Any], text: str) -> None:
    with pytest.raises(PlanError, match=text):
        plan_from_json(data)


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(PlanError, match="unknown overlap plan 'fast'; presets are off, hip, cuda, moe"):
        resolve_plan("fast")
