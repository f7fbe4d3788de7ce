"""What ``seed.py`` runs, and the tables of what it wrote. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

PLANS = ("off", "hip", "cuda", "auto")
LEVELS = (1, 4, 8, 16, 32)
SPECULATED = (1, 4, 8)
SEED_GAINS: Mapping[int, float] = {1: -0.085, 4: -0.045, 8: -0.057}
"""Change of TPOT by concurrency level, as the seed reports it for Pro, TP8 and DSpark on eight MI355X."""

NOISE = 0.005
"""At the levels above these a change is a loss only beyond this."""


PAGE = 256
SKIPPED, UNDER_WAY = 2, 20
"""Steps of a turn that do not count, the change of plan among them; and steps until those of a turn are known, which is
told ten times a second."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One engine, opened once: its plans take turns at each level.

    ``block`` is the length of a DSpark block, 0 for no drafter; the verify width is one more. ``ranks`` take part.
    """

    name: str
    preset: str
    tp: int = 1
    dp: int = 1
    block: int = 0
    plans: tuple[str, ...] = PLANS
    levels: tuple[int, ...] = LEVELS

    @property
    def ranks(self) -> int:
        """Ranks, one GPU each."""
        return self.tp * self.dp

    def takes(self, level: int) -> bool:
        """Whether ``level`` requests are as many for each attention group."""
        return level % self.dp == 0

    def fields(self) -> dict[str, Any]:
        """The engine's fields that make it this stage."""
        found: dict[str, Any] = {"tp_size": self.tp, "dp_size": self.dp}
        if self.block:
            found |= {"speculative": "dspark", "draft_block": self.block}
        if self.dp > 1:
            found |= {"ep_size": self.dp, "graphs": False}  # forwards of groups differ in kind: no graphs
        return found


STAGES = (
    Stage("pro-tp8", "pro", tp=8),
    Stage("pro-tp8-block6", "pro", tp=8, block=6, levels=SPECULATED),
    Stage("flash-tp8", "flash", tp=8),
    Stage("flash-tp4", "flash", tp=4),
    Stage("pro-tp8-block5", "pro", tp=8, block=5, levels=SPECULATED),
    Stage("flash-tp8-block6", "flash", tp=8, block=6, levels=SPECULATED),
    Stage("flash-dp8", "flash", dp=8, plans=("off", "cuda"), levels=(32, 64)),
    Stage("flash-tp2", "flash", tp=2),
    Stage("flash-tp2-block6", "flash", tp=2, block=6, levels=SPECULATED),
    Stage("flash-tp2-block5", "flash", tp=2, block=5, levels=SPECULATED),
    Stage("flash-dp2", "flash", dp=2, plans=("off", "cuda"), levels=(32, 64)),
)
"""What was asked for, most wanted first: time may end before the last."""


def chosen(names: Sequence[str], gpus: int) -> list[Stage]:
    """The stages called ``names``, by default all that ``gpus`` GPUs can run.

    Raises ``ValueError`` for a name that there is not, and for a stage that was named and takes more GPUs.
    """
    known = {stage.name: stage for stage in STAGES}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"there is no stage {unknown[0]!r}; there are {', '.join(known)}")
    if not names:
        return [stage for stage in STAGES if stage.ranks <= gpus]
    large = [name for name in names if known[name].ranks > gpus]
    if large:
        raise ValueError(f"stage {large[0]} takes {known[large[0]].ranks} GPUs, here are {gpus}")
    return [known[name] for name in names]


def turns(plans: Sequence[str], rounds: int) -> list[str]:
    """Plans in turn, the order shifted by one from round to round."""
    return [plans[(start + place) % len(plans)] for start in range(rounds) for place in range(len(plans))]


def new_tokens(stage: Stage, rounds: int, turn: int) -> int:
    """New tokens of a request, so many that none ends while plans take turns of ``turn`` steps."""
    return len(stage.plans) * rounds * (turn + SKIPPED + UNDER_WAY) * (stage.block + 1)


