"""Figures of a loaded trace: what they draw is what the tables say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dsv4lab
from dsv4lab.timeline.timeline import Timeline
from dsv4lab.trace.api import Trace
from dsv4lab.viz.loaded import LoadedTrace, load_trace
from dsv4lab.viz.trace_figures import idle_figure, steps_figure, waterfall_figure

ROOT = Path(__file__).resolve().parents[2]
RANK0, RANK1 = (ROOT / f"traces/cuda_5streams_128ranks_rank{rank}.pt.trace.json.gz" for rank in (0, 1))


@pytest.fixture(scope="module")
def trace() -> LoadedTrace:
    return load_trace(RANK0)


def test_the_public_loader_gives_tables_and_figures(trace: LoadedTrace) -> None:
    assert dsv4lab.load_trace is load_trace
    assert isinstance(trace, Trace)
    assert trace.report is not None
    assert trace.report.rows == int(trace.busy_mask.sum())
    assert repr(trace).startswith("<Trace cuda_5streams_128ranks_rank0")


def test_steps_are_stacked_to_their_walls(trace: LoadedTrace) -> None:
    rows = trace.steps()
    main, side, idle = (np.asarray(bar.y) for bar in trace.steps_figure().data)
    assert len(main) == len(rows)
    np.testing.assert_allclose(main + side + idle, np.array(rows.column("wall_ns")) / 1e6)
    np.testing.assert_allclose(idle, np.array(rows.column("idle_ns")) / 1e6)


def test_idle_time_by_cause(trace: LoadedTrace) -> None:
    (bar,) = trace.idle_figure().data
    causes = trace.idle()
    assert list(bar.y) == causes.column("cause")
    np.testing.assert_allclose(bar.x, np.array(causes.column("idle_ns")) / 1e6)


def test_the_waterfall_runs_from_one_wall_to_the_other(trace: LoadedTrace) -> None:
    other = load_trace(RANK1)
    figure = trace.compare_figure(other, ("rank 0", "<b>rank 1"))
    (fall,) = figure.data
    found = trace.compare(other)
    assert sum(fall.x[:-1]) * 1e6 == pytest.approx(found.b.wall_ns)
    assert fall.measure[0] == "absolute"
    assert fall.measure[-1] == "total"
    low, high = figure.layout.xaxis.range
    assert low < min(found.a.wall_ns, found.b.wall_ns) / 1e6
    assert high > max(found.a.wall_ns, found.b.wall_ns) / 1e6
    assert ("(from" in figure.layout.xaxis.title.text) == (low > 0)
    assert "&lt;b&gt;rank 1" in figure.layout.title.text


def test_the_other_figures_draw_this_trace(trace: LoadedTrace) -> None:
    assert len(trace.timeline_figure().data) > 0
    assert "concurrency" not in trace.stream_busy_figure(theme="dark").layout.title.text
    assert len(trace.stream_busy_figure().data) == 4
    assert "no packets on a hardware queue" in str(LoadedTrace.of(Timeline.empty()).queue_occupancy_figure().layout)


def test_nothing_to_draw_says_why() -> None:
    empty = LoadedTrace.of(Timeline.empty())
    for figure, says in (
        (steps_figure(()), "marks no steps"),
        (idle_figure(()), "never idle"),
    ):
        assert says in str(figure.layout)
    assert waterfall_figure(empty.compare(empty)).data[0].measure == ("absolute", "total")


def test_loading_draws_nothing_yet() -> None:
    code = f"import sys, dsv4lab as lab; lab.load_trace({str(RANK0)!r}); print('plotly' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "False"
