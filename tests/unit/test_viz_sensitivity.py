"""The tornado of what a prediction leans on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4lab.errors import UsageError
from dsv4lab.queues.sensitivity import Lean
from dsv4lab.queues.values import SWITCH
from dsv4lab.viz.sensitivity import MOST, sensitivity_figure, sensitivity_sheet

FLOOR = Lean("kernel_floor_us", 1.5, "us", "assumed", "nobody measured it", 0.03, 0.05, None)
LOSS = Lean("corun_loss", 0.145, "", "assumed", "as on <b>MI355X</b>", 0.045, -0.01, 0.29)
SCOPE = Lean("poll_scope_pipe", 0.0, SWITCH, "assumed", "pipe or device", 0.04, -0.03, 1.0)


def test_bars_run_from_the_gain_to_the_value_halved_and_doubled() -> None:
    sheet = sensitivity_sheet([FLOOR, LOSS, SCOPE], 0.04)
    halved, doubled = sheet.data
    assert [y.split()[0] for y in halved["y"]] == ["kernel_floor_us", "corun_loss", "poll_scope_pipe"]  # widest on top
    assert halved["base"] == doubled["base"] == [4.0] * 3
    assert (np.array(halved["base"]) + halved["x"]).tolist() == pytest.approx([3.0, 4.5, 4.0])
    assert (np.array(doubled["base"]) + doubled["x"]).tolist() == pytest.approx([5.0, -1.0, -3.0])
    assert [line["x0"] for line in sheet.layout["shapes"]] == [0.0, 4.0]
    low, high = sheet.layout["xaxis"]["range"]
    assert low < -3.0
    assert high > 5.0


def test_each_row_says_where_it_turns_the_answer_round() -> None:
    sheet = sensitivity_sheet([FLOOR, LOSS, SCOPE], 0.04)
    assert [note["text"] for note in sheet.layout["annotations"]] == [
        "turns beyond ×8",
        "turns at 0.29 (×2)",
        "turns when on",
    ]
    assert "saves 4.0%" in sheet.layout["title"]["text"]
    assert "costs 4.0%" in sensitivity_sheet([FLOOR], -0.04).layout["title"]["text"]


def test_sources_are_text_and_many_rows_are_cut() -> None:
    figure = sensitivity_figure([LOSS], 0.04, theme="dark")
    assert "&lt;b&gt;MI355X" in figure.data[0].customdata[0]
    many = [Lean(f"v{i}", 1.0, "us", "assumed", "", 0.0, i / 100, None) for i in range(40)]
    assert sensitivity_sheet(many, 0.0).data[0]["y"][-1].startswith("v39")
    assert len(sensitivity_sheet(many, 0.0).data[0]["y"]) == MOST
    assert "no assumed value" in sensitivity_figure([], 0.1).layout.annotations[0].text
    with pytest.raises(UsageError, match="theme 'blue'"):
        sensitivity_figure([LOSS], 0.04, theme="blue")


@settings(max_examples=25)
@given(
    st.lists(
        st.builds(
            Lean,
            st.text(min_size=1, max_size=40),
            st.floats(1e-6, 1e9),
            st.sampled_from(["us", "", SWITCH]),
            st.just("assumed"),
            st.text(max_size=300),
            st.floats(-1, 1),
            st.floats(-1, 1),
            st.none() | st.floats(1e-6, 1e9),
        ),
        max_size=20,
    ),
    st.floats(-1, 1),
)
def test_any_answer_can_be_drawn(leans: list[Lean], gain: float) -> None:
    sensitivity_figure(leans, gain).to_plotly_json()
