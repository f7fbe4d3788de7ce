"""Runs notebooks and keeps what they showed, for the gallery of the docs site: ``make gallery ARGS="40_read_a_trace"``.

Pictures are kept as plotly figures without their colours, tables and texts as they are, explorers as their data, and
other live views, whose pages are larger than a repository should hold, as two screenshots.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import nbformat
from gallery import EXPLORERS, NOTEBOOKS, RECORDS, SCHEMA, fingerprint, read_cells
from nbclient import NotebookClient

from dsv4lab.host import cpu_name, usable_cores
from dsv4lab.widgets.saved import taken_apart

ROOT = Path(__file__).resolve().parents[2]
PLOTLY = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"
MOST_BYTES = 300_000
_PATIENCE_MS, _SETTLE_MS = 180_000, 2_000
PACKAGES = ("dsv4lab", "torch", "numpy", "plotly")
PARAMETERS: dict[str, dict[str, str]] = {
    "00_tour": {"new_tokens": "12", "steps": "2"},
    "20_streams_and_queues": {"steps": "3"},
    "30_overlap_on_your_gpu": {"steps": "3"},
    "70_write_your_own_plan": {"steps": "3"},
}
"""What is smaller than in the notebook, so that a page stays light."""


_SAVE = """
import time as _time
_view = Out[max(Out)]
_engine = getattr(_view, "client", None)
if hasattr(_engine, "start_load"):
    _engine.start_load(2, prompt_tokens=200, max_new_tokens=400)
_time.sleep(6)
_view.save_html({page!r})
if hasattr(_engine, "stop_load"):
    _engine.stop_load()
"""
"""Saves the view that the last cell made; an engine behind it decodes meanwhile, so that there is something to see."""


def record(path: Path) -> dict[str, Any]:
    """Run the notebook at ``path`` and return its record; views go beside the records."""
    notebook = nbformat.read(path, as_version=4)
    changes = PARAMETERS.get(path.stem, {})
    outputs: dict[str, list[dict[str, Any]]] = {}
    for old in (ROOT / RECORDS / "views").glob(f"{path.stem}-*"):
        old.unlink()
    client = NotebookClient(notebook, timeout=600, kernel_name="python3")
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "kernels")))
    with client.setup_kernel(env={**os.environ, "PYTHONPATH": paths}, cwd=str(path.parent)):
        for number, cell in enumerate(notebook.cells):
            client.execute_cell(cell, number)
            if cell.cell_type != "code":
                continue
            if "parameters" in cell.metadata.get("tags", []) and changes:
                _run(client, notebook, "\n".join(f"{name} = {value}" for name, value in changes.items()))
            outputs[str(number)] = [
                kept
                for place, output in enumerate(_joined(cell.outputs))
                if (kept := _kept(output, f"{path.stem}-{number}", client, notebook))
            ]
    return {
        "schema": SCHEMA,
        "code": fingerprint(read_cells(path)),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": _machine(),
        "parameters": changes,
        "outputs": {number: found for number, found in outputs.items() if found},
    }


def _machine() -> dict[str, str]:
    versions = {name: metadata.version(name) for name in PACKAGES}
    load = f"{os.getloadavg()[0]:.1f}"
    return {
        "": f"{cpu_name()}, {usable_cores()} cores",
        "load average": load,
        "Python": platform.python_version(),
        **versions,
    }


def _run(client: NotebookClient, notebook: nbformat.NotebookNode, source: str) -> nbformat.NotebookNode:
    """Execute ``source`` in the notebook's kernel, without leaving it in the notebook."""
    notebook.cells.append(nbformat.v4.new_code_cell(source))
    try:
        return client.execute_cell(notebook.cells[-1], len(notebook.cells) - 1)
    finally:
        notebook.cells.pop()


def _joined(outputs: list[Any]) -> list[Any]:
    """Outputs with all that was printed in a row as one: a cell that prints as it goes does so bit by bit."""
    found: list[Any] = []
    for output in outputs:
        last = found[-1] if found else None
        if last is not None and last.output_type == output.output_type == "stream" and last.name == output.name:
            last.text += output.text
        else:
            found.append(output)
    return found


def _kept(output: Any, name: str, client: NotebookClient, notebook: nbformat.NotebookNode) -> dict[str, Any] | None:
    if output.output_type == "stream":
        return {"text": output.text} if output.name == "stdout" else None
    if output.output_type == "error":
        return {"text": f"{output.ename}: {output.evalue}"}
    data = output.data
    if PLOTLY in data:
        layout = {k: v for k, v in data[PLOTLY]["layout"].items() if k not in ("template", "width", "autosize")}
        return {"figure": {"data": data[PLOTLY]["data"], "layout": layout}}
    if WIDGET in data:
        return _saved_view(name, data["text/plain"], client, notebook)
    return {"html": data["text/html"]} if "text/html" in data else {"text": data["text/plain"]}


def _saved_view(name: str, text: str, client: NotebookClient, notebook: nbformat.NotebookNode) -> dict[str, Any]:
    folder = ROOT / RECORDS / "views"
    folder.mkdir(exist_ok=True)
    title = text.strip("<>").partition(" ")[0].partition(":")[0]
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "view.html"
        _run(client, notebook, _SAVE.format(page=str(page)))
        if title in EXPLORERS:
            parts = {"explorer": title, **asdict(taken_apart(page.read_text(encoding="utf-8")))}
            (folder / f"{name}.json").write_text(_text(parts), encoding="utf-8")
            return {"view": f"{name}.html", "title": title}
        with _photographer() as take:
            for theme in ("light", "dark"):
                take(page, theme, folder / f"{name}-{theme}.png")
    return {"view": f"{name}.png", "title": title}


@contextmanager
def _photographer() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])

        def take(page: Path, theme: Any, target: Path) -> None:
            tab = browser.new_page(viewport={"width": 920, "height": 800}, color_scheme=theme)
            tab.set_default_timeout(_PATIENCE_MS)
            tab.goto(page.as_uri())
            tab.wait_for_selector(".js-plotly-plot .main-svg")
            tab.wait_for_timeout(_SETTLE_MS)
            tab.screenshot(path=target, full_page=True)
            tab.close()
            _shrink(target)

        yield take
        browser.close()


def _shrink(picture: Path) -> None:
    from PIL import Image

    Image.open(picture).convert("RGB").quantize(96, dither=Image.Dither.NONE).save(picture, optimize=True)


def main() -> None:
    """Record the notebooks named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="notebooks without .ipynb (default: all)")
    names = parser.parse_args().names or [path.stem for path in sorted((ROOT / NOTEBOOKS).glob("*.ipynb"))]
    for name in names:
        found = record(ROOT / NOTEBOOKS / f"{name}.ipynb")
        target = ROOT / RECORDS / f"{name}.json"
        target.write_text(_text(found), encoding="utf-8")
        print(f"{name}: {target.stat().st_size:,} bytes")


def _text(found: Mapping[str, Any]) -> str:
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n"
    if len(text) > MOST_BYTES:
        raise SystemExit(f"a record of {len(text):,} bytes: at most {MOST_BYTES:,}; give it smaller PARAMETERS")
    return text


if __name__ == "__main__":
    main()
