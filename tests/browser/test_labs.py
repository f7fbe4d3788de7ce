"""Overlap Lab, Queue Lab and Tuning Board in a real JupyterLab: the short pass of ``make test``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.jupyter import PATIENCE_MS, NotebookPage, Server, picture, wait_for_text
from tests.widgets.fake_session import HOSTILE, Session

pytestmark = pytest.mark.browser

OPEN = "import os, signal\nimport dsv4lab as lab\nclient = lab.open('tiny', plan='hip', hw_queues=4)"
DASHBOARD = f"""rules = (lab.Rule('compressor.*', 'side0'),)
lab.dashboard(client, plans=[lab.OverlapPlan({HOSTILE!r}, rules)])"""
SLOW_DRAWING = """async () => {
  const library = await globalThis[Symbol.for('dsv4lab.plotly')];
  const { react } = library;
  library.react = (...args) => new Promise((done) => setTimeout(done, 300)).then(() => react(...args));
}"""
KILL = "os.kill(client.pid, signal.SIGKILL)"
QUEUES = "lab.queue_lab(layers=2)"
BOARD = "lab.tuning_board('session')"


def test_the_views_work_in_jupyterlab(jupyter: Server, page: Page) -> None:
    """One page for all of it: starting server, kernel and engine is most of the time."""
    session = Session(jupyter.folder / "session")
    session.explore()
    notebook = NotebookPage(
        page,
        jupyter.notebook("labs.ipynb", [QUEUES.join(["import dsv4lab as lab\n", ""]), BOARD, OPEN, DASHBOARD, KILL]),
    )
    notebook.run(0)
    _queue_lab(notebook)
    notebook.run(1)
    _tuning_board(notebook, session)
    for cell in (2, 3):
        notebook.run(cell)
    _overlap_lab(notebook)
    assert notebook.problems == []
    assert page.evaluate("document.querySelectorAll('img[src=x]').length") == 0


def _queue_lab(notebook: NotebookPage) -> None:
    view = notebook.output(0)
    clock = view.locator(".pk-clock")
    wait_for_text(clock, "event 1 of")
    view.get_by_role("button", name="Step").click()
    wait_for_text(clock, "event 2 of")
    view.locator(".pk-stage").press("End")
    expect(view.locator(".pk-reason").first).to_have_text("has nothing left", timeout=PATIENCE_MS)
    view.get_by_label("show", exact=True).select_option("two streams hand over to each other")
    wait_for_text(view.locator(".pk .title"), "two streams hand over")
    picture(view, "sweep", "ordering edges")


def _tuning_board(notebook: NotebookPage, session: Session) -> None:
    view = notebook.output(1)
    wait_for_text(view, "Best so far: hip")
    session.finish()
    wait_for_text(view, "Use off on 1 hardware queue")
    table = view.get_by_role("grid")
    table.press("ArrowDown")
    table.press("ArrowDown")
    wait_for_text(view, "dsv4lab run --preset tiny --concurrency 1 --plan hip --hw-queues 1")
    session.store.close()


def _overlap_lab(notebook: NotebookPage) -> None:
    view = notebook.output(3)
    view.get_by_role("button", name="Start decoding").click()
    picture(view, "ribbon", "2 in flight")
    view.get_by_role("button", name="Edit plan").click()
    view.locator("[data-op='moe.shared']").press("ArrowRight")
    wait_for_text(view.locator(".plan .title"), "Plan hip.1")
    wait_for_text(view.locator(".plan-aside"), "moe.shared: main to side0 (swa, csa, hca)")
    view.get_by_role("button", name="Edit plan").click()
    _themes(notebook, picture(view, "ribbon", "hip.1"))
    notebook.run(4)
    wait_for_text(view.get_by_role("alert"), "ended unexpectedly")
    view.get_by_role("button", name="Restart the worker").click()
    expect(view.get_by_role("button", name="Start decoding")).to_be_enabled(timeout=PATIENCE_MS)
    view.get_by_label("on", exact=True).select_option("mi355x, simulated")
    wait_for_text(view, "simulated mi355x, rocm-10")
    picture(view, "ribbon", "against off")


def _themes(notebook: NotebookPage, ribbon: Locator) -> None:
    """Also under the pointer, which holds what a picture shows but not its colours, and while others are drawn."""
    notebook.page.evaluate(SLOW_DRAWING)
    ribbon.hover()
    for dark, paper in ((True, "rgb(20, 24, 31)"), (False, "rgb(255, 255, 255)"), (True, "rgb(20, 24, 31)")):
        notebook.theme(dark)
        expect(ribbon.locator(".main-svg").first).to_have_css("background-color", paper, timeout=PATIENCE_MS)


def test_views_are_whole_pages_without_python(tmp_path: Path, page: Page) -> None:
    """What ``save_html`` writes: packets still move, names stay text."""
    from dsv4lab.overlap.plan import OverlapPlan, Rule
    from dsv4lab.widgets.simulate_queues import QueueLab

    lab = QueueLab(_threaded=False, layers=2, plan=OverlapPlan(HOSTILE, (Rule("compressor.*", "side0"),)))
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(lab.save_html(tmp_path / "queues.html").as_uri())
    page.get_by_role("button", name="Step").click()
    wait_for_text(page.locator(".pk-clock"), "event 2 of")
    page.locator(".pk-packet").first.hover()
    page.locator(".js-plotly-plot").first.wait_for()
    assert json.loads(page.evaluate("JSON.stringify([...document.images].length)")) == 0
    assert problems == []
