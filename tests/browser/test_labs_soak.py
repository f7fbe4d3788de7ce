"""A dashboard that is left running: neither kernel, worker nor page may grow."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import pytest
from playwright.sync_api import CDPSession, Page

from tests.browser.jupyter import NotebookPage, Server, picture

MINUTES = float(os.environ.get("DSV4LAB_SOAK_MINUTES", "30"))
SAMPLES = 24
SETTLED = SAMPLES // 4
"""Samples before this one are of a page that still fills its histories: every picture shows a bounded past."""

MIB = 1 << 20
MOST_GROWTH = {"kernel": 8 * MIB, "worker": 8 * MIB, "page": 4 * MIB}
"""Of the fitted line over the whole run: far below a leak of one frame's data, above what allocators scatter."""

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(int(60 * MINUTES) + 600)]

CELLS = [
    "import os\nimport dsv4lab as lab\nclient = lab.open('tiny', plan='hip', hw_queues=4)",
    "lab.dashboard(client)",
    "client.start_load(2, prompt_tokens=64, max_new_tokens=256)\nprint(os.getpid(), client.pid)",
]


def resident(pid: int) -> int:
    """Bytes of a process that are in memory."""
    words = Path("/proc", str(pid), "statm").read_text(encoding="utf-8").split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE")


def heap(session: CDPSession) -> int:
    """Bytes of the page's JavaScript heap that are in use after a collection."""
    session.send("HeapProfiler.collectGarbage")
    metrics = session.send("Performance.getMetrics")["metrics"]
    return int(next(m["value"] for m in metrics if m["name"] == "JSHeapUsedSize"))


def growth(samples: list[int]) -> float:
    """Theil and Sen's slope of the settled samples, over the length of them all."""
    settled = samples[SETTLED:]
    slopes = [(b - a) / (j - i) for i, a in enumerate(settled) for j, b in enumerate(settled) if j > i]
    return statistics.median(slopes) * len(samples)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory of processes is read from /proc")
def test_nothing_grows(jupyter: Server, page: Page) -> None:
    notebook = NotebookPage(page, jupyter.notebook("soak.ipynb", CELLS))
    for cell in range(3):
        notebook.run(cell)
    kernel, worker = (int(word) for word in notebook.text(2).split()[-2:])
    picture(notebook.output(1), "ribbon", "2 in flight")
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    samples: dict[str, list[int]] = {name: [] for name in MOST_GROWTH}
    begun = time.monotonic()
    for n in range(1, SAMPLES + 1):
        page.wait_for_timeout(max(0.0, 1000 * (begun + 60 * MINUTES * n / SAMPLES - time.monotonic())))
        for name, value in (("kernel", resident(kernel)), ("worker", resident(worker)), ("page", heap(session))):
            samples[name].append(value)
    picture(notebook.output(1), "ribbon", "2 in flight")
    found = {name: growth(values) for name, values in samples.items()}
    print({name: (round(found[name] / MIB, 2), [round(v / MIB, 1) for v in samples[name]]) for name in samples})
    assert {name: grew for name, grew in found.items() if grew > MOST_GROWTH[name]} == {}
    assert notebook.problems == []