def pool_tokens(stage: Stage, isl: int, rounds: int, turn: int) -> int:
    """Tokens that the pool of an attention group has to hold, with pages to spare for the profile."""
    pages = -(-(isl + new_tokens(stage, rounds, turn) + PAGE) // PAGE)
    return (-(-max(stage.levels) // stage.dp) * pages + 1) * PAGE


def step_times(steps: Iterable[Any], plan: str, requests: int, skip: int, groups: int = 1) -> list[float]:
    """Milliseconds from the start of one decode step to the start of the next, of steps of ``requests`` requests under
    ``plan`` that came one after the other; the first ``skip`` are left out.

    ``steps`` are :class:`dsv4lab.timeline.records.StepRecord`. Several attention ``groups`` number their own: then
    what each step took.
    """

    def counts(step: Any) -> bool:
        return bool(step.mode == "decode" and step.plan == plan and step.requests == requests)

    ordered = sorted(steps, key=lambda step: step.start_ns)
    if groups > 1:
        return [step.dur_ns / 1e6 for step in ordered if counts(step)][skip * groups :]
    pairs = ((a, b) for a, b in pairwise(ordered) if b.step == a.step + 1 and counts(a) and counts(b))
    return [(b.start_ns - a.start_ns) / 1e6 for a, b in pairs][skip:]


def level_row(
    stage: Stage, level: int, times: Mapping[str, Sequence[Sequence[float]]], accepted: float
) -> dict[str, Any]:
    """What is kept of one level: ``times[plan][round]`` are step times in milliseconds.

    ``tpot_ms`` is the median step over the ``accepted`` tokens of a step and one; ``delta`` the median of ratios to
    ``off`` of the same round, minus 1.
    """
    tokens = 1.0 + accepted
    off = [median(part) for part in times["off"]]
    rows = {}
    for plan, rounds in times.items():
        own = [median(part) for part in rounds]
        step = median(own)
        delta = median(a / b for a, b in zip(own, off, strict=True)) - 1
        per_gpu = 1e3 * level * tokens / step / stage.ranks
        rows[plan] = {"step_ms": step, "tpot_ms": step / tokens, "delta": delta, "tokens_per_s_per_gpu": per_gpu}
    return {"kind": "level", "stage": stage.name, "level": level, "accepted": accepted, "plans": rows}


def passes(row: Mapping[str, Any]) -> bool | None:
    """Whether a level is at the bar: the seed's gain by the best plan, or no loss with ``auto``; None without a bar."""
    level, deltas = row["level"], {plan: found["delta"] for plan, found in row["plans"].items()}
    if level in SEED_GAINS:
        return bool(min(deltas.values()) <= SEED_GAINS[level])
    return bool(deltas["auto"] <= NOISE) if "auto" in deltas else None


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Tables of what was written: the seed's TPOT table by stage, profiles by rank, arrivals, and what is missing.

    The bar is that of whole models on GPUs.
    """
    out: list[str] = []
    machines = [row for row in rows if row["kind"] == "machine"]
    layers = {count for row in machines if (count := row.get("arguments", {}).get("layers")) is not None}
    out += [f"A dry run: the first {', '.join(map(str, sorted(layers)))} layers, not the model.", ""] if layers else []
    gpus = not layers and any(row.get("gpus") for row in machines)
    for name in dict.fromkeys(row["stage"] for row in rows if "stage" in row):
        mine = [row for row in rows if row.get("stage") == name]
        out += [f"## {name}", "", *_levels([r for r in mine if r["kind"] == "level"], barred=gpus)]
        out += [_same(row) for row in mine if row["kind"] == "tokens"]
        out += _profiles([r for r in mine if r["kind"] == "profile"])
        out += [f"Left out: {row['what']}." for row in mine if row["kind"] == "left_out"]
        out.append("")
    return "\n".join(out).replace("\n\n\n", "\n\n").rstrip() + "\n"


def _levels(rows: Sequence[Mapping[str, Any]], *, barred: bool) -> list[str]:
    if not rows:
        return []
    plans = [plan for plan in rows[0]["plans"] if plan != "off"]
    heads = ["concurrency", "TPOT off, ms", *plans, "the seed's", "tokens/s per GPU, off", "best", "bar"]
    lines = ["| " + " | ".join(heads) + " |", "| " + " | ".join("---:" for _ in heads) + " |"]
    for row in rows:
        off, others = row["plans"]["off"], [row["plans"][plan] for plan in plans]
        seed, good = SEED_GAINS.get(row["level"]), passes(row) if barred else None
        best = max(found["tokens_per_s_per_gpu"] for found in row["plans"].values())
        cells = [str(row["level"]), f"{off['tpot_ms']:.3f}", *(f"{100 * found['delta']:+.1f} %" for found in others)]
        cells += ["" if seed is None else f"{100 * seed:+.1f} %", f"{off['tokens_per_s_per_gpu']:.1f}", f"{best:.1f}"]
        cells.append("" if good is None else "met" if good else "missed")
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _same(row: Mapping[str, Any]) -> str:
    verdict = "the same" if row["same"] else "NOT the same"
    return f"Greedy tokens and fingerprints of {row['requests']} requests under {', '.join(row['plans'])}: {verdict}.\n"


def _profiles(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    heads = ("plan", "rank", "steps", "main, ms", "side, ms", "concurrency", "wall, ms")
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) - 1)]
    lines += [
        f"| {row['plan']} | {found['rank']} | {row['steps']} | {found['main_ms']:.3f} | {found['side_ms']:.3f} | "
        f"{found['concurrency']:.3f} | {row['wall_ms']:.3f} |"
        for row in rows
        for found in row["ranks"]
    ]
    said = [
        f"Arrival at {found['collectives']} collectives under {row['plan']}: ranks {found['median_skew_us']:.1f} us "
        f"apart in the median, {found['most_skew_us']:.1f} us at most; rank {found['last_rank']} was last most often."
        for row in rows
        if (found := row["arrivals"])
    ]
    return [*lines, "", *said, ""]


def plan_json(stages: Sequence[Stage]) -> list[dict[str, Any]]:
    """The stages as JSON."""
    return [asdict(stage) for stage in stages]
