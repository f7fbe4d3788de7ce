"""A session's view as words and tables, for the terminal, Markdown and HTML alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dsv4lab.tuning.knobs import CONCURRENCY, MAX_NEW_TOKENS, PROMPT_TOKENS, RATE, Setting, value_text
from dsv4lab.tuning.stats import Difference
from dsv4lab.tuning.tables import Table
from dsv4lab.tuning.view import BASELINE, CONTROL, FINISHED, SEARCH, SERVER, SIMULATED, Profiled, Row, SessionView, Use
from dsv4lab.units import percent_text

DASH = "-"
Tables = list[tuple[str, Table]]
"""Titles and tables."""


def groups(view: SessionView) -> list[tuple[str, list[Setting]]]:
    """Loads that differ in nothing but the concurrency level, with a title each."""
    found: dict[Setting, list[Setting]] = {}
    for load in view.loads:
        found.setdefault(load.without([CONCURRENCY]), []).append(load)
    return [(load_text(rest), loads) for rest, loads in found.items()]


def load_text(load: Setting) -> str:
    """``1024 tokens in, 128 out, 4 requests/s``."""
    words = []
    for name, value in load.items:
        if name == PROMPT_TOKENS:
            words.append(f"{value} tokens in")
        elif name == MAX_NEW_TOKENS:
            words.append(f"{value} out")
        elif name == RATE:
            words.append("no bound on the rate" if value is None else f"{value:g} requests/s")
        else:
            words.append(value_text(name, value))
    return ", ".join(words)


def published_table(view: SessionView, uses: Sequence[Use]) -> Table:
    """Before and after by concurrency, in the columns of the seed's publication, with what holds them up."""
    columns = (
        *("Concurrency", "TPOT before (ms)", "TPOT after (ms)", "ΔTPOT"),
        *("tok/s/GPU before", "tok/s/GPU after", "Δtok/s/GPU"),
        *("n", f"{100 * view.level:g} % interval", "verdict"),
    )
    rows: list[tuple[str, ...]] = []
    for use in uses:
        before, after = use.tokens_per_s[0] / view.gpus, use.tokens_per_s[1] / view.gpus
        cells = (level_text(use.load), ms(use.tpot_ms[0]), ms(use.tpot_ms[1]), delta(use.change))
        rows.append((*cells, speed(before), speed(after), ratio(before, after), *evidence(use.change), use.verdict))
    return columns, rows


def about_text(uses: Sequence[Use]) -> str:
    """What stands before and after in the rows of :func:`published_table`."""
    found: dict[str, list[str]] = {}
    for use in uses:
        if use.candidate is not None:
            found.setdefault(use.candidate.label, []).append(level_text(use.load))
    told = [label if len(found) == 1 else f"{label} at {', '.join(levels)}" for label, levels in found.items()]
    return f"Before: {uses[0].baseline.label}. After: {'; '.join(told) or 'nothing was tested'}."


def short_table(uses: Sequence[Use], level: float) -> Table:
    """The same for a terminal of 80 columns."""
    columns = ("level", "TPOT ms", "change", f"{100 * level:g} % interval", "n", "tok/s", "verdict")
    rows: list[tuple[str, ...]] = []
    for use in uses:
        times = f"{ms(use.tpot_ms[0])} → {ms(use.tpot_ms[1])}"
        pairs, interval = evidence(use.change)
        row = (level_text(use.load), times, delta(use.change), interval, pairs, ratio(*use.tokens_per_s), use.verdict)
        rows.append(row)
    return columns, rows


def settings_table(view: SessionView, loads: Sequence[Setting]) -> Table:
    """Every setting that was measured or failed, the fastest of each level first."""
    columns = (
        *("level", "setting", "TPOT ms", "p10 to p90", "TTFT ms", "tokens/s", "change"),
        *(f"{100 * view.level:g} % interval", "n", "verdict"),
    )
    return columns, [_setting_cells(row) for load in loads for row in ordered(view, load)]


def short_settings_table(view: SessionView, loads: Sequence[Setting]) -> Table:
    """The columns of :func:`settings_table` that fit a terminal of 80."""
    columns, rows = settings_table(view, loads)
    kept = [columns.index(name) for name in ("level", "setting", "TPOT ms", "change", "n", "verdict")]
    return tuple(columns[at] for at in kept), [tuple(row[at] for at in kept) for row in rows]


def ordered(view: SessionView, load: Setting) -> list[Row]:
    """The rows of a load: the baseline, the others by their change, what failed, controls."""

    def place(row: Row) -> tuple[int, float]:
        if row.role == BASELINE:
            return 0, 0.0
        if row.role == CONTROL:
            return 3, 0.0
        return (1, row.change.delta) if row.change is not None else (2, 0.0)

    return sorted((row for row in view.rows if row.load == load), key=place)


def _setting_cells(row: Row) -> tuple[str, ...]:
    low, high = row.tpot_range_ms if row.measured else (math.nan, math.nan)
    pairs, interval = evidence(row.change)
    return (
        level_text(row.load),
        row.label,
        ms(row.tpot_ms),
        DASH if math.isnan(low) else f"{low:.2f} to {high:.2f}",
        ms(row.ttft_ms) if row.measured else DASH,
        speed(row.tokens_per_s) if row.measured else DASH,
        delta(row.change),
        interval,
        pairs,
        row.verdict,
    )


