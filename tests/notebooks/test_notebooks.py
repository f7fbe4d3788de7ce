"""Every notebook but the tour, executed: with small parameters here, with its own in the long tests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.notebooks import executing
from tests.notebooks.executing import errors, executed, pictures, printed, tables, views

BUSY, TIMELINE, POOL = "Busy time per stream", "Timeline", "KV pool"
PREDICTED = "Predicted time per output token"


def kinds(titles: list[str]) -> list[str]:
    return [title.split(" after")[0].split(":")[0] for title in titles]


def test_every_notebook_is_executed_by_a_test() -> None:
    names = {path.stem for path in (executing.ROOT / "notebooks").glob("*.ipynb")}
    assert names == {"00_tour", *SMALL}


def page_layout(parameters: dict[str, Any]) -> None:
    notebook = executed("10_page_layout", parameters)
    assert kinds(pictures(notebook)) == [POOL, POOL, POOL]
    assert len(views(notebook)) == 1
    owners, reads, plans = tables(notebook)
    assert "who holds what" in owners
    assert "compressed rows" in reads
    assert plans.count("<tr>") == 5


def streams_and_queues(parameters: dict[str, Any]) -> None:
    notebook = executed("20_streams_and_queues", parameters)
    assert kinds(pictures(notebook)) == [TIMELINE, TIMELINE, PREDICTED, TIMELINE, BUSY]
    assert len(views(notebook)) == 1


def overlap_on_your_gpu(parameters: dict[str, Any]) -> None:
    notebook = executed("30_overlap_on_your_gpu", parameters)
    assert "predicts nothing about a GPU" in printed(notebook)
    assert tables(notebook)[1].count("<td>True</td>") == 1 + len(parameters.get("plans", ("hip", "cuda")))
    assert kinds(pictures(notebook))[:2] == [BUSY, TIMELINE]
    assert len(views(notebook)) == 1


def read_a_trace(parameters: dict[str, Any]) -> None:
    notebook = executed("40_read_a_trace", parameters)
    assert "wrote the hardware queue as 'stream'" in printed(notebook)
    assert "partly hidden" in tables(notebook)[2]
    assert len(pictures(notebook)) == 4
    assert len(views(notebook)) == 1


def what_if(parameters: dict[str, Any]) -> None:
    notebook = executed("50_what_if", parameters)
    assert "544 kernels" in printed(notebook)
    assert kinds(pictures(notebook)) == [TIMELINE, "What the prediction leans on", PREDICTED]


def tuning_session(parameters: dict[str, Any]) -> None:
    notebook = executed("60_tuning_session", parameters)
    assert "bit-identical" in printed(notebook)
    assert "records.jsonl" in printed(notebook)
    assert kinds(pictures(notebook))[-1] == BUSY
    assert len(views(notebook)) == 1


def search_session(parameters: dict[str, Any]) -> None:
    notebook = executed("65_search_session", parameters)
    said = printed(notebook)
    assert "forecast by the queue model" in said
    assert "the same answers: True" in said
    assert ": use off." in said or ": stay with zigzag" in said
    assert "dsv4lab serve --preset tiny --plan off" in said or "zigzag" in said
    assert len(pictures(notebook)) == 2
    answers, best = tables(notebook)
    assert "95 % interval" in answers
    assert "forecast" in best


def write_your_own_plan(parameters: dict[str, Any]) -> None:
    notebook = executed("70_write_your_own_plan", parameters)
    assert kinds(pictures(notebook)) == [BUSY, TIMELINE]
    (error,) = errors(notebook)
    assert error.startswith("PlanError: ")
    assert "indexr.*" in error


def kernels_without_the_gpu(parameters: dict[str, Any]) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    notebook = executed("80_kernels_without_the_gpu", parameters)
    compiled, verdicts = tables(notebook)
    assert "configurations for" in compiled
    assert "triton-interpreter" in verdicts


SMALL: dict[str, tuple[Any, dict[str, Any]]] = {
    "10_page_layout": (page_layout, {"requests": 2, "prompt_tokens": 300}),
    "20_streams_and_queues": (streams_and_queues, {"steps": 3, "prompt_tokens": 40}),
    "30_overlap_on_your_gpu": (
        overlap_on_your_gpu,
        {"steps": 3, "new_tokens": 6, "prompt_tokens": 40, "plans": ["hip"]},
    ),
    "40_read_a_trace": (read_a_trace, {}),
    "50_what_if": (what_if, {"runtimes": ["rocm-10+ordering-edges"], "queue_counts": [4], "concurrency_levels": [4]}),
    "60_tuning_session": (
        tuning_session,
        {"plans": ["off", "hip"], "hw_queues": [2], "concurrency": [1], "repeats": 1, "confirm": 1},
    ),
    "65_search_session": (search_session, {"plans": ["off"], "concurrency": [1], "pairs": 2, "confirm": 2}),
    "70_write_your_own_plan": (write_your_own_plan, {"steps": 3, "new_tokens": 6, "prompt_tokens": 40}),
    "80_kernels_without_the_gpu": (kernels_without_the_gpu, {"compiled": ["swiglu"], "checked": ["swiglu"]}),
}
"""What is asked of each, and the parameters that make it short."""


@pytest.mark.parametrize("name", SMALL)
def test_runs_with_small_parameters(name: str) -> None:
    check, parameters = SMALL[name]
    check(parameters)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_runs_as_it_is(name: str) -> None:
    check, _ = SMALL[name]
    check({})
