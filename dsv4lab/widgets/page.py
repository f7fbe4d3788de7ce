"""A view as one HTML file for people without Python: plotly pictures, and front ends that run on their last state."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

import anywidget

from dsv4lab.viz.html import Picture, Text, pictures_page
from dsv4lab.viz.sheet import Sheet
from dsv4lab.widgets import front

_RUN = """{
const source = %(source)s, state = %(state)s;
const model = { get: (key) => state[key], set: (key, value) => { state[key] = value; },
  save_changes() {}, on() {}, off() {} };
const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
import(url).then((m) => m.default.render({ model, el: document.getElementById(%(id)s) }))
  .finally(() => URL.revokeObjectURL(url));
}"""


def script_json(value: Any) -> str:
    """``value`` as JSON that may stand inside a script element."""
    return json.dumps(value).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def live_block(widget: anywidget.AnyWidget, css: Sequence[str] = ()) -> Text:
    """``widget`` as it is, run by its own front end: what it does without Python it does here too.

    Its model has no ``send``; a front end takes that to mean that nobody answers. ``css`` names its style sheets.
    """
    names = [
        n for n in widget.trait_names(sync=True) if not n.startswith("_") and n not in ("layout", "tabbable", "tooltip")
    ]
    state = {name: getattr(widget, name) for name in names}
    place = f"dsv4-{widget.model_id[:12]}"
    run = _RUN % {"source": script_json(str(widget._esm)), "state": script_json(state), "id": script_json(place)}
    style = f"<style>{front.style(*css)}</style>"
    return Text(f'{style}<div id="{place}"></div><script>{run}</script>')


def sheet_blocks(sheets: Mapping[str, Sheet]) -> list[Text | Picture]:
    """Pictures in the order of ``sheets``."""
    return [Picture(sheet.figure("light")) for sheet in sheets.values()]


def facts_block(facts: Mapping[str, object]) -> Text:
    """Names and values in a line; both are plain text."""
    parts = [f"{html.escape(name)} <b>{html.escape(str(value))}</b>" for name, value in facts.items()]
    line = " \N{MIDDLE DOT} ".join(parts)
    return Text(f'<p class="quiet">{line}</p>')


def page_bytes(title: str, blocks: Sequence[Text | Picture]) -> bytes:
    """The page. ``title`` is plain text."""
    return pictures_page(title, blocks).encode()