def profile_table(profiles: Sequence[Profiled]) -> Table:
    """The seed's profile table: busy time of main and side streams, how far they overlap, and the wall."""
    columns = ("Profile", "main busy (ms)", "side busy (ms)", "hidden (ms)", "concurrency", "wall (ms)")
    rows: list[tuple[str, ...]] = [
        (
            f"{profile.setting.label} ({level_text(profile.load)})",
            f"{profile.busy.main_busy_ns / 1e6:.1f}",
            f"{profile.busy.side_busy_ns / 1e6:.1f}",
            f"{profile.busy.hidden_ns / 1e6:.1f}",
            f"{profile.busy.concurrency:.3f}×",
            f"{profile.busy.wall_ns / 1e6:.1f}",
        )
        for profile in profiles
    ]
    return columns, rows


def short_profile_table(profiles: Sequence[Profiled]) -> Table:
    """The same for a terminal of 80 columns."""
    columns = ("level", "setting", "main ms", "side ms", "hidden", "overlap", "wall ms")
    _, rows = profile_table(profiles)
    places = [(level_text(profile.load), profile.setting.label) for profile in profiles]
    return columns, [(*place, *row[1:]) for place, row in zip(places, rows, strict=True)]


def headline(view: SessionView) -> str:
    """What to use, in a sentence per kind of answer."""
    if not view.uses:
        return "Nothing has been compared yet." if view.state != FINISHED else "There was nothing to compare."
    gained = [use for use in view.uses if use.gained]
    if view.state != FINISHED and view.kind == SEARCH:
        return "The session has not ended: the figures are of what was measured so far, and recommend nothing."
    if not gained:
        return f"Use {view.uses[0].baseline.label}: no other setting was found to be faster."
    settings = {use.use for use in gained}
    if len(settings) == 1 and len(gained) == len(view.uses):
        return f"Use {gained[0].use.label}."
    parts = [f"{use.use.label} at {level_text(use.load, name=True)}" for use in gained]
    rest = [level_text(use.load, name=True) for use in view.uses if not use.gained]
    end = f"; {view.uses[0].baseline.label} at {', '.join(rest)}" if rest else ""
    return f"Use {'; '.join(parts)}{end}."


def scope_text(view: SessionView) -> str:
    """What the answer holds for."""
    if view.target == SIMULATED:
        return "A simulation with planted effects: it says nothing about any machine."
    where = "; ".join(view.machines)
    cpu = str(view.manifest.get("device")) == "cpu"
    what = "this CPU" if cpu else "this server on this machine" if view.target == SERVER else "this machine"
    end = "; it predicts nothing about a GPU" if cpu else ""
    return f"Valid for {what} and these loads only{end} ({where})."


def noise_sentence(view: SessionView) -> str:
    """How far equal measurements lie apart; empty where nothing was measured twice."""
    noise = view.noise
    if noise.repeat is None and noise.process is None:
        return ""
    words = []
    if noise.repeat is not None:
        words.append(f"blocks of the baseline in one process spread by ±{100 * noise.repeat:.1f} %")
    if noise.process is not None:
        words.append(f"its median differs by up to {100 * noise.process:.1f} % between processes")
    return f"Noise: {', and '.join(words)}."


def failures(view: SessionView) -> list[str]:
    """Settings that could not be measured, and why, in full."""
    return [f"{row.label}, {load_text(row.load)}: {row.verdict}: {row.why}" for row in view.rows if row.failed]


def gate_sentence(view: SessionView) -> str:
    """Whether outputs agree."""
    if view.gates:
        count = len(view.gates)
        return f"Outputs differ in {count} comparison{'s' * (count != 1)}: {view.gates[0]}"
    return "Greedy outputs are the same in all settings that have a figure."


def manifest_table(view: SessionView) -> Table:
    """The manifest, flat."""
    return ("setting", "value"), _flat("", {k: v for k, v in view.manifest.items() if k != "schema"})


def _flat(prefix: str, data: dict[str, Any]) -> list[tuple[str, ...]]:
    out: list[tuple[str, ...]] = []
    for key, value in data.items():
        out += (
            _flat(f"{prefix}{key}.", value) if isinstance(value, dict) and value else [(f"{prefix}{key}", str(value))]
        )
    return out


def level_text(load: Setting, *, name: bool = False) -> str:
    """The concurrency level alone, with its name or without; all of a load that has none."""
    level = load.get(CONCURRENCY)
    if level is None:
        return load_text(load) or "this load"
    return f"concurrency {level}" if name else str(level)


def ms(value: float) -> str:
    """Milliseconds with two digits after the point."""
    return DASH if math.isnan(value) else f"{value:.2f}"


def speed(value: float) -> str:
    """Tokens per second."""
    return DASH if math.isnan(value) else f"{value:.1f}"


def delta(change: Difference | None) -> str:
    """The relative change of TPOT."""
    return DASH if change is None else percent_text(change.delta)


def ratio(before: float, after: float) -> str:
    """The relative change from ``before`` to ``after``."""
    return DASH if math.isnan(before) or math.isnan(after) or not before else percent_text(after / before - 1)


def evidence(change: Difference | None) -> tuple[str, str]:
    """Pairs, and the interval."""
    if change is None:
        return DASH, DASH
    if change.low is None and change.high is None:
        return str(change.pairs), "none yet"
    low = "…" if change.low is None else percent_text(change.low)
    high = "…" if change.high is None else percent_text(change.high)
    return str(change.pairs), f"{low} to {high}"
