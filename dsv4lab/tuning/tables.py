"""The words and tables of a session, shared by the terminal and the report."""

from __future__ import annotations

from collections.abc import Sequence

from dsv4lab.tuning.arms import Arm
from dsv4lab.tuning.recommend import SCOPE, Recommendation
from dsv4lab.tuning.session import Finding, SessionResult
from dsv4lab.tuning.stats import LEVEL, MIN_BLOCKS, Difference
from dsv4lab.tuning.table_text import Table
from dsv4lab.units import ns_text, percent_text, ratio_text

__all__ = ["SCOPE", "Table"]

SWEEP_COLUMNS = ("level", "plan", "queues", "TPOT ms", "p10 to p90", "TTFT ms", "tokens/s", "vs off", "paired trials")
SHORT_COLUMNS = tuple(name for name in SWEEP_COLUMNS if name not in ("TTFT ms", "paired trials"))
PROFILE_COLUMNS = ("setting", "main busy", "side busy", "hidden", "concurrency", "wall")

CONFIRM_COLUMNS = ("level", "off TPOT ms", "TPOT ms", "change", "95 % interval", "verdict")

_MARKS = {"undecided": "", "baseline": ""}


def sweep_table(result: SessionResult) -> Table:
    """The sweep, one row per finding; without the last column if the repeats were too few for any verdict."""
    rows = [_sweep_row(finding) for finding in result.findings]
    decided = any(finding.difference and finding.difference.low is not None for finding in result.findings)
    return (SWEEP_COLUMNS, rows) if decided else (SWEEP_COLUMNS[:-1], [row[:-1] for row in rows])


def _sweep_row(finding: Finding) -> tuple[str, ...]:
    row = finding.row
    return (
        str(row.concurrency_level),
        row.plan,
        "control" if row.control else str(row.hw_queues),
        f"{row.tpot_ms:.2f}",
        f"{row.tpot_p10_ms:.1f} to {row.tpot_p90_ms:.1f}",
        f"{row.ttft_ms:.0f}",
        f"{row.tokens_per_s:.1f}",
        "" if row.delta_vs_off is None else percent_text(row.delta_vs_off),
        _MARKS.get(finding.verdict, finding.verdict),
    )


def short_sweep_table(result: SessionResult) -> Table:
    """The columns of the sweep that fit a terminal of 80."""
    kept = [SWEEP_COLUMNS.index(name) for name in SHORT_COLUMNS]
    return SHORT_COLUMNS, [tuple(row[at] for at in kept) for row in map(_sweep_row, result.findings)]


def confirm_table(found: Recommendation) -> list[tuple[str, ...]]:
    """Cells of :data:`CONFIRM_COLUMNS`: the pairs that decide, per level and over all of them."""
    rows: list[tuple[str, ...]] = [
        (
            str(level.concurrency_level),
            f"{level.off_tpot_ms:.2f}",
            f"{level.tpot_ms:.2f}",
            *_difference_cells(level.difference),
            level.verdict,
        )
        for level in found.levels
    ]
    if len(rows) > 1 and found.difference is not None:
        rows.append(("all", "", "", *_difference_cells(found.difference), found.verdict))
    return rows


def confirm_title(found: Recommendation) -> str:
    """What the pairs compare."""
    if found.candidate is None or found.difference is None:
        return ""
    return f"{found.candidate.text} against off, {found.difference.pairs} pairs at each level"


def _difference_cells(difference: Difference) -> tuple[str, str]:
    if difference.low is None or difference.high is None:
        return percent_text(difference.delta), "-"
    return percent_text(difference.delta), f"{percent_text(difference.low)} to {percent_text(difference.high)}"


def profile_table(arms: Sequence[Arm]) -> list[tuple[str, ...]]:
    """Cells of :data:`PROFILE_COLUMNS`, one row per profiled setting."""
    return [
        (
            f"{arm.choice.plan}, {arm.role}",
            ns_text(arm.busy.main_busy_ns),
            ns_text(arm.busy.side_busy_ns),
            ns_text(arm.busy.hidden_ns),
            ratio_text(arm.busy.concurrency),
            ns_text(arm.busy.wall_ns),
        )
        for arm in arms
    ]


def launch_line(result: SessionResult) -> str:
    """A ``dsv4lab`` command that runs the recommended setting."""
    engine = result.manifest.settings["engine"]
    model = engine["model"]
    use = result.recommendation.use if result.recommendation else None
    where = f"--checkpoint {model}" if "/" in model else f"--preset {model}"
    line = f"dsv4lab run {where} --concurrency {max(result.space.concurrency)}"
    if use is None:
        return line
    return f"{line} --plan {use.plan} --hw-queues {use.hw_queues}"


def identical_text(result: SessionResult) -> str:
    """Whether outputs agree, and over what."""
    settings = [finding for finding in result.findings if not finding.row.control]
    if result.divergence is not None:
        return f"Outputs differ: {result.divergence}."
    return f"Outputs are bit-identical in all {len(settings)} settings: same tokens, same logits at equal concurrency."


def noise_text(result: SessionResult) -> str:
    """How far equal measurements lie apart."""
    noise = result.recommendation.noise if result.recommendation else None
    if noise is None or noise.repeat is None:
        return ""
    text = f"Noise of this machine: repeats of off spread by ±{100 * noise.repeat:.1f} %"
    if noise.process is not None:
        text += f", and its median differs by up to {100 * noise.process:.1f} % between processes"
    return text + "."


def control_text(result: SessionResult) -> str:
    """What the control is."""
    if not any(finding.row.control for finding in result.findings):
        return "Every queue thread runs one intra-op thread."
    cores = result.manifest.settings["cores"]
    differs = (
        " Its outputs are not bit-identical to the others': it adds in another order." if result.control_differs else ""
    )
    return (
        "Every queue thread runs one intra-op thread in every plan. The control is off on one stream with "
        f"all {cores} cores inside the op; it is never recommended.{differs}"
    )


def method_lines(result: SessionResult) -> list[str]:
    """How the figures were made."""
    space = result.space
    load = space.load
    processes = f"{space.rounds} fresh worker process{'es' * (space.rounds != 1)}"
    lines = _METHOD.format(load=load, processes=processes, space=space, level=100 * LEVEL, least=MIN_BLOCKS)
    return [*(" ".join(line.split()) for line in lines.split("\n\n")), control_text(result)]


_METHOD = """
Load: {load.prompt_tokens} prompt tokens and {load.max_new_tokens} new tokens per request, greedy, seed {load.seed};
as many requests at once as the concurrency level says.

Every queue count had {processes}. In each, every plan and concurrency level was loaded once, for warm-up and
for the correctness check, and then {space.repeats} times for time: the plans of one repeat side by side, in an order
that is rotated and reversed from repeat to repeat.

TPOT is the time per token after the first, TTFT the time to the first; both are medians over the requests of all
repeats. "vs off" compares with off in the same processes.

The overlap that won the sweep was measured again: {space.confirm} pairs with off at each concurrency level, in a fresh
process. Only these pairs decide, so that having picked the luckiest of many does not count as a gain.

Intervals are bootstrapped over pairs, at {level:.0f} %, and expanded for small numbers; fewer than {least} pairs decide
nothing.
"""


def manifest_lines(result: SessionResult) -> list[tuple[str, str]]:
    """The manifest as pairs of name and value."""
    m = result.manifest
    flat = {key: value for key, value in m.to_json().items() if key != "settings"}
    flat |= {f"engine.{key}": value for key, value in m.settings["engine"].items()}
    return [(key, str(value)) for key, value in flat.items()]
