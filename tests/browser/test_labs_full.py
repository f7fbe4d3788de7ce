"""Every control of the labs in a real JupyterLab, and what people do to views: the full pass of ``make test-all``."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.jupyter import PATIENCE_MS, PATIENCE_S, NotebookPage, Server, picture, wait_for_text
from tests.widgets.fake_session import Session

pytestmark = [pytest.mark.browser, pytest.mark.slow]

OPEN = "import os, signal\nimport dsv4lab as lab\nclient = lab.open('tiny', plan='hip', hw_queues=4, speculative='mtp')"
SEES = """c = client.config
print('client:', client.plan.name, c.side_streams, c.hw_queues, c.queue_policy, client.load_running)"""


@pytest.fixture(scope="module")
def notebook(jupyter: Server, browser: Browser) -> Iterator[NotebookPage]:
    """A notebook with an engine and two dashboards on it."""
    context = browser.new_context(viewport={"width": 1366, "height": 900}, accept_downloads=True)
    cells = [OPEN, "first = lab.dashboard(client)\nfirst", "lab.dashboard(client)", SEES, "print(first._pump._closed)"]
    made = NotebookPage(context.new_page(), jupyter.notebook("full.ipynb", cells))
    for cell in (0, 1, 2):
        made.run(cell)
    yield made
    context.close()


def sees(notebook: NotebookPage, text: str) -> None:
    """The client is as ``text`` says, at once or soon."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        notebook.run(3)
        wait_for_text(notebook.output(3), "client:")
        if text in (found := notebook.text(3)):
            return
        assert time.monotonic() < deadline, found


def button(view: Locator, name: str) -> Locator:
    """A button of the view that can be pressed."""
    found = view.get_by_role("button", name=re.compile(rf"^\W*{re.escape(name)}$"))  # an icon is part of the name
    expect(found).to_be_enabled(timeout=PATIENCE_MS)
    return found


def chosen(view: Locator, label: str) -> Locator:
    """A choice of the view that can be made."""
    found = view.get_by_label(label, exact=True)
    expect(found).to_be_enabled(timeout=PATIENCE_MS)
    return found


def test_every_setting_of_the_engine(notebook: NotebookPage) -> None:
    view = notebook.output(1)
    button(view, "Start decoding").click()
    picture(view, "ribbon", "2 in flight")
    picture(view, "accepted", "drafts a step")
    for label, option, text in (
        ("plan", "cuda", "cuda None 4"),
        ("side streams", "1", "cuda 1 4"),
        ("queue policy", "refcount", "4 refcount"),
        ("side streams", "as the plan says", "cuda None 4"),
        ("prompt tokens", "16", "prompt_tokens=16"),
    ):
        chosen(view, label).select_option(option)
        expect(chosen(view, label)).to_be_enabled(timeout=PATIENCE_MS)
        sees(notebook, text)
    slider = view.get_by_role("slider").first
    slider.press("ArrowRight")
    expect(button(view, "Stop decoding")).to_be_visible(timeout=PATIENCE_MS)
    sees(notebook, "concurrency=3")
    for label in ("priority", "runtime", "model", "speculation"):
        expect(view.get_by_label(label, exact=True)).to_be_disabled()
    wait_for_text(view, "priority, graphs: the CPU device has none")
    wait_for_text(view, "chosen when the engine is opened")
    expect(view.get_by_role("checkbox")).to_be_disabled()


def test_queues_say_that_they_restart_before_they_do(notebook: NotebookPage) -> None:
    view = notebook.output(1)
    button(view, "2").click()
    assert "restarts the worker" in view.inner_text()
    sees(notebook, "cuda None 4")
    button(view, "Apply, restart").click()
    expect(view.get_by_role("button", name="In force")).to_be_visible(timeout=PATIENCE_MS)
    sees(notebook, "cuda None 2")
    picture(view, "ribbon", "2 hardware queues")


def test_the_other_dashboard_shows_what_this_one_did(notebook: NotebookPage) -> None:
    first, second = notebook.output(1), notebook.output(2)
    expect(chosen(second, "plan")).to_have_value("cuda")
    expect(button(second, "Stop decoding")).to_be_visible()
    chosen(second, "plan").select_option("hip")
    expect(chosen(first, "plan")).to_have_value("hip", timeout=PATIENCE_MS)
    button(second, "Stop decoding").click()
    expect(button(first, "Start decoding")).to_be_visible(timeout=PATIENCE_MS)
    button(first, "Start decoding").click()
    expect(button(second, "Stop decoding")).to_be_visible(timeout=PATIENCE_MS)


