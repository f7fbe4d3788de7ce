"""Text from files on a terminal: nothing in it may be taken for a control sequence or for markup."""

from __future__ import annotations

from dsv4lab.trace.text import clean

__all__ = ["clean", "clip", "cut"]


def cut(text: str, width: int) -> str:
    """``text`` cleaned, at most ``width`` characters."""
    text = clean(text)
    return text if len(text) <= width else text[: width - 1] + "…"


def clip(text: str, width: int) -> str:
    """``text`` cleaned, at most ``width`` characters, rich markup disarmed: fit for a table cell."""
    return cut(text, width).replace("[", "\\[")
