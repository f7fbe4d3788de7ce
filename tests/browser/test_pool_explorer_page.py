"""The pool explorer in a real browser: as a saved page, and live on an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page

import dsv4lab as lab
from dsv4lab.kv.allocator import Allocator, Lease
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.snapshot import pool_snapshot, query_reads
from dsv4lab.timeline.records import PoolSnapshot
from dsv4lab.widgets.pool_session import PoolSession
from tests.browser.jupyter import PATIENCE_MS, NotebookPage, Server

pytestmark = pytest.mark.browser

RATIOS = (0, 4, 128)
GEOMETRY = Geometry(
    window=128, ring_rows=131, slots=6, pages=20, head_dim=512, index_head_dim=128, compress_ratios=RATIOS
)


def recorded() -> tuple[list[PoolSnapshot], Lease]:
    """Three snapshots of a pool in which request 9 grows and request 1 goes."""
    allocator = Allocator(GEOMETRY)
    first, second = allocator.admit(1, 700), allocator.admit(9, 1500)
    out = []
    for step, (one, nine) in enumerate(((700, 1000), (700, 1200), (None, 1450))):
        if one is None:
            allocator.release(first)
        lengths = {9: nine} | ({1: one} if one else {})
        out.append(pool_snapshot(GEOMETRY, allocator, lengths, step, dtype_bytes=2))
    return out, second


def opened(page: Page, path: Path, snapshots: list[PoolSnapshot]) -> Locator:
    """A saved page whose stand-in for the kernel can be asked as ``window.model``."""
    text = lab.pool_explorer(snapshots).save_html(path).read_text(encoding="utf-8")
    page.set_default_timeout(PATIENCE_MS)
    path.write_text(text.replace("const model = new", "const model = window.model = new"), encoding="utf-8")
    page.goto(path.as_uri())
    return shown(page)


def shown(page: Page) -> Locator:
    view = page.locator(".dsv4-pool[data-read]")
    view.wait_for()
    return view


def until(view: Locator, **data: object) -> None:
    """Wait until the view says so of itself."""
    wanted = {key: str(value) for key, value in data.items()}
    script = "([el, wanted]) => Object.entries(wanted).every(([key, value]) => el.dataset[key] === value)"
    view.page.wait_for_function(script, arg=[view.element_handle(), wanted])


def plain(page: Page, kind: str, question: dict[str, Any]) -> Any:
    script = """([kind, question]) => JSON.parse(JSON.stringify(window.model[kind](question),
      (key, value) => (ArrayBuffer.isView(value) ? Array.from(value) : value)))"""
    return page.evaluate(script, [kind, question])


def tip(view: Locator, canvas: str, presses: list[str]) -> str:
    """What the tooltip says after these keys on a map."""
    place = view.get_by_role("img", name=canvas, exact=False)
    for key in presses:
        place.press(key)
    text = view.page.locator(".dsv4-tip:not([hidden])")
    text.wait_for()
    return str(text.inner_text())


def test_scrub_pick_and_walk(page: Page, tmp_path: Path) -> None:
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.set_default_timeout(PATIENCE_MS)
    snapshots, lease = recorded()
    view = opened(page, tmp_path / "pool.html", snapshots)
    until(view, step=2, request=9, position=1449, ratio=4, window=128, read=362)
    view.get_by_role("button", name="snapshot before").click()
    until(view, step=1, position=1199, read=300)
    view.get_by_label("layer kind").select_option("128")
    until(view, ratio=128, read=9)
    view.get_by_label("position of the query token").fill("300")
    until(view, position=300, read=2, window=128)
    expected = query_reads(GEOMETRY, lease, 300, 2)
    for ratio, layer in ((0, 0), (4, 1), (128, 2)):
        reads = plain(page, "reads", {"at": 1, "request": 9, "position": 300, "ratio": ratio})
        truth = query_reads(GEOMETRY, lease, 300, layer)
        assert (tuple(reads["window"]), tuple(reads["rows"])) == (truth.window_rows, truth.compressed_rows)
    text = tip(view, "compressed entries", ["ArrowRight", "ArrowRight"])
    assert f"pool row {expected.compressed_rows[1]:,}" in text
    assert "read by the query" in text
    view.get_by_label("request", exact=True).select_option("1")
    until(view, request=1, position=699, read=5)
    for color in ("age", "layer kind", "last reader", "owner"):
        view.get_by_label("colour").select_option(color)
    assert problems == []


def test_the_saved_page_marks_what_the_kernel_would(page: Page, tmp_path: Path) -> None:
    snapshots, _ = recorded()
    opened(page, tmp_path / "pool.html", snapshots)
    session = PoolSession(snapshots)
    for ratio in RATIOS:
        question = {"at": 1, "ratio": ratio, "request": 9, "position": 777}
        expected, got = session.answer({"kind": "pool", **question}), plain(page, "pool", question)
        for part in ("rings", "pages"):
            if expected[part] is None:
                assert got[part] is None
                continue
            for name, values in expected[part].items():
                assert got[part][name] == (values.tolist() if hasattr(values, "tolist") else values), (part, name)


@pytest.mark.slow
def test_live_on_an_engine(page: Page, jupyter: Server) -> None:
    cells = [
        "import dsv4lab as lab\nclient = lab.open('tiny')\nclient.start_load(2, prompt_tokens=700)",
        "lab.pool_explorer(client)",
        "client.close()",
    ]
    notebook = NotebookPage(page, jupyter.notebook("pool.ipynb", cells))
    notebook.run(0)
    notebook.run(1)
    view = page.locator(".dsv4-pool")
    view.wait_for()
    view.get_by_role("button", name="follow:").click()
    page.wait_for_function("() => Number(document.querySelector('.dsv4-pool').dataset.read) > 0")
    step = view.get_attribute("data-step")
    page.wait_for_function("([el, was]) => el.dataset.step !== was", arg=[view.element_handle(), step])
    view.get_by_role("button", name="follow:").click()
    layer = view.get_by_label("next read in").locator("option", has_text="CSA").first.get_attribute("value")
    view.get_by_label("next read in").select_option(layer)
    page.wait_for_function("() => document.querySelector('.dsv4-pool').dataset.exact === 'true'")
    assert view.get_attribute("data-ratio") == "4"
    notebook.run(2)
    view.get_by_role("button", name="snapshot:").click()
    view.locator(".note").get_by_text("closed", exact=False).wait_for()
    assert notebook.problems == []
