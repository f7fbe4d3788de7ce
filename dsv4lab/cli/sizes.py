"""Sizes of memory as options take them."""

from __future__ import annotations

import re
from collections.abc import Callable

from dsv4lab.errors import UsageError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|[KMGT]i?B)?", re.IGNORECASE)
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


def size(option: str) -> Callable[[str], int]:
    """An argparse type: bytes, as a number with or without a unit (GB is 10^9, GiB 2^30)."""

    def parse(text: str) -> int:
        found = _SIZE.fullmatch(text.strip())
        if found is None:
            raise UsageError(f"{option}: got {text!r}, it takes bytes, such as 80GiB, 141GB or 85899345920")
        unit = (found[2] or "B").upper()
        factor = 1 if unit == "B" else (1024 if "I" in unit else 1000) ** _POWERS[unit[0]]
        return int(float(found[1]) * factor) if "." in found[1] else int(found[1]) * factor

    return parse
