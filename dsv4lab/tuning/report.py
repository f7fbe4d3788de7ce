"""``report.html``: what a session found, with its pictures, in one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from dsv4lab.timeline.records import StepRecord
from dsv4lab.timeline.timeline import Kind, Timeline
from dsv4lab.tuning import tables
from dsv4lab.tuning.arms import Arm
from dsv4lab.tuning.recommend import SCOPE
from dsv4lab.tuning.session import SessionResult
from dsv4lab.tuning.store import REPORT, write_text
from dsv4lab.viz.html import Picture, Text, html_table, pictures_page
from dsv4lab.viz.page_layout import page_layout_figure
from dsv4lab.viz.queue_occupancy import queue_occupancy_figure
from dsv4lab.viz.stream_busy import stream_busy_figure
from dsv4lab.viz.timeline_view import timeline_figure
from dsv4lab.viz.tuning import delta_bars, tpot_heatmap, tradeoff_scatter

_STYLE = """<style>
.verdict { border-left: 4px solid #009e73; background: var(--soft); border-radius: 4px;
  padding: 12px 18px; margin: 16px 0; }
.verdict.even { border-color: #8c929b; } .verdict.bad { border-color: #d55e00; }
.verdict strong { font-size: 17px; } .verdict p { max-width: none; }
table.sweep td:nth-child(2), table.sweep th:nth-child(2) { text-align: left; }
ul { max-width: 96ch; padding-left: 20px; } li { margin: 5px 0; }
</style>"""

Blocks = list[Text | Picture]


def report_page(result: SessionResult) -> str:
    """The page as HTML text."""
    blocks: Blocks = [*_head(result), *_confirmation(result), *_sweep(result)]
    if result.arms:
        blocks += [*_streams(result.arms), *_queues(result.arms), *_timelines(result.arms), *_pool(result.arms[-1])]
    blocks += _method(result)
    return pictures_page(f"Tuning session: {result.manifest.preset}", blocks)


def write_report(result: SessionResult) -> Path:
    """Write the page into the session's folder and return its path."""
    path = result.folder / REPORT
    write_text(path, report_page(result))
    return path


def _head(result: SessionResult) -> Blocks:
    m = result.manifest
    when = m.created.replace("T", " ").removesuffix("+00:00")
    where = f"{m.cpu}, {m.settings['cores']} cores, torch {m.torch}, {when} UTC"
    blocks: Blocks = [Text(_STYLE), Text(f'<p class="quiet">{escape(where)}</p>')]
    if result.recommendation is None:
        text = f"No recommendation: outputs differ. {result.divergence}"
        return [*blocks, Text(f'<div class="verdict bad"><strong>{escape(text)}</strong></div>')]
    found = result.recommendation
    lines = [
        f"<strong>{escape(found.headline)}</strong>",
        f"<p>{escape(found.reason)}</p>",
        f"<pre>{escape(tables.launch_line(result))}</pre>",
        f'<p class="quiet">Valid {escape(SCOPE)}. {escape(tables.identical_text(result))}</p>',
    ]
    css = "verdict" if found.verdict == "faster" else "verdict even"
    return [*blocks, Text(f'<div class="{css}">{"".join(lines)}</div>')]


def _confirmation(result: SessionResult) -> Blocks:
    found = result.recommendation
    if found is None or not found.levels:
        return []
    return [
        Text(f"<h2>The pairs that decide: {escape(tables.confirm_title(found))}</h2>"),
        Text(html_table(tables.CONFIRM_COLUMNS, tables.confirm_table(found))),
    ]


def _sweep(result: SessionResult) -> Blocks:
    rows = [finding.row for finding in result.findings]
    if not rows:
        return []
    return [
        Text("<h2>The sweep</h2>"),
        Text(html_table(*tables.sweep_table(result), _row_classes(result), "sweep")),
        Text(f'<p class="quiet">{escape(tables.noise_text(result))} {escape(tables.control_text(result))}</p>'),
        Picture(tpot_heatmap(rows)),
        Picture(delta_bars(rows)),
        Picture(tradeoff_scatter([row for row in rows if not row.control])),
    ]


def _streams(arms: Sequence[Arm]) -> Blocks:
    first = arms[0]
    text = (
        f"{len(first.steps)} decode steps with {first.concurrency_level} requests in flight, hardware queues: "
        f"{first.choice.hw_queues}. Hidden is side work that runs while main runs too."
    )
    return [
        Text("<h2>Streams: baseline and overlap</h2>"),
        Text(html_table(tables.PROFILE_COLUMNS, tables.profile_table(arms))),
        Picture(stream_busy_figure({arm.choice.plan: arm.busy for arm in arms}), text),
    ]


def _queues(arms: Sequence[Arm]) -> Blocks:
    blocks: Blocks = [Text("<h2>Hardware queues</h2>")]
    for arm in arms:
        shown = steps_of(arm, typical_steps(arm, 2))
        caption = f"{arm.choice.text}: two steps in a row, of median length."
        blocks.append(Picture(queue_occupancy_figure(shown.queue_occupancy()), caption))
    return blocks


def _timelines(arms: Sequence[Arm]) -> Blocks:
    blocks: Blocks = [Text("<h2>One step on the timeline</h2>")]
    for arm in arms:
        shown = steps_of(arm, typical_steps(arm, 1))
        caption = f"{arm.choice.text}. Arrows are waits between streams. All {len(arm.steps)} steps are in "
        figure = timeline_figure(shown, edges=wait_rows(shown, arm.program.edges))
        blocks.append(Picture(figure, f"{caption}{arm.trace.name}."))
    return blocks


def _pool(arm: Arm) -> Blocks:
    caption = (
        f"The pool during this load, with the rows that the latest query of one request reads ({arm.choice.text})."
    )
    return [Text("<h2>The KV pool</h2>"), Picture(page_layout_figure(arm.pool, arm.reads), caption)]


def _method(result: SessionResult) -> Blocks:
    items = "".join(f"<li>{escape(text)}</li>" for text in tables.method_lines(result))
    manifest = tables.manifest_lines(result)
    table = html_table(("setting", "value"), manifest)
    return [Text(f"<h2>Method</h2><ul>{items}</ul>"), Text(f"<h2>Manifest</h2>{table}")]


def typical_steps(arm: Arm, count: int) -> tuple[StepRecord, ...]:
    """``count`` recorded steps in a row, those whose time together is the median of all such."""
    runs = [arm.steps[at : at + count] for at in range(max(1, len(arm.steps) - count + 1))]
    runs.sort(key=lambda run: sum(step.dur_ns for step in run))
    return runs[(len(runs) - 1) // 2]


def steps_of(arm: Arm, steps: Sequence[StepRecord]) -> Timeline:
    """The slices of these steps."""
    return arm.timeline.select(np.isin(arm.timeline.step, [step.step for step in steps]))


def wait_rows(timeline: Timeline, edges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Waits between ops of a program as pairs of row numbers of ``timeline``, which holds one step of it."""
    kernels = np.flatnonzero(timeline.kind == Kind.KERNEL)
    row_of = {int(timeline.correlation[row]): int(row) for row in kernels}
    return [(row_of[a], row_of[b]) for a, b in edges if a in row_of and b in row_of]


def _row_classes(result: SessionResult) -> list[str]:
    use = result.recommendation.use if result.recommendation else None
    out = []
    for finding in result.findings:
        row = finding.row
        best = use is not None and not row.control and (row.plan, row.hw_queues) == (use.plan, use.hw_queues)
        out.append("control" if row.control else "best" if best else "")
    return out
