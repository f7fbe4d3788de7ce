"""How fast the explorers are in a real browser: reported by ``make bench``, with the floors asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from tests.browser.jupyter import NotebookPage, Server

pytestmark = [pytest.mark.browser, pytest.mark.bench]

MILLION = """
import numpy as np
import dsv4lab as lab
r = np.random.default_rng(0)
n, names = 250_000, [f"{kind}_{i}" for i in range(12) for kind in ("norm", "gemm", "sparse_decode", "moe", "topk")]
dur = r.integers(2_000, 40_000, (4, n))
start = np.cumsum(dur + r.integers(0, 9_000, (4, n)), axis=1) - dur
line = lab.Timeline.build(
    start_ns=start.ravel(), dur_ns=dur.ravel(), stream=np.repeat(np.arange(4), n),
    name=r.integers(0, len(names), 4 * n), names=names, streams=["main", "side0", "side1", "side2"],
    main_stream="main", step=(start // 60_000_000).ravel(),
    queued_ns=start.ravel() - 9_000, queue=np.repeat([0, 1, 0, 1], n), queues=["q0", "q1"])
len(line)
"""
KERNEL = """
from dsv4lab.widgets import wire
sizes = []
def measured(content, buffers=None, was=view.send):
    sizes.append(sum(map(len, buffers or [])))
    was(content, buffers)
view.send = measured
"""
# Zooms in by steps, out again, and pans between: milliseconds from key to the picture of the new window.
WALK = """async (rounds) => {
  const root = document.querySelector(".dsv4-trace");
  const canvas = root.querySelector("canvas");
  const times = [];
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  for (let i = 0; i < rounds; i += 1) {
    const was = root.dataset.drawn;
    const begun = performance.now();
    const key = i % 3 === 2 ? "d" : i < rounds / 2 ? "w" : "s";
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    while (root.dataset.drawn === was) await frame();
    times.push(performance.now() - begun);
  }
  return times;
}"""
OPENED = """() => { window.opened = performance.now(); window.pictured = null;
  const seen = new MutationObserver(() => {
    if (window.pictured !== null || !document.querySelector(".dsv4-trace[data-pictured]")) return;
    window.pictured = performance.now() - window.opened;
  });
  seen.observe(document.body, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-pictured"] });
}"""


def test_a_million_slices(page: Page, jupyter: Server, record_figure: Callable[..., None]) -> None:
    cells = [MILLION, "view = lab.trace_explorer(line)\nview", KERNEL, "max(sizes), len(sizes)"]
    notebook = NotebookPage(page, jupyter.notebook("million.ipynb", cells))
    notebook.run(0)
    page.evaluate(OPENED)
    notebook.run(1)
    page.wait_for_function("window.pictured !== null")
    first = page.evaluate("window.pictured") / 1e3
    page.wait_for_selector(".dsv4-trace[data-table]")
    notebook.run(2)
    page.evaluate(WALK, 6)
    times = sorted(page.evaluate(WALK, 90))
    notebook.run(3)
    most, views = (int(part) for part in notebook.text(3).rpartition("(")[2].rstrip(")\n ").split(","))
    p95 = times[int(0.95 * len(times))]
    record_figure("trace explorer, 1e6 slices: first picture", first, "s", floor=3.0, aim=1.5)
    record_figure(
        "trace explorer, 1e6 slices: zoom or pan, p95", p95, "ms", p50=times[len(times) // 2], floor=150, aim=80
    )
    record_figure("trace explorer, 1e6 slices: most bytes a view", float(most), "bytes", views=views, floor=5_000_000)
    assert most < 5_000_000
    assert first <= 3.0
    assert p95 <= 150
