"""A record as words and tables, for the terminal and for Markdown alike. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dsv4lab.tuning.overlap.arms import SERIAL
from dsv4lab.tuning.overlap.reading import LevelView, PlanView
from dsv4lab.tuning.overlap.record import OverlapRecord, Profile
from dsv4lab.tuning.stats import Difference
from dsv4lab.tuning.table_text import Table

DASH = "-"
RESULT = (
    *("Concurrency", "TPOT before (µs)", "TPOT after (µs)", "ΔTPOT", "95 % interval"),
    *("tok/s/GPU before", "tok/s/GPU after", "Δtok/s/GPU", "plan"),
)
SHORT_RESULT = ("level", "TPOT", "after", "change", "95 % interval", "tok/s", "after", "plan")
CONTROLS = ("level", "off us", "unfused us", "auto took", "auto us", "vs control", "95 % interval")
HIDDEN = ("level", "plan", "side alone us", "hidden us", "hidden", "floor us", "step/floor")
PROFILE = ("level", "plan", "stream", "busy us", "hidden us", "wall us", "concurrency")
PLANS = ("level", "plan", "us", "p10 to p90", "vs control", "vs off", "alone us", "lanes", "hidden")


def title(record: OverlapRecord) -> str:
    """What was measured."""
    s = record.settings
    share = f", one rank's share of {s.gpus} (its all-reduces left out)" if s.gpus > 1 else ""
    how = "decode steps op by op" if s.device == "cpu" else "decode steps in graphs"
    return f"{s.shape}{share}, {s.layers} layers and the head, ISL {s.isl}, {how}, on {record.device}"


def about(record: OverlapRecord) -> str:
    """How the figures came about."""
    s = record.settings
    return (
        "Before: the faster of the two serial programs, off (compressors' and indexer's products on the same input as "
        f"one) and unfused (apart). TPOT is a step in microseconds, the median of {s.rounds} rounds in which all plans "
        f"took turns, {s.in_a_row} steps each. Changes are medians of paired ratios."
    )


def result_table(views: Sequence[LevelView]) -> Table:
    """Before and after by concurrency level, in the columns of the seed's publication."""
    rows: list[tuple[str, ...]] = [
        (
            str(view.concurrency), us(view.control.us), us(view.best.us), *change(view.best.delta),
            *map(rate, view.tokens_per_s), percent(view.tokens_per_s[1] / view.tokens_per_s[0] - 1.0), view.best.plan,
        )
        for view in views
    ]  # fmt: skip
    return RESULT, rows


def short_result_table(views: Sequence[LevelView]) -> Table:
    """The same for a terminal of 80 columns: TPOT in microseconds, tokens per second and GPU."""
    return SHORT_RESULT, [(*row[:7], row[8]) for row in result_table(views)[1]]


def control_table(views: Sequence[LevelView]) -> Table:
    """Both serial programs, and what plan ``auto`` made of the level."""
    rows = []
    for view in views:
        auto = (DASH,) * 4 if view.auto is None else (view.auto.plan, us(view.auto.us), *change(view.auto.delta))
        serial = (us(found.us) if (found := view.of(name)) else DASH for name in SERIAL)
        rows.append((str(view.concurrency), *serial, *auto))
    return CONTROLS, rows


def hidden_table(views: Sequence[LevelView]) -> Table:
    """The best plan's side ops alone, the part of that time that it hides, and the byte floor."""
    rows: list[tuple[str, ...]] = []
    for view in views:
        best = view.best
        ratio = DASH if view.floor_us is None else f"{best.us / view.floor_us:.2f}×"
        floor = DASH if view.floor_us is None else us(view.floor_us)
        share = share_text(best.hidden)
        times = (us(best.times.side_us), us(best.saved_us), share)
        rows.append((str(view.concurrency), best.plan, *times, floor, ratio))
    return HIDDEN, rows


def plan_table(views: Sequence[LevelView]) -> Table:
    """Every plan at every level."""
    return PLANS, [_plan_row(view, plan) for view in views for plan in view.plans]


def _plan_row(view: LevelView, plan: PlanView) -> tuple[str, ...]:
    return (
        str(view.concurrency),
        plan.plan,
        us(plan.us),
        f"{plan.us_p10:.1f} to {plan.us_p90:.1f}",
        "control" if plan is view.control else percent(plan.delta.delta),
        percent(plan.delta_off.delta),
        us(plan.times.single_us),
        str(plan.times.lanes),
        share_text(plan.hidden),
    )


def profile_table(profiles: Sequence[Profile]) -> Table:
    """Streams of each profile, per step; wall and concurrency on its first row."""
    rows: list[tuple[str, ...]] = []
    for profile in profiles:
        each = 1e3 * profile.steps
        concurrency = profile.sum_busy_ns / profile.union_busy_ns if profile.union_busy_ns else 0.0
        for at, lane in enumerate(profile.streams):
            head = (str(profile.concurrency), profile.plan) if not at else ("", "")
            tail = (us(profile.wall_ns / each), f"{concurrency:.3f}×") if not at else ("", "")
            hidden = DASH if lane.role == "main" else us(lane.hidden_ns / each)
            rows.append((*head, f"{lane.role} {lane.name}", us(lane.busy_ns / each), hidden, *tail))
    return PROFILE, rows


def profile_notes(profiles: Sequence[Profile]) -> tuple[str, ...]:
    """What is to be said of profiles, once each."""
    return tuple(dict.fromkeys(note for profile in profiles for note in profile.notes))


def gate_sentence(record: OverlapRecord) -> str:
    """What the gate said, and the replays."""
    if record.gate is None:
        return "The gate was not reached."
    bad = [name for name, good in record.gate.verdicts.items() if not good]
    if bad:
        return f"The gate is red, and nothing was timed: {'; '.join(bad)}."
    text = f"The gate is green: {len(record.gate.verdicts)} comparisons, bit for bit."
    if (found := record.replays) is not None:
        text += f" {found.identical} of {found.replays} replays of {found.plan} gave the same logits."
    return text


def us(value: float | None) -> str:
    """Microseconds with four digits or so."""
    if value is None:
        return DASH
    return f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"


def rate(value: float) -> str:
    """Tokens per second."""
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def percent(fraction: float) -> str:
    """A signed change."""
    return f"{100 * fraction:+.1f} %"


def share_text(fraction: float | None) -> str:
    """A part of a whole."""
    return DASH if fraction is None else f"{100 * fraction:.0f} %"


def change(found: Difference) -> tuple[str, str]:
    """The change and its interval."""
    if found.low is None or found.high is None:
        return percent(found.delta), DASH
    return percent(found.delta), f"{100 * found.low:+.1f} to {100 * found.high:+.1f}"
