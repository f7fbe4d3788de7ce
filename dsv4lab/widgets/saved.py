"""A view as one HTML file: its front end, its data, and a stand-in for the kernel that answers from the data."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsv4lab.widgets import front, wire

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>body {{ margin: 12px; color-scheme: light dark; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #14181f; }} }}
{style}</style></head><body><main id="view"></main>
<script type="application/json" id="traits">{traits}</script>
<script type="text/plain" id="data">{data}</script>
<script type="module">
{module}
const raw = Uint8Array.from(atob(document.getElementById("data").textContent), (c) => c.charCodeAt(0));
const unpacked = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
const bytesOf = await new Response(unpacked).arrayBuffer();
const headLength = new DataView(bytesOf).getUint32(0, true);
const head = JSON.parse(new TextDecoder().decode(new Uint8Array(bytesOf, 4, headLength)));
let at = 4 + headLength;
const buffers = head.sizes.map((size) => {{ const view = new DataView(bytesOf, at, size); at += size; return view; }});
const traits = JSON.parse(document.getElementById("traits").textContent);
const model = new LocalModel(traits, arrays(head.content, buffers));
front.render({{ model, el: document.getElementById("view") }});
</script></body></html>
"""

_PARTS = re.compile(
    r"<title>(?P<title>.*?)</title>.*?"
    r'<script type="application/json" id="traits">(?P<traits>.*?)</script>\s*'
    r'<script type="text/plain" id="data">(?P<data>.*?)</script>',
    re.DOTALL,
)


def saved_page(
    title: str, traits: Mapping[str, Any], content: Any, sources: tuple[str, ...], styles: tuple[str, ...]
) -> str:
    """The page as text. ``sources`` define ``LocalModel`` and end in a module with a default export of ``render``.

    ``content`` is plain data with arrays in it; it travels compressed. Nothing is fetched.
    """
    data = base64.b64encode(_packed(content)).decode()
    return assembled(SavedView(html.escape(title), _embedded(traits), data), sources, styles)


@dataclass(frozen=True, slots=True)
class SavedView:
    """A page without its front end: the texts of its title, its traits and its data."""

    title: str
    traits: str
    data: str


def assembled(view: SavedView, sources: tuple[str, ...], styles: tuple[str, ...]) -> str:
    """The page of ``view`` with the front end as it is now; see :func:`saved_page`."""
    module = front.module(*sources).replace("export default {", "const front = {")
    return _PAGE.format(title=view.title, style=front.style(*styles), traits=view.traits, data=view.data, module=module)


def taken_apart(page: str) -> SavedView:
    """The inverse of :func:`assembled`. Raises ``ValueError`` for what is no such page."""
    found = _PARTS.search(page)
    if found is None:
        raise ValueError("this is no page of saved_page")
    return SavedView(found["title"], found["traits"], found["data"])


def _packed(content: Any) -> bytes:
    buffers: list[bytes] = []
    plain = wire.encoded(content, buffers)
    head = json.dumps({"content": plain, "sizes": [len(b) for b in buffers]}).encode()
    return gzip.compress(b"".join((len(head).to_bytes(4, "little"), head, *buffers)), compresslevel=6, mtime=0)


def _embedded(value: Any) -> str:
    return json.dumps(value).replace("<", "\\u003c")