def test_the_plan_editor_by_drag_by_key_and_by_button(notebook: NotebookPage) -> None:
    view, page = notebook.output(1), notebook.page
    button(view, "Edit plan").click()
    title = view.locator(".plan .title")
    chip = view.locator("[data-op='moe.shared']")
    chip.scroll_into_view_if_needed()
    box, lane = chip.bounding_box(), view.locator(".plan-lane").nth(2).bounding_box()
    assert box is not None
    assert lane is not None
    page.mouse.move(box["x"] + 20, box["y"] + 8)
    page.mouse.down()
    page.mouse.move(lane["x"] + 40, box["y"] + 8, steps=5)
    page.mouse.up()
    wait_for_text(view.locator(".plan-aside"), "moe.shared: main to side1")
    view.locator("[data-op='moe.shared']").press("Home")
    wait_for_text(view.locator(".plan-aside"), "none: as hip")
    view.locator("[data-op='attention']").focus()
    page.keyboard.press("ArrowDown")
    expect(view.locator("[data-op='inverse_rope']")).to_be_focused()
    toggle = view.get_by_role("button", name="apply at once")
    toggle.click()
    view.locator("[data-op='q_b']").press("ArrowRight")
    wait_for_text(title, "not applied yet")
    sees(notebook, "hip None")
    view.get_by_role("button", name="Apply:").click()
    wait_for_text(view.locator(".plan-aside"), "q_b: main to side0")
    sees(notebook, "hip.")
    view.get_by_role("button", name="Undo:").click()
    view.get_by_role("button", name="Reset:").or_(view.get_by_role("button", name="Apply:")).first.wait_for()
    view.get_by_label("layers").select_option("swa")
    expect(view.locator("[data-op='compressor.gemm']")).to_have_count(0, timeout=PATIENCE_MS)
    toggle.click()
    view.get_by_label("against").select_option("off")
    view.get_by_role("button", name="Reset:").click()
    wait_for_text(title, "Plan off")
    button(view, "Edit plan").click()


def test_freeze_pin_and_theme(notebook: NotebookPage) -> None:
    view = notebook.output(1)
    picture(view, "ribbon", "off")
    button(view, "Pin as baseline").click()
    picture(view, "busy", "pinned, off")
    button(view, "Freeze").click()
    button(view, "Freeze").click()
    view.get_by_label("theme").select_option("dark")
    expect(picture(view, "busy", "Busy").locator(".main-svg").first).to_have_css("background-color", "rgb(20, 24, 31)")
    view.get_by_label("theme").select_option("auto")
    for dark, color in ((True, "rgb(20, 24, 31)"), (False, "rgb(255, 255, 255)")):
        notebook.theme(dark=dark)
        drawn = picture(view, "busy", "Busy").locator(".main-svg").first
        expect(drawn).to_have_css("background-color", color, timeout=PATIENCE_MS)
    button(view, "Pin as baseline").click()
    chosen(view, "rows read in").select_option("layer 1 (CSA)")
    picture(view, "pool", "rows that request")


def test_pictures_keep_the_width_of_the_page(notebook: NotebookPage) -> None:
    view = notebook.output(1)
    for width in (900, 1366):
        notebook.page.set_viewport_size({"width": width, "height": 900})
        cell = picture(view, "ribbon", "Time per output token")
        notebook.page.wait_for_function(
            "el => Math.abs(el.querySelector('.js-plotly-plot')._fullLayout.width - el.clientWidth) < 2",
            arg=cell.element_handle(),
            timeout=PATIENCE_MS,
        )


@pytest.mark.parametrize("form", ["PNG", "SVG", "HTML", "CSV", "trace"])
def test_exports_arrive(notebook: NotebookPage, form: str) -> None:
    view = notebook.output(1)
    picture(view, "ribbon", "in flight")
    form_of = view.locator("select").filter(has=notebook.page.locator("option", has_text="trace"))
    form_of.select_option(form)
    end = ".json" if form == "trace" else f".{form.lower()}"  # pictures are a file each and may still come
    with notebook.page.expect_download(lambda d: d.suggested_filename.endswith(end), timeout=PATIENCE_MS) as download:
        button(view, "Export").click()
    data = Path(download.value.path()).read_bytes()
    if form == "PNG":
        assert data.startswith(b"\x89PNG")
    elif form == "CSV":
        assert next(csv.DictReader(io.StringIO(data.decode())))
    elif form == "trace":
        assert json.loads(data)["traceEvents"]
    else:
        assert (b"<svg" if form == "SVG" else b"<!doctype html>") in data[:2000]


def test_a_killed_worker_is_a_message_and_a_button(notebook: NotebookPage) -> None:
    view = notebook.output(1)
    notebook.rewrite(3, "os.kill(client.pid, signal.SIGKILL)")
    notebook.run(3)
    wait_for_text(view.get_by_role("alert"), "ended unexpectedly")
    wait_for_text(notebook.output(2).get_by_role("alert"), "ended unexpectedly")
    button(view, "Restart the worker").click()
    expect(button(view, "Start decoding")).to_be_visible(timeout=PATIENCE_MS)
    button(notebook.output(2), "Start decoding").click()
    picture(view, "ribbon", "in flight")


