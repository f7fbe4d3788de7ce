"""Times of the labs in a real browser, on the same cores as server, kernel and engine."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from tests.browser.jupyter import PATIENCE_MS, NotebookPage, Server, picture

pytestmark = [pytest.mark.browser, pytest.mark.bench]

CHANGES = 30
LIVE_S = 10.0
PAIRS = 16

SLIDE = """async ([cell, key]) => {
  const output = document.querySelectorAll('.jp-Notebook > .jp-WindowedPanel-outer .jp-Cell')[cell];
  const slider = output.querySelector('[role=slider]');
  const plot = output.querySelector("[data-cell='sweep'] .js-plotly-plot");
  const title = output.querySelector('.pk .title');
  const before = title.textContent;
  slider.focus();
  const start = performance.now();
  const drawn = new Promise((done) => plot.once('plotly_afterplot', done));
  const keyCode = key === 'ArrowRight' ? 39 : 37;
  slider.dispatchEvent(new KeyboardEvent('keydown', { key, code: key, keyCode, bubbles: true }));
  await drawn;
  while (title.textContent === before) await new Promise((next) => requestAnimationFrame(next));
  return performance.now() - start;
}"""
RATE = """async ([cell, name, seconds]) => {
  const output = document.querySelectorAll('.jp-Notebook > .jp-WindowedPanel-outer .jp-Cell')[cell];
  const plot = output.querySelector(`[data-cell='${name}'] .js-plotly-plot`);
  let drawn = 0;
  const count = () => { drawn += 1; };
  plot.on('plotly_afterplot', count);
  await new Promise((done) => setTimeout(done, 1000 * seconds));
  plot.removeListener('plotly_afterplot', count);
  return drawn / seconds;
}"""
STEPS = """import time
def rate(seconds):
    before, start = client.status()['steps'], time.perf_counter()
    time.sleep(seconds)
    return (client.status()['steps'] - before) / (time.perf_counter() - start)
"""
COMPARE = f"""import statistics
changes = []
for n in range({PAIRS}):
    rates = {{}}
    for frozen in (bool(n % 2), not n % 2):
        view.controls.freeze.value = frozen
        rate(0.5)
        rates[frozen] = rate(2.0)
    changes.append(rates[False] / rates[True] - 1)
print(min(changes), max(changes), statistics.median(changes))"""


def test_import_and_first_widget(jupyter: Server, page: Page, record_figure: Callable[..., None]) -> None:
    code = "import time; t = time.perf_counter(); import dsv4lab; print(time.perf_counter() - t)"
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout) for _ in range(5)
    ]
    record_figure("import dsv4lab", min(times), "s", runs=5)
    notebook = NotebookPage(page, jupyter.notebook("first.ipynb", ["import dsv4lab as lab", "lab.queue_lab()"]))
    notebook.run(0)
    start = time.perf_counter()
    notebook.run(1)
    notebook.output(1).locator(".pk-stage").wait_for(timeout=PATIENCE_MS)
    record_figure("first widget on screen", time.perf_counter() - start, "s")
    notebook.output(1).locator(".js-plotly-plot").first.wait_for(timeout=PATIENCE_MS)
    record_figure("first picture on screen", time.perf_counter() - start, "s")
    assert min(times) < 0.2


def test_slider_to_picture(jupyter: Server, page: Page, record_figure: Callable[..., None]) -> None:
    """To the picture that any queue count changes, the sweep's mark: where streams stay apart, little else moves."""
    notebook = NotebookPage(page, jupyter.notebook("slide.ipynb", ["import dsv4lab as lab\nlab.queue_lab()"]))
    notebook.run(0)
    picture(notebook.output(0), "leans", "leans on")
    picture(notebook.output(0), "sweep", "hardware queues")
    keys = ["ArrowRight", "ArrowLeft"] * (CHANGES // 2)
    times = sorted(page.evaluate(SLIDE, [0, key]) for key in keys)
    record_figure(
        "slider to picture, p95", times[int(0.95 * len(times))], "ms", median=statistics.median(times), changes=CHANGES
    )


def test_live_rate_and_slowdown(jupyter: Server, page: Page, record_figure: Callable[..., None]) -> None:
    """Decode steps a second with the dashboard live and frozen, in turns; freezing stops drawing and sending."""
    cells = [
        "import dsv4lab as lab\nclient = lab.open('tiny', plan='hip', hw_queues=4)",
        "view = lab.dashboard(client)\nview",
        f"{STEPS}client.start_load(2, prompt_tokens=64, max_new_tokens=256)\nrate(2)",
        COMPARE,
    ]
    notebook = NotebookPage(page, jupyter.notebook("live.ipynb", cells))
    for cell in (0, 1, 2):
        notebook.run(cell)
    picture(notebook.output(1), "ribbon", "in flight")
    rates = {cell: page.evaluate(RATE, [1, cell, LIVE_S]) for cell in ("ribbon", "queues", "busy")}
    record_figure("live pictures", min(rates.values()), "Hz", seconds=LIVE_S, **rates)
    notebook.run(3)
    least, most, median = (100 * float(word) for word in notebook.text(3).split()[-3:])
    record_figure("decode with live pictures", median, "%", pairs=PAIRS, least=least, most=most)
