"""The trace explorer in a real browser: live in JupyterLab, and as a saved page."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

import dsv4lab as lab
from dsv4lab.timeline.timeline import Timeline
from dsv4lab.widgets.trace_session import TraceSession
from tests.browser.jupyter import PATIENCE_MS, NotebookPage, Server

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=window.owned=1></script><script>window.owned=1</script>"
MAKE = f"""
import numpy as np
import dsv4lab as lab
def made(count, gap, seed=0):
    r = np.random.default_rng(seed)
    at = np.arange(count) * gap
    names = [{HOSTILE!r}, "rms_norm", "gemm", "indexer_topk"]
    return lab.Timeline.build(
        start_ns=np.concatenate([at, at + gap // 3]) + 10**15, dur_ns=r.integers(gap // 8, gap // 2, 2 * count),
        stream=np.repeat([0, 1], count), name=np.tile(np.arange(2 * count) % 4, 1), names=names,
        streams=["main", {HOSTILE!r}], main_stream="main", step=np.tile(np.arange(count) // 10, 2),
        layer=np.tile(np.arange(count) % 5, 2),
        queued_ns=np.concatenate([at, at]) + 10**15 - 50, correlation=np.arange(2 * count))
"""


def made(count: int, gap: int, seed: int = 0) -> Timeline:
    space: dict[str, Any] = {}
    exec(MAKE, space)
    line: Timeline = space["made"](count, gap, seed)
    return line


def explorer(page: Page) -> Locator:
    """The view, once it has drawn a detailed picture and its tables."""
    view = page.locator(".dsv4-trace[data-drawn][data-table]")
    view.wait_for()
    return view


def pressed(view: Locator, key: str) -> None:
    """Press a key on the picture and wait for the picture of the window that it leads to."""
    canvas = view.locator("canvas")
    before = view.get_attribute("data-drawn")
    canvas.press(key)
    view.page.wait_for_function("([el, was]) => el.dataset.drawn !== was", arg=[view.element_handle(), before])


def window(view: Locator) -> tuple[int, int]:
    start, end = (view.get_attribute("data-window") or "0:0").split(":")
    return int(start), int(end)


def unharmed(page: Page) -> bool:
    return bool(
        page.evaluate("window.owned === undefined && !document.querySelector('.dsv4-trace img, .dsv4-trace script')")
    )


def opened(page: Page, path: Path, *traces: Timeline, **options: Any) -> Locator:
    page.set_default_timeout(PATIENCE_MS)
    lab.trace_explorer(*traces, **options).save_html(path)
    page.goto(path.as_uri())
    return explorer(page)


def test_live_in_jupyterlab(page: Page, jupyter: Server) -> None:
    notebook = NotebookPage(page, jupyter.notebook("trace.ipynb", [MAKE, "lab.trace_explorer(made(4000, 3000))", "1"]))
    notebook.run(0)
    notebook.run(1)
    view = explorer(page)
    cells = page.locator(".jp-Notebook .jp-Cell").count()
    pressed(view, "w")
    first = window(view)
    pressed(view, "d")
    second = window(view)
    assert second[0] > first[0]
    assert second[1] - second[0] == pytest.approx(first[1] - first[0], abs=2)
    for key in ("a", "b", "d", "d", "x"):  # commands of the notebook, were they to reach it
        view.locator("canvas").press(key)
    assert page.locator(".jp-Notebook .jp-Cell").count() == cells
    view.locator("canvas").press("/")
    search = view.get_by_placeholder("search names")
    search.fill("^<img")
    search.press("Enter")
    view.get_by_text("2,000 found", exact=True).wait_for()
    view.locator("canvas").press("n")
    view.get_by_text("10", exact=False).first.wait_for()
    page.wait_for_function("el => el.dataset.row", arg=view.element_handle())
    assert HOSTILE in view.locator(".part-facts").inner_text()
    notebook.theme(dark=False)  # the server keeps the theme that an earlier test chose
    expect(view).to_have_css("background-color", "rgb(255, 255, 255)")
    notebook.theme(dark=True)
    expect(view).to_have_css("background-color", "rgb(20, 24, 31)")
    notebook.theme(dark=False)
    assert unharmed(page)
    assert notebook.problems == []


def test_a_saved_page_draws_and_tells_what_the_kernel_would(page: Page, tmp_path: Path) -> None:
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.set_default_timeout(PATIENCE_MS)
    line = made(6000, 2000)
    explorer_ = lab.trace_explorer(line)
    text = explorer_.save_html(tmp_path / "trace.html").read_text(encoding="utf-8")
    (tmp_path / "trace.html").write_text(text.replace("const model = new", "const model = window.model = new"), "utf-8")
    page.goto((tmp_path / "trace.html").as_uri())
    view = explorer(page)
    session = TraceSession([("A", line)])
    session.answer({"kind": "search", "text": "norm"})
    page.evaluate("window.model.search({ text: 'norm' })")
    for start, end, columns in ((0, 12_000_000, 300), (3_000_000, 3_400_001, 40), (5_000_000, 5_004_000, 800)):
        question = {"start": start, "end": end, "columns": columns, "tracks": [0, 1], "color": "category"}
        same_view(session.answer({"kind": "view", **question}), plain(page, "view", question))
        same_table(session.answer({"kind": "table", **question}), plain(page, "table", question))
    for question in (
        {"what": "found", "side": 0, "after": 900_000},
        {"what": "layer", "layer": 3, "side": 0, "after": 5},
    ):
        assert plain(page, "next", question)["row"] == session.answer({"kind": "next", **question})["row"]
    assert unharmed(page)
    pressed(view, "w")
    assert problems == []


def plain(page: Page, kind: str, question: dict[str, Any]) -> Any:
    """What the page's stand-in for the kernel answers, with arrays as lists."""
    script = """([kind, question]) => JSON.parse(JSON.stringify(window.model[kind](question),
      (key, value) => (ArrayBuffer.isView(value) ? Array.from(value) : value)))"""
    return page.evaluate(script, [kind, question])


def same_view(expected: dict[str, Any], got: dict[str, Any]) -> None:
    assert got["columns"] == expected["columns"]
    assert sorted(got["cells"]["tracks"]) == sorted(expected["cells"]["tracks"])
    order = [got["cells"]["tracks"].index(t) for t in expected["cells"]["tracks"]]
    for name in ("count", "marked"):
        ours = np.array(got["cells"][name]).reshape(len(order), got["columns"])[order].ravel()
        np.testing.assert_array_equal(ours, expected["cells"][name])
    shares = np.array(got["cells"]["share"]).reshape(len(order), got["columns"])[order].ravel()
    assert np.abs(shares - expected["cells"]["share"].astype(int)).max(initial=0) <= 1
    rows = dict(
        zip(got["slices"]["row"], zip(got["slices"]["start"], got["slices"]["flags"], strict=True), strict=True)
    )
    theirs = expected["slices"]
    assert rows == {
        int(r): (s, f) for r, s, f in zip(theirs["row"], theirs["start"], theirs["flags"].tolist(), strict=True)
    }
    np.testing.assert_allclose(got["running"][0], expected["running"][0], atol=1e-4)
    np.testing.assert_allclose(got["busy"][0], expected["busy"][0], atol=1e-4)


def same_table(expected: dict[str, Any], got: dict[str, Any]) -> None:
    ours, theirs = got["sides"][0], expected["sides"][0]
    assert (ours["union_ns"], ours["sum_ns"]) == (theirs["union_ns"], theirs["sum_ns"])
    keys = ("events", "busy_ns", "sum_dur_ns", "hidden_ns", "role")
    assert [[t[k] for k in keys] for t in ours["tracks"]] == [[t[k] for k in keys] for t in theirs["tracks"]]
    assert {n["name"]: n["ns"] for n in ours["names"]} == {n["name"]: n["ns"] for n in theirs["names"]}


@pytest.mark.slow
def test_every_control(page: Page, tmp_path: Path) -> None:
    view = opened(page, tmp_path / "ab.html", made(3000, 2000), made(3000, 2600, 1), labels=("before", "after"))
    for label, value in (("A/B", "overlaid"), ("colour", "kernel"), ("colour", "layer"), ("A/B", "stacked")):
        before = view.get_attribute("data-drawn")
        view.get_by_label(label, exact=True).select_option(value)
        page.wait_for_function("([el, was]) => el.dataset.drawn !== was", arg=[view.element_handle(), before])
    for name in ("host", "waits", "critical path"):
        button = view.get_by_role("button", name=f"{name}:")
        was = button.get_attribute("aria-pressed")
        button.click()
        assert button.get_attribute("aria-pressed") != was
    view.get_by_text("critical path: ", exact=False).wait_for()
    for key in ("w", "s", "ArrowRight", "ArrowLeft", "]", "[", "0"):
        pressed(view, key)
    view.get_by_label("layer", exact=True).select_option("3")
    page.wait_for_function("el => el.dataset.row", arg=view.element_handle())
    row = view.get_attribute("data-row")
    view.locator("canvas").press(".")
    page.wait_for_function("([el, was]) => el.dataset.row !== was", arg=[view.element_handle(), row])
    pressed(view, "f")
    view.locator("canvas").press("?")
    view.get_by_text("Keys, once the picture has the focus").wait_for()
    view.locator("canvas").press("m")
    view.get_by_text("Busy in the measured range", exact=False).wait_for()
    view.locator("canvas").press("Escape")
    view.get_by_text("Busy in the window", exact=False).wait_for()
    search = view.get_by_placeholder("search names")
    search.fill("(")
    search.press("Enter")
    view.locator(".note").get_by_text("regular expression", exact=False).wait_for()
    page.set_viewport_size({"width": 700, "height": 900})
    page.wait_for_function("el => el.querySelector('canvas').clientWidth < 700", arg=view.element_handle())
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert unharmed(page)


@pytest.mark.slow
def test_exports(page: Page, jupyter: Server, tmp_path: Path) -> None:
    notebook = NotebookPage(page, jupyter.notebook("exports.ipynb", [MAKE, "lab.trace_explorer(made(300, 3000))"]))
    notebook.run(0)
    notebook.run(1)
    view = explorer(page)
    files: dict[str, bytes] = {}
    for kind in ("png", "svg", "csv", "html"):
        with page.expect_download() as download:
            view.get_by_label("export", exact=True).select_option(kind)
        files[kind] = Path(download.value.path()).read_bytes()
    assert files["png"].startswith(b"\x89PNG")
    assert b"<img" not in files["svg"]
    assert files["svg"].count(b"<rect") > 300
    assert len(list(csv.DictReader(io.StringIO(files["csv"].decode())))) == 600
    (tmp_path / "saved.html").write_bytes(files["html"])
    page.goto((tmp_path / "saved.html").as_uri())
    explorer(page)
    assert unharmed(page)


@pytest.mark.slow
def test_run_again_two_views_and_a_restarted_kernel(page: Page, jupyter: Server) -> None:
    cells = [MAKE, "view = lab.trace_explorer(made(4000, 3000))\nview", "view"]
    notebook = NotebookPage(page, jupyter.notebook("again.ipynb", cells))
    for cell in (0, 1, 2, 1):
        notebook.run(cell)
    page.wait_for_function("document.querySelectorAll('.dsv4-trace[data-drawn][data-table]').length === 2")
    first, second = (page.locator(".dsv4-trace").nth(at) for at in (0, 1))
    before = second.get_attribute("data-window")
    pressed(first, "w")
    assert second.get_attribute("data-window") == before
    pressed(second, "d")
    page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    notebook.wait_for_kernel()
    first.locator("canvas").press("w")
    first.get_by_text("no answer from the kernel", exact=False).wait_for()
    for cell in (0, 1):
        notebook.run(cell)
    page.wait_for_function("() => document.querySelector('.dsv4-trace')?.dataset.drawn === '1'")  # the new one
    pressed(page.locator(".dsv4-trace").first, "w")
    assert notebook.problems == []