def test_running_the_cell_again_closes_the_old_view(notebook: NotebookPage) -> None:
    notebook.rewrite(4, "old = first")
    notebook.run(4)
    notebook.run(1)
    notebook.rewrite(4, "print(old is first, old._pump._closed, first._pump._closed)")
    notebook.run(4)
    wait_for_text(notebook.output(4), "False True False")
    picture(notebook.output(1), "ribbon", "Time per output token")


def test_a_kernel_restart_leaves_a_notebook_that_works(notebook: NotebookPage) -> None:
    notebook.restart()
    for cell in (0, 1):
        notebook.run(cell)
    button(notebook.output(1), "Start decoding").click()
    picture(notebook.output(1), "ribbon", "in flight")
    assert notebook.problems == []


def test_every_control_of_the_queue_lab(jupyter: Server, page: Page) -> None:
    notebook = NotebookPage(
        page,
        jupyter.notebook(
            "queues.ipynb", ["import dsv4lab as lab\nview = lab.queue_lab(layers=2)\nview", "print(view.setting)"]
        ),
    )
    notebook.run(0)
    view = notebook.output(0)
    title = view.locator(".pk .title")
    for label, option, text in (
        ("device", "mi300x", "mi300x, rocm-10"),
        ("runtime", "rocm-7.2", "rocm-7.2"),
        ("plan", "cuda", "plan cuda"),
        ("model", "flash", "flash, 2 layers"),
        ("device", "h200", "h200, cuda-13"),
    ):
        view.get_by_label(label, exact=True).select_option(option)
        wait_for_text(title, text)
    for label, option in (
        ("side streams", "1"),
        ("queue policy", "round_robin"),
        ("ISL", "1024"),
    ):
        view.get_by_label(label, exact=True).select_option(option)
    view.get_by_label("assumed", exact=True).select_option(index=1)  # which values are assumed depends on the device
    for place in range(view.get_by_role("slider").count() - 1):
        view.get_by_role("slider").nth(place).press("ArrowRight")
    for box in view.get_by_role("checkbox").all():
        box.click()
    view.get_by_label("priority", exact=True).select_option("high")
    notebook.run(1)
    wait_for_text(
        notebook.output(1),
        "side_streams=1, policy='round_robin', barrier_elision=True, side_priority=-1, graphs=False, model='flash'",
    )
    wait_for_text(title, "3 layers")
    view.get_by_role("button", name="Play:").click()
    wait_for_text(view.get_by_role("button", name="Play:").or_(view.get_by_role("button", name="Pause")), "Pause")
    view.get_by_role("button", name="Back:").click()
    view.locator(".pk-chart").click(position={"x": 200, "y": 5})
    view.locator(".pk-stage").press("Home")
    wait_for_text(view.locator(".pk-clock"), "event 1 of")
    picture(view, "sweep", "fastest from")
    picture(view, "leans", "leans on")
    with page.expect_download(timeout=PATIENCE_MS) as download:
        view.get_by_role("button", name="Export page").click()
    assert b"pk-stage" in Path(download.value.path()).read_bytes()
    assert view.get_by_role("alert").all_inner_texts() in ([], [""])
    assert notebook.problems == []


def test_every_control_of_the_tuning_board(jupyter: Server, page: Page) -> None:
    session = Session(jupyter.folder / "tuned")
    session.explore()
    notebook = NotebookPage(page, jupyter.notebook("tuned.ipynb", ["import dsv4lab as lab\nlab.tuning_board('tuned')"]))
    notebook.run(0)
    view = notebook.output(0)
    first = view.locator("tbody tr").first
    for column in ("TPOT ms", "vs off"):
        view.locator(f"[data-column='{column}']").click()
        expect(view.locator(f"th:has([data-column='{column}'])")).to_have_attribute("aria-sort", "ascending")
    expect(first).to_contain_text("hip")
    first.click()
    wait_for_text(view, "--plan hip")
    cell = picture(view, "lines", "a line per setting")
    cell.locator("path.point").first.click(force=True)
    picture(view, "heat", "the best is framed")
    view.get_by_role("button", name="Measure again").click()
    wait_for_text(view.get_by_role("status"), "TPOT")
    wait_for_text(view.get_by_role("status"), "recorded")
    session.confirm()
    session.finish()
    wait_for_text(view, "Use hip on 4 hardware queues on this CPU")
    session.store.close()
    view.locator("select").first.select_option("CSV")
    with page.expect_download(timeout=PATIENCE_MS) as download:
        view.get_by_role("button", name="Export").click()
    assert len(list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text(encoding="utf-8"))))) == 12
    assert notebook.problems == []
