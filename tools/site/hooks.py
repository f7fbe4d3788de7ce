"""What the docs site has beyond Markdown: pictures drawn at build time, rendered notebooks, the commands' page."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import commands  # the modules beside this one: mkdocs puts their folder on the path
import gallery
import pictures
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
LOG = logging.getLogger("mkdocs.hooks.dsv4lab")
PROJECT_PAGES = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
PLOTLY = "assets/plotly.min.js"
TEMPLATES = "assets/templates.js"

_PICTURE = re.compile(r"^<!-- picture: (?P<name>[\w-]+)(?: \| (?P<caption>.+))? -->$", re.MULTILINE)
_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc):<code>~?(?P<path>[\w.]+)</code>")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is made and not written: notebooks' pages, the command line's, project pages, scripts."""
    made: dict[str, str | bytes] = {
        page: (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "](")
        for page, source in PROJECT_PAGES.items()
    }
    made["cli.md"] = commands.page()
    made |= gallery.pages(ROOT, LOG.warning)
    made[PLOTLY] = pictures.plotly_source()
    made[TEMPLATES] = f"window.LAB_TEMPLATES = {json.dumps(pictures.templates())};\n"
    for name, content in made.items():
        files.append(File.generated(config, name, content=content, inclusion=InclusionLevel.INCLUDED))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put pictures where comments name them."""

    def drawn(found: re.Match[str]) -> str:
        figure = pictures.PICTURES.get(found["name"])
        if figure is None:
            LOG.warning("%s: there is no picture %r", page.file.src_uri, found["name"])
            return ""
        return pictures.block(figure(), found["caption"] or "")

    return _PICTURE.sub(drawn, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Docstrings' roles (``:class:`X```) become plain code."""
    return _ROLE.sub(lambda found: f"<code>{found['path'].removeprefix('dsv4lab.')}</code>", html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Nothing on a page may be fetched from elsewhere."""
    for address in outside(output):
        LOG.warning("%s: fetches %s", page.file.src_uri, address)
    return output


def on_post_build(config: MkDocsConfig) -> None:
    """The search index as a script too: a page opened as a file loads that one, and stops without it."""
    index = Path(config.site_dir) / "search" / "search_index.json"
    index.with_suffix(".js").write_text(f"var __index = {index.read_text(encoding='utf-8')}", encoding="utf-8")


def outside(html: str) -> list[str]:
    """Addresses of other machines that a browser fetches to show ``html``; links to follow are none."""
    tags = re.findall(r"<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*>|<link\b[^>]*>", html)
    found: list[Any] = []
    for tag in tags:
        if tag.startswith("<link") and re.search(r'rel="?(canonical|next|prev|alternate)', tag):
            continue
        found += re.findall(r'(?:src|href|data)="?((?:https?:)?//[^" >]+)', tag)
    return found
