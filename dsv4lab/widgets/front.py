"""What the front ends share: their sources put together, and the palette of :mod:`dsv4lab.viz.theme` as plain data."""

from __future__ import annotations

from pathlib import Path

from dsv4lab.viz import theme as themes

_HERE = Path(__file__).parent


def module(*names: str) -> str:
    """One JavaScript module: ``front.js``, then the named files beside it, in this order."""
    return "\n".join((_HERE / name).read_text(encoding="utf-8") for name in ("front.js", *names))


def style(*names: str) -> str:
    """``front.css`` and the named style sheets beside it."""
    return "\n".join((_HERE / name).read_text(encoding="utf-8") for name in ("front.css", *names))


def palettes() -> dict[str, dict[str, str]]:
    """Colours of the page by theme: the same that every picture has."""
    return {name: _palette(name) for name in themes.THEMES}


def _palette(name: str) -> dict[str, str]:
    return {
        "paper": themes.paper_color(name),
        "ink": themes.ink_color(name),
        "muted": themes.muted_color(name),
        "raised": themes.raised_color(name),
        "line": themes.GRID,
        "faint": themes.FAINT,
        "idle": themes.IDLE,
        "accent": themes.BLUE,
        "mark": themes.READ,
        "warn": themes.RED,
    }
