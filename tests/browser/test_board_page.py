"""The front end of the board in a real browser, with a stand-in for the notebook around it."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dsv4lab.timeline.records import BusySummary, StreamBusy
from dsv4lab.viz.sheet import Sheet, empty_sheet
from dsv4lab.viz.stream_busy import stream_busy_sheet
from dsv4lab.widgets import front
from dsv4lab.widgets.board import Board

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=document.body.dataset.owned=1>"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=900,700",
    "--virtual-time-budget=20000",
    "--dump-dom",
)
PAGE = """<!doctype html><meta charset="utf-8"><body data-jp-theme-light="%(light)s"><div id="el"></div>
<script type="module">
const listeners = {};
const said = [];
const script = %(script)s;
const bytes = (text) => new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
const tell = ([message, buffers]) => {
  for (const listener of [...(listeners["msg:custom"] ?? [])]) listener(message, buffers.map(bytes));
};
window.requestAnimationFrame = (draw) => setTimeout(draw, 10); // there are no frames without a screen
const model = {
  get: (key) => ({ theme: "auto", cells: [["busy", true]] })[key],
  on: (name, f) => { (listeners[name] ??= []).push(f); },
  off: (name, f) => { listeners[name] = listeners[name].filter((g) => g !== f); },
  send: (message) => { said.push(message.kind); setTimeout(() => answer(message.kind)); },
};
let next = 0;
function answer(kind) {
  if (kind === "need-plotly") tell(script.plotly);
  else if (next < script.steps.length) tell(script.steps[next++]);
  else finish();
}
function finish() {
  const plot = document.querySelector(".js-plotly-plot");
  document.title = JSON.stringify({
    said,
    bars: plot.data.map((trace) => Array.from(trace.x ?? [])),
    width: plot.clientWidth,
    top: plot.querySelector(".gtitle").getBoundingClientRect().top - plot.getBoundingClientRect().top,
    height: plot.layout.height,
    paper: plot._fullLayout.paper_bgcolor,
    title: plot.querySelector(".gtitle").textContent,
    owned: document.body.dataset.owned ?? null,
  });
}
const made = (await import(%(module)s)).default();
made.initialize({ model });
made.render({ model, el: document.getElementById("el") });
</script>"""


def summary(busy_ns: int) -> BusySummary:
    streams = (
        StreamBusy("main", "q0", "main", busy_ns, busy_ns, 0, 3),
        StreamBusy(HOSTILE, "q1", "side", 100_000, 100_000, 60_000, 2),
    )
    return BusySummary(4_000_000, busy_ns, busy_ns + 100_000, busy_ns + 100_000, 60_000, streams, ())


def recorded(sheets: list[Sheet], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the board sends for these sheets, one after the other, and the library."""
    board = Board([("busy", True)])
    sent: list[Any] = []

    def send(message: Any, buffers: Any = ()) -> None:
        sent.append([message, [base64.b64encode(b).decode() for b in buffers]])

    monkeypatch.setattr(board, "send", send)
    for sheet in sheets:
        board.show({"busy": sheet})
        board._handle_custom_msg({"kind": "drawn"}, [])
    steps = list(sent)
    board._handle_custom_msg({"kind": "need-plotly"}, [])
    return {"steps": steps, "plotly": sent[-1]}


def opened(tmp_path: Path, script: dict[str, Any], *, light: bool) -> dict[str, Any]:
    chromium = next(filter(None, (shutil.which(n) for n in ("chromium", "chromium-browser", "google-chrome"))))
    source = front.module("board.js")
    module = "data:text/javascript;base64," + base64.b64encode(source.encode()).decode()
    page = PAGE % {
        "script": json.dumps(script).replace("<", "\\u003c"),
        "module": json.dumps(module),
        "light": str(light).lower(),
    }
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    command = [chromium, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "page.html").as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    title = re.search(r"<title>(.*?)</title>", dom, re.DOTALL)
    assert title is not None, dom[-2000:]
    found: dict[str, Any] = json.loads(title[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    return found


@pytest.mark.parametrize(("light", "paper"), [(True, "#ffffff"), (False, "#14181f")])
def test_sheets_and_patches_arrive_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, light: bool, paper: str
) -> None:
    sheets = [empty_sheet("Busy", "nothing yet"), *(stream_busy_sheet(summary(ms * 10**6)) for ms in (2, 3))]
    script = recorded(sheets, monkeypatch)
    assert [message["kind"] for message, _ in script["steps"]] == ["full", "full", "patch"]
    found = opened(tmp_path, script, light=light)
    assert found["said"] == ["hello", "need-plotly", "drawn", "drawn", "drawn"]
    assert found["bars"][0] == pytest.approx([3.0, 0.06])
    assert found["bars"][2] == pytest.approx([1.0, 3.9])
    assert 6 < found["top"] < 14
    assert found["width"] > 600
    assert found["height"] == sheets[-1].layout["height"]
    assert found["paper"] == paper
    assert "main 3.0 + side 0.1 ms" in found["title"]
    assert found["owned"] is None
