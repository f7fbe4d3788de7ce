"""Text from trace files made harmless: names there are anybody's."""

from __future__ import annotations

import unicodedata

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def clean(text: str) -> str:
    """``text`` with control and format characters shown as escapes (ESC as backslash, x, 1b): one harmless line."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(ch if unicodedata.category(ch) not in _HIDDEN else _shown(ch) for ch in text)


def _shown(ch: str) -> str:
    code = ord(ch)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
