"""Runs a committed notebook with parameters of the test's own."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
PLOTLY = "application/vnd.plotly.v1+json"
VIEW = "application/vnd.jupyter.widget-view+json"
PATIENCE_S = 400


def executed(name: str, parameters: Mapping[str, Any]) -> nbformat.NotebookNode:
    """``name`` after a run in its own folder, as ``dsv4lab lab`` would run it. ``parameters`` follow the cell of those.

    Raises what nbclient raises for a cell that fails, unless the cell is tagged ``raises-exception``.
    """
    path = ROOT / "notebooks" / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    cell = next(cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    unknown = set(parameters) - set(re.findall(r"^(\w+) = ", cell.source, re.MULTILINE))
    assert not unknown, f"{name} has no parameters {unknown}"
    cell.source = "\n".join([cell.source, *(f"{key} = {value!r}" for key, value in parameters.items())])
    client = NotebookClient(notebook, timeout=PATIENCE_S, kernel_name="python3")
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "kernels")))
    client.execute(env={**os.environ, "PYTHONPATH": paths}, cwd=str(path.parent))
    return notebook


def _outputs(notebook: nbformat.NotebookNode) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def pictures(notebook: nbformat.NotebookNode) -> list[str]:
    """First lines of the titles of its pictures, in order."""
    layouts = [o["data"][PLOTLY]["layout"] for o in _outputs(notebook) if PLOTLY in o.get("data", {})]
    plain = (re.sub(r"<[^>]+>", "|", layout["title"]["text"]).split("|") for layout in layouts)
    return [next(filter(None, words)) for words in plain]


def views(notebook: nbformat.NotebookNode) -> list[str]:
    """What its live views call themselves."""
    return [o["data"]["text/plain"] for o in _outputs(notebook) if VIEW in o.get("data", {})]


def tables(notebook: nbformat.NotebookNode) -> list[str]:
    """Its tables as HTML."""
    return [o["data"]["text/html"] for o in _outputs(notebook) if "text/html" in o.get("data", {})]


def printed(notebook: nbformat.NotebookNode) -> str:
    """All that it printed, and the values of cells that are no picture."""
    texts = [o.get("text") or o.get("data", {}).get("text/plain", "") for o in _outputs(notebook)]
    return "\n".join(texts)


def errors(notebook: nbformat.NotebookNode) -> list[str]:
    """``Name: text`` of what its cells raised."""
    return [f"{o.ename}: {o.evalue}" for o in _outputs(notebook) if o.output_type == "error"]
