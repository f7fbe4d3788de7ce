"""Bundles as words and tables. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dsv4lab.backends.selfcheck import CheckRow
from dsv4lab.tuning.bundle.compare import BundleComparison, LevelSide
from dsv4lab.tuning.overlap.tables import DASH, percent, share_text, us
from dsv4lab.tuning.table_text import Table


def check_table(rows: Sequence[CheckRow]) -> Table:
    """Verdicts by backend, and each kernel that has a bad one."""
    backends: dict[str, list[CheckRow]] = {}
    for row in rows:
        backends.setdefault(row.backend, []).append(row)
    cells: list[tuple[str, ...]] = []
    for backend, cases in backends.items():
        kernels = {row.kernel for row in cases}
        bad = sorted({row.kernel for row in cases if not row.passes})
        good = sum(row.passes for row in cases)
        cells.append((backend, str(len(kernels)), f"{good}/{len(cases)}", ", ".join(bad) or DASH))
    return ("backend", "kernels", "cases", "bad"), cells


def fact_table(found: BundleComparison) -> Table:
    """Facts that the two do not share."""
    return ("what", "A", "B"), [(f.name, _text(f.a), _text(f.b)) for f in found.facts]


def counts_table(found: BundleComparison) -> Table:
    """Kernels that both checked, with other results."""
    both = [c for c in found.checks if not c.one_sided]
    rows: list[tuple[str, ...]] = [(c.kernel, c.backend, _passed(c.a), _passed(c.b)) for c in both]
    return ("kernel", "backend", "A", "B"), rows


def one_sided_text(found: BundleComparison) -> str:
    """How many kernels only one of the two checked, by backend; empty if none."""
    counts: dict[tuple[str, str], int] = {}
    for c in found.checks:
        if c.one_sided:
            side = ("A" if c.a[1] else "B", c.backend)
            counts[side] = counts.get(side, 0) + 1
    parts = [f"{name} {n} on {backend}" for (name, backend), n in counts.items()]
    return f"Kernels that only one of the two checked: {', '.join(parts)}." if parts else ""


def bad_lines(rows: Sequence[CheckRow], most: int = 6) -> list[str]:
    """What the first bad cases say, one of each kernel."""
    first = {(row.backend, row.kernel): row for row in reversed(rows) if not row.passes}
    return [f"{row.backend} {row.kernel}, {row.case}: {row.text}" for row in reversed(first.values())][:most]


def cost_table(found: BundleComparison) -> Table:
    """Probes side by side."""
    rows: list[tuple[str, ...]] = []
    for cost in found.costs:
        ratio = DASH if cost.ratio is None else f"{cost.ratio:.2f}×"
        rows.append((cost.name.replace("_", " "), _number(cost.a), _number(cost.b), ratio))
    return ("what", "A", "B", "B/A"), rows


def level_table(found: BundleComparison) -> Table:
    """Levels that both measured, a row for each."""
    rows: list[tuple[str, ...]] = []
    for pair in found.levels:
        rows.append((str(pair.concurrency), "A", *_side_cells(pair.a)))
        rows.append(("", "B", *_side_cells(pair.b)))
    return ("level", "", "before us", "after us", "change", "95 % interval", "hidden", "plan"), rows


def _side_cells(side: LevelSide) -> tuple[str, ...]:
    interval = DASH if side.low is None or side.high is None else f"{100 * side.low:+.1f} to {100 * side.high:+.1f}"
    return (
        us(side.control_us),
        us(side.best_us),
        percent(side.delta),
        interval,
        share_text(side.hidden),
        side.best,
    )


def _passed(counts: tuple[int, int]) -> str:
    return f"{counts[0]}/{counts[1]}" if counts[1] else DASH


def _text(value: object) -> str:
    return DASH if value is None else str(value)


def _number(value: float | None) -> str:
    if value is None:
        return DASH
    return str(value) if isinstance(value, int) else f"{value:.3g}"
