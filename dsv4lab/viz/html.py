"""One self-contained HTML page of text and figures that follows the reader's light or dark setting."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.io import to_html
from plotly.offline import get_plotlyjs

from dsv4lab.viz import theme as themes

_STYLE = """
:root { color-scheme: light dark; --paper: %(paper_light)s; --ink: %(ink_light)s; --quiet: #5b6673;
  --line: rgba(140,146,155,.35); --soft: rgba(140,146,155,.10); }
@media (prefers-color-scheme: dark) { :root { --paper: %(paper_dark)s; --ink: %(ink_dark)s; --quiet: #a3adb9; } }
body { margin: 0 auto; padding: 24px 28px 48px; max-width: 1180px; background: var(--paper); color: var(--ink);
  font: 14px/1.5 Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; }
h2 { font-size: 17px; margin: 34px 0 8px; }
p { margin: 8px 0; max-width: 86ch; }
figure { margin: 18px 0; }
figcaption { color: var(--quiet); font-size: 12.5px; max-width: 86ch; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 10px 0; display: block;
  overflow-x: auto; }
th, td { padding: 4px 12px; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { color: var(--quiet); font-weight: 600; }
td:first-child, th:first-child { text-align: left; }
tr.best td { font-weight: 650; background: var(--soft); }
tr.control td { color: var(--quiet); }
code, pre { font: 12.5px 'JetBrains Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace; background: var(--soft);
  border-radius: 4px; }
code { padding: 1px 5px; }
pre { padding: 10px 14px; overflow-x: auto; }
.quiet { color: var(--quiet); }
"""

_SWITCH = """
const dark = window.matchMedia('(prefers-color-scheme: dark)');
function dress() {
  document.querySelectorAll('.plotly-graph-div').forEach(div =>
    Plotly.relayout(div, {template: dark.matches ? DSV4_TEMPLATES.dark : DSV4_TEMPLATES.light}));
}
dark.addEventListener('change', dress);
window.addEventListener('load', dress);
"""


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of trusted HTML; text that came from records must be escaped first."""

    markup: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure with a plain-text caption, which is escaped here."""

    figure: go.Figure
    caption: str = ""


def html_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], classes: Sequence[str] = (), css: str = "plain"
) -> str:
    """A table whose cells are escaped; ``classes`` mark rows, ``css`` the table."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = []
    for at, row in enumerate(rows):
        mark = f' class="{classes[at]}"' if classes and classes[at] else ""
        body.append(f"<tr{mark}>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>")
    return f'<table class="{css}"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'


def pictures_page(title: str, blocks: Sequence[Text | Picture]) -> str:
    """The page as text: plotly.js is inside, nothing is fetched. ``title`` is plain text."""
    names = {
        f"{key}_{theme}": pick(theme)
        for theme in themes.THEMES
        for key, pick in (("paper", themes.paper_color), ("ink", themes.ink_color))
    }
    templates = {theme: themes.template(theme).to_plotly_json() for theme in themes.THEMES}
    head = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title><style>{_STYLE % names}</style>",
        f"<script>{get_plotlyjs()}</script>",
        f"<script>const DSV4_TEMPLATES = {json.dumps(templates)};{_SWITCH}</script>",
        f"</head><body><h1>{html.escape(title)}</h1>",
    ]
    return "\n".join([*head, *(_markup(block) for block in blocks), "</body></html>", ""])


def _markup(block: Text | Picture) -> str:
    if isinstance(block, Text):
        return block.markup
    config = {"displaylogo": False, "responsive": True, "modeBarButtonsToRemove": list(themes.UNUSED_BUTTONS)}
    div = to_html(block.figure, include_plotlyjs=False, full_html=False, config=config)
    caption = f"<figcaption>{html.escape(block.caption)}</figcaption>" if block.caption else ""
    return f"<figure>{div}{caption}</figure>"
