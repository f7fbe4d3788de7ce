"""Text from files on a terminal: nothing in it may be taken for a control sequence or for markup."""

from __future__ import annotations

import unicodedata

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def clean(text: str) -> str:
    """``text`` with control and format characters shown as escapes (ESC as backslash, x, 1b)."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(ch if unicodedata.category(ch) not in _HIDDEN else _shown(ch) for ch in text)


def _shown(ch: str) -> str:
    code = ord(ch)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def clip(text: str, width: int) -> str:
    """``text`` cleaned, at most ``width`` characters, rich markup disarmed: fit for a table cell."""
    text = clean(text)
    if len(text) > width:
        text = text[: width - 1] + "…"
    return text.replace("[", "\\[")
