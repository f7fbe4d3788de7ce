"""The words of the Tuning Board."""

from __future__ import annotations

import html

from dsv4lab.tuning import reading as reader
from dsv4lab.tuning.reading import Reading, launch_flags
from dsv4lab.tuning.recommend import SCOPE
from dsv4lab.tuning.session import Finding
from dsv4lab.tuning.space import Cell
from dsv4lab.units import percent_text
from dsv4lab.viz.axes import plural

COLUMNS = (
    ("plan", "Overlap plan."),
    ("queues", "GPU_MAX_HW_QUEUES: hardware queues of the worker process."),
    ("level", "Concurrency level: requests in flight at once."),
    ("TPOT ms", "Time per output token after the first, median over the requests of all repeats."),
    ("p10", "10 % of requests were at least as fast."),
    ("p90", "90 % of requests were at least as fast."),
    ("TTFT ms", "Time to the first token, median over requests."),
    ("tokens/s", "New tokens of all requests per second, median over trials."),
    ("vs off", "TPOT against plan off on the same queues and level; below zero is faster."),
    ("verdict", "Of the paired trials of the sweep; confirmation decides about the candidate."),
    ("trials", "Timed loads so far."),
)


def cell_of(finding: Finding) -> Cell:
    """The cell of the sweep that ``finding`` is about."""
    row = finding.row
    return Cell(row.plan, row.hw_queues, row.concurrency_level, row.control)


def cells(reading: Reading, finding: Finding) -> list[tuple[str, float | None]]:
    """The cells of :data:`COLUMNS`."""
    row = finding.row
    plan = f"{row.plan} (control)" if row.control else row.plan
    delta = row.delta_vs_off
    trials = len(reading.trials_of(cell_of(finding)))
    return [
        (plan, None),
        (str(row.hw_queues), row.hw_queues),
        (str(row.concurrency_level), row.concurrency_level),
        (f"{row.tpot_ms:.2f}", row.tpot_ms),
        (f"{row.tpot_p10_ms:.2f}", row.tpot_p10_ms),
        (f"{row.tpot_p90_ms:.2f}", row.tpot_p90_ms),
        (f"{row.ttft_ms:.0f}", row.ttft_ms),
        (f"{row.tokens_per_s:.1f}", row.tokens_per_s),
        ("" if delta is None else percent_text(delta), 0.0 if delta is None else delta),
        (finding.verdict, None),
        (str(trials), trials),
    ]


def headline(reading: Reading, best: Finding | None) -> str:
    """What to use, or what is best so far, as HTML."""
    found = reading.recommendation
    if reading.divergence is not None:
        text, quiet = "No recommendation: outputs differ.", str(reading.divergence)
    elif found is not None and reading.phase == reader.FINISHED:
        text, quiet = found.headline, f"{found.reason} Valid {SCOPE}."
    elif best is not None and best.row.delta_vs_off is not None:
        text = f"Best so far: {cell_of(best).label}, {percent_text(best.row.delta_vs_off)} TPOT against off."
        quiet = "From the sweep alone; the confirming pairs decide."
    else:
        text, quiet = "Nothing to compare yet.", "off and a plan beside it have to be measured first."
    return (
        f"<div style='font-size:15px;font-weight:650'>{html.escape(text)}</div>"
        f"<div style='font-size:13px;opacity:.8;line-height:1.4'>{html.escape(quiet)}</div>"
    )


def stage(reading: Reading) -> str:
    """How far the session is, as plain text."""
    done = f"{len(reading.trials)} of {plural(reading.planned, 'timed load')}"
    if reading.phase == reader.CONFIRMING and reading.candidate is not None:
        return f"{done} \N{MIDDLE DOT} confirming {reading.candidate.text}"
    return f"{done} \N{MIDDLE DOT} {reading.phase}"


def detail(reading: Reading, chosen: Finding | None) -> str:
    """The chosen row and its launch flags, as HTML."""
    if chosen is None:
        return "<span style='font-size:13px;opacity:.8'>Choose a row to see its launch flags.</span>"
    cell = cell_of(chosen)
    flags = html.escape(launch_flags(reading.config, reading.space, cell))
    return (
        f"<b style='font-size:13px'>{html.escape(cell.label)}</b>"
        f"<pre style='user-select:all;white-space:pre-wrap;margin:2px 0;font-size:12px'>{flags}</pre>"
        f"<span style='font-size:12px;opacity:.75'>Valid {html.escape(SCOPE)}.</span>"
    )
