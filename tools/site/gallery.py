"""Pages of the notebooks: their cells, with the outputs that ``record.py`` wrote to ``docs/gallery/NAME.json``."""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dsv4lab.widgets import pool_page, trace_page
from dsv4lab.widgets.saved import SavedView, assembled

NOTEBOOKS = Path("notebooks")
RECORDS = Path("docs") / "gallery"
SCHEMA = 1
_VIEW_HEIGHT = 720

Warn = Callable[[str], object]


def read_cells(path: Path) -> list[dict[str, Any]]:
    """The cells of a notebook on disk."""
    cells: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return cells


def source_of(cell: dict[str, Any]) -> str:
    """A cell's text, which the format keeps as one string or as lines."""
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def fingerprint(cells: Sequence[dict[str, Any]]) -> str:
    """Of the code that was recorded: another one than the notebook's now means that the record is out of date."""
    code = [source_of(cell) for cell in cells if cell["cell_type"] == "code"]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()


EXPLORERS = {
    "PoolExplorer": (pool_page.SAVED_SOURCES, pool_page.STYLES),
    "TraceExplorer": (trace_page.SAVED_SOURCES, trace_page.STYLES),
}
"""Views that are recorded as their data; the front end joins them when the site is built."""


def pages(root: Path, warn: Warn) -> dict[str, str]:
    """Every notebook's page and the gallery's as Markdown, and the live views as HTML, by path."""
    made, tiles = {}, []
    for path in sorted((root / NOTEBOOKS).glob("*.ipynb")):
        cells = read_cells(path)
        made[f"gallery/{path.stem}.md"] = _page(path, cells, _record(root, path, cells, warn))
        title, first = _title(cells)
        tiles.append(f"<div markdown>**[{title}]({path.stem}.md)**\n\n{first}</div>")
    made["gallery/index.md"] = _INDEX.replace("TILES", "\n\n".join(tiles))
    for file in sorted((root / RECORDS / "views").glob("*.json")):
        made[f"gallery/views/{file.stem}.html"] = _live_view(json.loads(file.read_text(encoding="utf-8")))
    return made


def _live_view(record: dict[str, str]) -> str:
    return assembled(SavedView(record["title"], record["traits"], record["data"]), *EXPLORERS[record["explorer"]])


_INDEX = """# Gallery

Every notebook of the repository with what it showed when it was last recorded. Pictures are live: hover, zoom, switch
between light and dark. `make lab` opens the tour, `dsv4lab lab notebooks/NAME.ipynb` any other one.

<div class="lab-tiles" markdown>

TILES

</div>
"""


def _title(cells: Sequence[dict[str, Any]]) -> tuple[str, str]:
    heading, _, rest = source_of(cells[0]).partition("\n")
    return heading.removeprefix("# "), rest.strip().split("\n\n")[0].split(". ")[0].rstrip(".") + "."


def _record(root: Path, path: Path, cells: Sequence[dict[str, Any]], warn: Warn) -> dict[str, Any] | None:
    file = root / RECORDS / f"{path.stem}.json"
    if not file.is_file():
        warn(f"{path.name} has no record in {RECORDS}: make gallery")
        return None
    record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if record["schema"] != SCHEMA or record["code"] != fingerprint(cells):
        warn(f"{path.name} has changed since it was recorded: make gallery ARGS={path.stem}")
        return None
    return record


def _page(path: Path, cells: Sequence[dict[str, Any]], record: dict[str, Any] | None) -> str:
    outputs = record["outputs"] if record else {}
    parts = []
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "markdown":
            parts.append(source_of(cell))
            continue
        parts.append(f"```python\n{_shown(cell, record)}\n```")
        parts += [_output(output, number) for output in outputs.get(str(number), [])]
    parts.append(_colophon(path, record))
    return "\n\n".join(parts) + "\n"


def _shown(cell: dict[str, Any], record: dict[str, Any] | None) -> str:
    """The parameters as they were recorded; any other cell as it is."""
    source = source_of(cell)
    if record is None or "parameters" not in cell["metadata"].get("tags", []):
        return source
    lines = re.findall(r"^(\w+) = (.+)$", source, re.MULTILINE)
    return "\n".join(f"{name} = {record['parameters'].get(name, value)}" for name, value in lines)


def _output(output: dict[str, Any], number: int) -> str:
    if "figure" in output:
        plain = output["figure"]
        text = json.dumps(plain, separators=(",", ":")).replace("</", "<\\/")
        height = plain["layout"].get("height", 360)
        return (
            f'<figure class="lab-figure"><div class="lab-figure__plot" style="height:{height}px"></div>'
            f'<script type="application/json">{text}</script></figure>'
        )
    if "html" in output:
        return f'<div class="lab-output">{_one_line(output["html"])}</div>'
    if "view" in output:
        return _view(output)
    return f'<div class="lab-output"><pre>{html.escape(output["text"].rstrip())}</pre></div>'


def _view(output: dict[str, Any]) -> str:
    name, title = output["view"], html.escape(output["title"], quote=True)
    if name.endswith(".html"):
        height = output.get("height", _VIEW_HEIGHT)
        return f'<iframe class="lab-view" src="views/{name}" title="{title}" loading="lazy" height="{height}"></iframe>'
    stem = name.removesuffix(".png")
    return "\n".join(f"![{title}](views/{stem}-{theme}.png#only-{theme}){{ .lab-view }}" for theme in ("light", "dark"))


def _one_line(text: str) -> str:
    """HTML without the line ends that Markdown might read."""
    return " ".join(text.split("\n"))


def _colophon(path: Path, record: dict[str, Any] | None) -> str:
    run = f"`dsv4lab lab notebooks/{path.name}` opens it."
    if record is None:
        return f'!!! note "Not recorded"\n\n    {run}'
    facts = html.escape(", ".join(f"{name} {value}" if name else value for name, value in record["machine"].items()))
    return f'!!! note "Recorded {record["date"]}"\n\n    {facts}. {run}'
