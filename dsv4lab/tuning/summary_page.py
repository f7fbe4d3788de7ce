"""``report.html`` of any session: the answer, its evidence, pictures, profiles, how it was made."""

from __future__ import annotations

from html import escape
from pathlib import Path

from dsv4lab.tuning import summary
from dsv4lab.tuning.launch import launch_lines
from dsv4lab.tuning.store import write_text
from dsv4lab.tuning.view import BASELINE, CONTROL, SessionView
from dsv4lab.viz.axes import plural
from dsv4lab.viz.changes import ChangeRow, Point, changes_figure, points_figure
from dsv4lab.viz.html import Picture, Text, html_table, pictures_page
from dsv4lab.viz.stream_busy import stream_busy_figure

_STYLE = """<style>
.verdict { border-left: 4px solid #009e73; background: var(--soft); border-radius: 4px;
  padding: 12px 18px; margin: 16px 0; }
.verdict.even { border-color: #8c929b; } .verdict.bad { border-color: #d55e00; }
.verdict strong { font-size: 17px; } .verdict p { max-width: none; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
table.settings td:nth-child(2), table.settings th:nth-child(2),
  table td:last-child, table th:last-child { text-align: left; }
table.settings td:nth-child(2), table.manifest td:last-child { white-space: normal; overflow-wrap: anywhere; }
details { margin: 14px 0; } summary { cursor: pointer; color: var(--quiet); }
</style>"""

Blocks = list[Text | Picture]


def summary_page(view: SessionView) -> str:
    """The page as HTML text; it needs nothing else."""
    blocks = [*_head(view), *_published(view), *_profiles(view), *pictures(view), *_settings(view)]
    blocks += [*_failures(view), *_method(view)]
    return pictures_page(f"Tuning session: {view.title}", blocks)


def write_summary(view: SessionView, path: Path) -> Path:
    """Write the page to ``path`` whole, and return it."""
    write_text(path, summary_page(view))
    return path


def _head(view: SessionView) -> Blocks:
    when = str(view.manifest.get("created", "")).replace("T", " ").removesuffix("+00:00")
    machines = plural(len(view.machines), "machine")
    made = f"dsv4lab {view.manifest.get('dsv4lab', '')}, {when} UTC, {machines}"
    blocks: Blocks = [Text(_STYLE), Text(f'<p class="quiet">{escape(f"{view.target}; {made}; {view.state}")}</p>')]
    lines = [f"<strong>{escape(summary.headline(view))}</strong>"]
    for line in launch_lines(view):
        about = f"{line.framework}, {line.what}"
        lines.append(f'<p class="quiet">{escape(about)}</p><pre>{escape(line.line)}</pre>')
    notes = (summary.scope_text(view), summary.gate_sentence(view), summary.noise_sentence(view))
    lines += [f'<p class="quiet">{escape(text)}</p>' for text in notes if text]
    css = "verdict bad" if view.gates and not view.uses else "verdict"
    css += "" if any(use.gained for use in view.uses) or view.gates else " even"
    return [*blocks, Text(f'<div class="{css}">{"".join(lines)}</div>')]


def _published(view: SessionView) -> Blocks:
    out: Blocks = []
    for title, loads in summary.groups(view):
        uses = [use for use in view.uses if use.load in loads]
        if uses:
            head = f"<h2>Before and after: {escape(title)}</h2>" if title else "<h2>Before and after</h2>"
            about = summary.about_text(uses)
            out.append(
                Text(head + f'<p class="quiet">{escape(about)}</p>' + html_table(*summary.published_table(view, uses)))
            )
    return out


def pictures(view: SessionView) -> list[Picture]:
    """Changes with their intervals, and TPOT against throughput; those of which there is something to show."""
    compared = [row for row in view.rows if row.change is not None and row.role not in (BASELINE, CONTROL)]
    changes = [
        ChangeRow(
            summary.load_text(row.load),
            row.label,
            row.change.delta,
            row.change.low,
            row.change.high,
            row.change.pairs,
            row.verdict,
        )
        for row in compared
        if row.change is not None
    ]
    points = [
        Point(summary.level_text(row.load, name=True), row.label, row.tpot_ms, row.tokens_per_s, row.role == BASELINE)
        for row in view.rows
        if row.measured and row.role != CONTROL
    ]
    out: list[Picture] = []
    if changes:
        out.append(Picture(changes_figure(changes)))
    if len(points) > 1:
        out.append(Picture(points_figure(points)))
    return out


def _settings(view: SessionView) -> Blocks:
    out: Blocks = []
    used = {(use.load, use.use) for use in view.uses}
    for title, loads in summary.groups(view):
        rows = [row for load in loads for row in summary.ordered(view, load)]
        marks = [
            "control" if row.role == CONTROL else "best" if (row.load, row.setting) in used else "" for row in rows
        ]
        head = f"<h2>All settings: {escape(title)}</h2>" if title else "<h2>All settings</h2>"
        out.append(Text(head + html_table(*summary.settings_table(view, loads), marks, "settings")))
    return out


def _profiles(view: SessionView) -> Blocks:
    if not view.profiles:
        return []
    pictured = {f"{p.setting.label}, {summary.level_text(p.load, name=True)}": p.busy for p in view.profiles[:6]}
    traces = [Path(p.trace).name for p in view.profiles if p.trace]
    caption = f"Traces: {', '.join(traces)}." if traces else ""
    table = html_table(*summary.profile_table(view.profiles))
    return [Text(f"<h2>Profiles</h2>{table}"), Picture(stream_busy_figure(pictured), caption)]


def _failures(view: SessionView) -> Blocks:
    found = summary.failures(view)
    if not found and not view.gates:
        return []
    items = "".join(
        f"<details><summary>{escape(_first(text))}</summary><pre>{escape(text)}</pre></details>" for text in found
    )
    gates = "".join(f"<p>{escape(text)}</p>" for text in view.gates)
    return [Text(f"<h2>What failed or differed</h2>{gates}{items}")]


def _first(text: str) -> str:
    line = text.splitlines()[0]
    return line if len(line) <= 160 else f"{line[:160]}…"


def _method(view: SessionView) -> Blocks:
    table = html_table(*summary.manifest_table(view), css="manifest")
    return [Text(f"<details><summary>Manifest</summary>{table}</details>")]
