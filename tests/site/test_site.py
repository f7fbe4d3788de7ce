"""The docs site: it builds with warnings as errors, fetches nothing, and every link on it leads somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

pytest.importorskip("mkdocs", reason="the docs extra is not installed")

ROOT = Path(__file__).resolve().parents[2]
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
MOST_PAGE_BYTES = 900_000
PATIENCE_MS = 180_000
DRAWN = "document.querySelectorAll('.lab-figure .js-plotly-plot').length"
PAPER = "document.querySelector('.js-plotly-plot')._fullLayout.paper_bgcolor"


class Links(HTMLParser):
    """Addresses that a page fetches or links to, and the names that links to it may use."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: set[str] = set()
        self.linked: set[str] = set()
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.names |= {value for key in ("id", "name") if (value := given.get(key))}
        if address := given.get(FETCHED.get(tag, "")):
            if tag != "link" or given.get("rel") not in ("canonical", "next", "prev", "alternate"):
                self.fetched.add(address)
        elif tag == "a" and (address := given.get("href")):
            self.linked.add(address)


def build(site: Path) -> None:
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "kernels")))
    environ = {**os.environ, "PYTHONPATH": paths, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(site)]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "Building documentation" in said  # a quiet build counts no warnings


def dangling(page: Path, links: Links, pages: dict[Path, Links]) -> list[str]:
    """What ``page`` points at and is not there."""
    bad = []
    for address in sorted(links.fetched | links.linked):
        where, anchor = urldefrag(address)
        if re.match(r"[a-z]+:", address):
            continue
        target = (page.parent / unquote(where)).resolve() if where else page
        target = target / "index.html" if target.is_dir() else target
        if not target.is_file() or (anchor and target in pages and unquote(anchor) not in pages[target].names):
            bad.append(f"{page.name}: {address}")
    return bad


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    build(folder)
    return folder


def test_builds_without_a_warning_fetches_nothing_and_links_hold(site: Path) -> None:
    pages = {path: Links(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    assert len(pages) > 30
    outside = {a for links in pages.values() for a in links.fetched if re.match(r"(https?:)?//", a)}
    assert outside == set()
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//[^)]*", styles) == []
    assert [
        line for page, links in pages.items() if page.name != "404.html" for line in dangling(page, links, pages)
    ] == []
    heavy = {page.name: size for page in pages if (size := page.stat().st_size) > MOST_PAGE_BYTES}
    assert heavy == {}
    assert len([page for page in pages if "lab-figure" in page.read_text(encoding="utf-8")]) > 8


@pytest.mark.browser
def test_pictures_are_drawn_and_follow_the_theme(site: Path, browser: Any) -> None:
    page = browser.new_page(color_scheme="light")
    page.set_default_timeout(PATIENCE_MS)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((site / "concepts" / "unified-pool.html").as_uri())
    page.wait_for_function(f"{DRAWN} === 4")
    light = page.evaluate(PAPER)
    page.locator("label[title='Switch to dark']:visible").click()
    page.wait_for_function(f"({PAPER}) !== {light!r}")
    page.close()
    assert errors == []
