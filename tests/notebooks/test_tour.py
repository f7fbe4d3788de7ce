from __future__ import annotations

import ast
import os
import re
import select
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_CODE_LINES = 60
THICK = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.For, ast.While, ast.Try, ast.With)


def code(path: Path) -> list[Any]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def test_there_are_notebooks() -> None:
    assert "00_tour.ipynb" in [path.name for path in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_committed_without_outputs(path: Path) -> None:
    for cell in code(path):
        assert cell.outputs == []
        assert cell.execution_count is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_cells_are_thin(path: Path) -> None:
    lines = [line for cell in code(path) for line in cell.source.splitlines() if line.strip()]
    assert len(lines) < MOST_CODE_LINES
    trees = [ast.parse(cell.source) for cell in code(path)]
    assert [type(node).__name__ for tree in trees for node in ast.walk(tree) if isinstance(node, THICK)] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_one_cell_has_the_parameters(path: Path) -> None:
    tagged = [cell for cell in code(path) if "parameters" in cell.metadata.get("tags", [])]
    assert len(tagged) == 1
    assert all(re.fullmatch(r"\w+ = .+", line) for line in tagged[0].source.splitlines())


def has_ended(pid: int, within_s: float) -> bool:
    """Whether the process is gone, or ends within the time given; one that nobody reaped counts as ended."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], within_s)[0])
    finally:
        os.close(process)


@pytest.fixture(scope="module")
def executed() -> nbformat.NotebookNode:
    """The tour after a run on the ``tiny`` preset, as it is committed."""
    notebook = nbformat.read(ROOT / "notebooks" / "00_tour.ipynb", as_version=4)
    client = NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(ROOT)}}, kernel_name="python3")
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "kernels")))
    with client.setup_kernel(env={**os.environ, "PYTHONPATH": paths}, cwd=str(ROOT)):
        notebook.cells.append(nbformat.v4.new_code_cell("client.pid"))
        for index, cell in enumerate(notebook.cells):
            client.execute_cell(cell, index)
    notebook.metadata["worker"] = notebook.cells.pop().outputs[0].data["text/plain"]
    return notebook


def test_the_tour_shows_every_picture(executed: nbformat.NotebookNode) -> None:
    titles = []
    for cell in executed.cells:
        for output in cell.get("outputs", []):
            figure = output.get("data", {}).get("application/vnd.plotly.v1+json")
            if figure is not None:
                titles.append(re.sub(r"<[^>]+>", "|", figure["layout"]["title"]["text"]).split("|")[1])
    assert [title.split(" after")[0] for title in titles] == [
        "Busy time per stream",
        "Timeline",
        "Hardware-queue occupancy",
        "Busy time per stream",
        "Timeline",
        "KV pool",
    ]


def test_the_tour_ends_with_the_dashboard(executed: nbformat.NotebookNode) -> None:
    outputs = executed.cells[-1].outputs
    assert "application/vnd.jupyter.widget-view+json" in outputs[-1].data


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux: waits on a process that is not a child")
def test_no_worker_outlives_the_kernel(executed: nbformat.NotebookNode) -> None:
    assert has_ended(int(executed.metadata["worker"]), within_s=60)
