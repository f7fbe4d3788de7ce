"""The sensitivity of an answer as text: which assumed values it leans on, and where they would turn it round."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from dsv4lab.cli.output import console, table
from dsv4lab.cli.safe import clip

WIDTH = 80


def print_leans(rows: Sequence[dict[str, Any]]) -> None:
    """A table of at most 80 columns and, below it, what each value rests on."""
    out = console()
    if not rows:
        out.print("no assumed value moves this answer by 0.2 points when it is halved or doubled\n")
        return
    cells = [[clip(r["name"], 26), _now(r), *(f"{r[k]:+.1%}" for k in ("low", "high")), turns_at(r)] for r in rows]
    table(["leans on (assumed)", "now", "saved at half", "at double", "turns at"], cells)
    for row in rows:
        text = f"{row['name']}: {row['source']}"
        out.print("\n".join(textwrap.wrap(text, WIDTH, subsequent_indent="  ")), markup=False)
    out.print()


def _now(row: dict[str, Any]) -> str:
    if row["unit"] == "0 or 1":
        return "yes" if row["value"] else "no"
    return f"{row['value']:g} {row['unit']}".strip()


def turns_at(row: dict[str, Any]) -> str:
    """Where the answer changes sign, and how far that is from the present value."""
    flips = row["flips_at"]
    if flips is None:
        return "never" if row["unit"] == "0 or 1" else "not within x8"
    if row["unit"] == "0 or 1":
        return "yes" if flips else "no"
    return f"{flips:.3g} (x{flips / row['value']:.2g})"
