from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dsv4lab as lab
from dsv4lab.errors import PlanError
from dsv4lab.overlap.edit import Vocabulary, as_python, difference, moved
from dsv4lab.overlap.plan import PRESETS, OverlapPlan, Rule

TABLE = [
    {"name": "embed", "kind": "", "parts": []},
    {"name": "q_b", "kind": "swa", "parts": []},
    {"name": "norm", "kind": "swa", "parts": ["q_norm", "kv_norm_rope"]},
    {"name": "compressor.gemm", "kind": "csa", "parts": []},
    {"name": "indexer.topk", "kind": "csa", "parts": []},
    {"name": "q_b", "kind": "csa", "parts": []},
    {"name": "norm", "kind": "csa", "parts": ["q_norm", "kv_norm_rope"]},
    {"name": "compressor.gemm", "kind": "hca", "parts": []},
]
WORDS = Vocabulary.of_table(TABLE)
HIP = PRESETS["hip"]


def test_the_vocabulary_has_every_op_once_by_kind_and_parts_for_fused_ones() -> None:
    assert WORDS.kinds == ("swa", "csa", "hca")
    assert [op.name for op in WORDS.of_kind("swa")] == ["q_b", "q_norm", "kv_norm_rope"]
    assert WORDS.of_kind("csa")[3].names == ("q_norm", "norm")


def test_a_move_in_one_kind_leaves_the_others() -> None:
    plan = moved(HIP, WORDS, "compressor.gemm", "main", "hca")
    assert WORDS.placed(plan)["hca", "compressor.gemm"] == "main"
    assert WORDS.placed(plan)["csa", "compressor.gemm"] == "side0"
    assert plan.rules[0] == Rule("compressor.gemm", "main", "hca")
    assert difference(plan, HIP, WORDS) == ["compressor.gemm: side0 to main (hca)"]


def test_a_move_in_every_kind_is_one_rule() -> None:
    plan = moved(PRESETS["off"], WORDS, "q_b", "side2", "any")
    assert plan.rules == (Rule("q_b", "side2"),)
    assert difference(plan, PRESETS["off"], WORDS) == ["q_b: main to side2 (swa, csa)"]


def test_moving_back_leaves_no_trace() -> None:
    there = moved(HIP, WORDS, "compressor.gemm", "main", "any")
    assert moved(there, WORDS, "compressor.gemm", "side0", "any") == HIP


def test_rules_of_a_token_range_stay_for_other_forwards() -> None:
    cuda = PRESETS["cuda"]
    plan = moved(cuda, WORDS, "kv_norm_rope", "main", "any")
    assert set(cuda.rules) <= set(plan.rules)


def test_patterns_in_names_are_taken_literally() -> None:
    words = Vocabulary.of_table([{"name": n, "kind": "csa", "parts": []} for n in ("a*", "ab", "a[b]")])
    plan = moved(OverlapPlan("x"), words, "a*", "side0", "csa")
    assert difference(plan, OverlapPlan("y"), words) == ["a*: main to side0 (csa)"]


def test_a_stream_that_there_is_none_of() -> None:
    with pytest.raises(PlanError, match="stream 'north'"):
        moved(HIP, WORDS, "q_b", "north", "csa")


@given(
    st.sampled_from([*PRESETS.values()]),
    st.lists(st.tuples(st.sampled_from(WORDS.ops), st.sampled_from(["main", "side0", "side1"])), max_size=6),
)
def test_moves_do_what_they_say_and_nothing_else(plan: OverlapPlan, moves: list[tuple[object, str]]) -> None:
    wanted = WORDS.placed(plan)
    for op, stream in moves:
        plan = moved(plan, WORDS, op.name, stream, op.kind)  # type: ignore[attr-defined]
        wanted[op.kind, op.name] = stream  # type: ignore[attr-defined]
    assert WORDS.placed(plan) == wanted
    assert eval(as_python(plan), {"lab": lab}) == plan


def test_python_text_of_plans() -> None:
    assert as_python(OverlapPlan("off")) == "lab.OverlapPlan('off', ())"
    text = as_python(OverlapPlan("x", (Rule("a.*", "side0", "csa", 2, 64), Rule("b", "side1"))))
    assert "lab.Rule('a.*', 'side0', 'csa', min_tokens=2, max_tokens=64)," in text
    assert "lab.Rule('b', 'side1')," in text
