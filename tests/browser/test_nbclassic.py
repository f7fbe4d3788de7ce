"""The views in nbclassic, the notebook page of before JupyterLab: the same widgets under another loader."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.jupyter import PATIENCE_MS, Server, picture, wait_for_text

pytest.importorskip("nbclassic", reason="nbclassic is not installed")
pytestmark = [pytest.mark.browser, pytest.mark.slow]

CELLS = [
    "import dsv4lab as lab",
    "lab.queue_lab(layers=2)",
    "client = lab.open('tiny', plan='hip', hw_queues=2)\nlab.dashboard(client)",
    "lab.trace_explorer(client.profile(4, concurrency=2, prompt_tokens=16).timeline)",
    "client.close()",
]
RUN = "at => { Jupyter.notebook.execute_cells([at]); }"
IDLE = """() => {
  const notebook = window.Jupyter?.notebook;
  return notebook?.kernel?.widget_manager && notebook.kernel.is_connected() && !notebook.kernel_busy;
}"""


def test_the_views_work_in_nbclassic(jupyter: Server, page: Page) -> None:
    jupyter.notebook("classic.ipynb", CELLS)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"{jupyter.url}notebooks/classic.ipynb?token={jupyter.token}")
    page.wait_for_function(IDLE, timeout=PATIENCE_MS)
    page.evaluate(RUN, 0)  # what widgets a running kernel has is asked when the page opens, and settled by then
    page.wait_for_function("() => Jupyter.notebook.get_cell(0).input_prompt_number === 1", timeout=PATIENCE_MS)
    outputs = page.locator(".code_cell .output_wrapper")

    page.evaluate(RUN, 1)
    wait_for_text(outputs.nth(1).locator(".pk-clock"), "event 1 of")
    outputs.nth(1).get_by_role("button", name="Step").click()
    wait_for_text(outputs.nth(1).locator(".pk-clock"), "event 2 of")
    picture(outputs.nth(1), "sweep", "hardware queues")

    page.evaluate(RUN, 2)
    outputs.nth(2).get_by_role("button", name="Start decoding").click()
    picture(outputs.nth(2), "ribbon", "2 in flight")
    outputs.nth(2).get_by_role("button", name="Stop decoding").click()
    expect(outputs.nth(2).get_by_role("button", name="Start decoding")).to_be_visible(timeout=PATIENCE_MS)

    page.evaluate(RUN, 3)
    expect(outputs.nth(3).locator("canvas").first).to_be_visible(timeout=PATIENCE_MS)
    page.evaluate(RUN, 4)
    assert problems == []
