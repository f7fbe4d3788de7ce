"""Plots of recorded results as SVG: speed over bound.

    python kernels/bench/plots.py [--results kernels/bench/results] [--out docs/images]

Reads the JSONL files of the results folder; needs no GPU and no plotting library.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
COPY_GBPS, BF16_TFLOPS = 4240.0, 790.0
STYLE = (
    "<style>text{font:11px system-ui,sans-serif;fill:#333}.g{stroke:#ddd}.ours{fill:#1b6ca8}.fp8{fill:#2e8b57}"
    ".fm{fill:none;stroke:#c0392b;stroke-width:1.6}.sgl{stroke:#777;stroke-width:1.6}.bar{fill:#1b6ca8}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.g{stroke:#444}.ours,.bar{fill:#5aa9e6}.fp8{fill:#63c98c}"
    ".fm{stroke:#ff7f6e}.sgl{stroke:#aaa}}</style>"
)


def rows_of(file: Path) -> list[Row]:
    """The rows of a results file, without its header."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if not row.get("header")]


def floor_us(row: Row) -> float:
    """The larger of the two floors: bytes at the copy rate, operations at the bf16 matrix rate."""
    return max(float(row["bytes"]) / COPY_GBPS / 1e3, float(row["flops"]) / BF16_TFLOPS / 1e6)


def decode_plot(defaults: Sequence[Row], peers: Sequence[Row]) -> str:
    """Speed over bound of sparse decode at each point of the grid, and what the peers' times are of the same bound."""
    keys = ("heads", "tokens", "length")
    ours = {(r["kernel"], *(r[k] for k in keys)): r for r in defaults}
    marks: list[str] = []
    points = [r for r in peers if r["kernel"] == "sparse_decode"]
    heads = sorted({r["heads"] for r in points})
    width, panel = 900, 190
    for at, h in enumerate(heads):
        top = 40 + at * (panel + 46)
        marks += grid(top, panel, width, f"{h} heads")
        here = sorted((r for r in points if r["heads"] == h), key=lambda r: (r["length"], r["tokens"]))
        for n, r in enumerate(here):
            x = 60 + (width - 80) * (n + 0.5) / len(here)
            mine = ours["sparse_decode", h, r["tokens"], r["length"]]
            packed = ours["sparse_decode_fp8", h, r["tokens"], r["length"]]
            bound = floor_us(mine)
            marks.append(cross(x, top + panel * (1 - share(bound / r["sglang_us"]))))
            if r["flashmla_us"]:
                marks.append(circle(x, top + panel * (1 - share(bound / r["flashmla_us"])), "fm", 4))
            marks.append(circle(x, top + panel * (1 - share(bound / packed["us"])), "fp8", 3))
            marks.append(circle(x, top + panel * (1 - share(bound / mine["us"])), "ours", 4))
            label = r["tokens"] if h == heads[-1] else ""
            marks.append(f'<text x="{x:.0f}" y="{top + panel + 13}" text-anchor="middle">{label}</text>')
            if r["tokens"] == 8:
                marks.append(f'<text x="{x:.0f}" y="{top + panel + 28}" text-anchor="middle">{r["length"]} rows</text>')
    text = "bound / time; blue dots bf16 pool, green fp8 pool, rings FlashMLA, crosses sglang; by tokens; bf16 bound"
    legend = f'<text x="60" y="18">{text}</text>'
    return svg(width, 40 + len(heads) * (panel + 46), [legend, *marks])


def share(value: float) -> float:
    """Place of a share of the bound on the square-root axis."""
    return math.sqrt(min(value, 1.0))


def grid(top: float, panel: float, width: float, title: str) -> list[str]:
    """Lines and labels of one panel."""
    out = [f'<text x="60" y="{top - 6}" font-weight="600">{title}</text>']
    for percent in (1, 5, 10, 25, 50, 75, 100):
        y = top + panel * (1 - share(percent / 100))
        out.append(f'<line class="g" x1="56" x2="{width - 16}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text x="50" y="{y + 4:.1f}" text-anchor="end">{percent}%</text>')
    return out


def bars_plot(rows: Sequence[Row]) -> str:
    """Speed over bound of the kernels that move at least 16 MB."""
    big = [r for r in rows if r.get("us") and r["bytes"] >= 16 * 2**20 and r["variant"] == "triton"]
    big.sort(key=lambda r: (r["kernel"], r["case"]))
    marks = ['<text x="250" y="18">bound / time on an H200; number: GB/s</text>']
    for n, r in enumerate(big):
        y, part = 30 + 20 * n, min(floor_us(r) / r["us"], 1.0)
        marks.append(f'<text x="242" y="{y + 12}" text-anchor="end">{r["kernel"]} {r["case"]}</text>')
        marks.append(f'<rect class="bar" x="250" y="{y}" width="{500 * part:.1f}" height="14"/>')
        marks.append(f'<text x="{256 + 500 * part:.1f}" y="{y + 12}">{part:.0%}, {r["gbps"]:.0f}</text>')
    for percent in (80, 100):
        x = 250 + 5 * percent
        marks.append(f'<line class="g" x1="{x}" x2="{x}" y1="24" y2="{30 + 20 * len(big)}"/>')
    return svg(860, 40 + 20 * len(big), marks)


def circle(x: float, y: float, kind: str, r: float) -> str:
    """One dot."""
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>'


def cross(x: float, y: float) -> str:
    """One cross."""
    lines = ((-4, -4, 4, 4), (-4, 4, 4, -4))
    return "".join(
        f'<line class="sgl" x1="{x + a:.1f}" y1="{y + b:.1f}" x2="{x + c:.1f}" y2="{y + d:.1f}"/>'
        for a, b, c, d in lines
    )


def svg(width: float, height: float, marks: Iterable[str]) -> str:
    """The whole picture."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}">{STYLE}'
    return head + "".join(marks) + "</svg>\n"


def main() -> None:
    """Write both pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[2] / "docs" / "images")
    args = parser.parse_args()
    defaults, peers = (rows_of(args.results / f"{name}.jsonl") for name in ("h200-attention-defaults", "peers-h200"))
    (args.out / "kernels_decode.svg").write_text(decode_plot(defaults, peers), encoding="utf-8")
    kernels = [row for file in sorted(args.results.glob("h200*kernels*.jsonl")) for row in rows_of(file)]
    (args.out / "kernels_bound.svg").write_text(bars_plot(kernels), encoding="utf-8")


if __name__ == "__main__":
    main()
