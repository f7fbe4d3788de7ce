"""The number that an answer ends in."""

from __future__ import annotations

import re
from fractions import Fraction

MARK = "####"
"""What GSM8K's answers put before the result."""

_BOXED = "\\boxed{"
_CURRENCY = "$€£¥₹"
_MINUS = "-\N{MINUS SIGN}\N{EN DASH}"
_THIN = ",\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{THIN SPACE}"
_NUMBER = re.compile(
    rf"""
    (?P<minus> (?<![\w)\]}}.]) [{_MINUS}] \s? )?     # no minus after a number or a closing bracket: there it subtracts
    (?: [{_CURRENCY}] \s? (?P<inner> [{_MINUS}] )? )?
    (?<! [A-Za-z_] )
    (?P<whole> \d{{1,3}} (?: [{_THIN}] \d{{3}} )+ (?! \d ) | \d+ | (?<! \d ) (?= \. \d ) )
    (?P<part> \. \d+ )?
    (?: \s? / \s? (?P<over> \d+ ) (?! [\d/] ) )?
    """,
    re.VERBOSE,
)
_LATEX = (
    (re.compile(r"\\[dt]?frac\s*\{([^{}]+)\}\s*\{([^{}]+)\}"), r"\1/\2"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\([$%])"), r"\1"),
    (re.compile(r"\\[,!;: ]"), ""),
)


def final_number(text: str) -> Fraction | None:
    r"""The number after the last ``####``; else the one in the last ``\boxed{}``; else the last of the text.

    Thousands separators, a leading or trailing currency sign and a percent sign are passed over (``$1,200.50`` is
    1200.5, ``35 %`` is 35), ``3/4`` and LaTeX fractions are fractions. None if there is no number: an invalid answer.
    """
    text = _plain(text)
    _, mark, after = text.rpartition(MARK)
    if mark and (found := _numbers(after)):
        return found[0]
    if (boxed := _last_boxed(text)) is not None and (found := _numbers(boxed)):
        return found[-1]
    found = _numbers(text)
    return found[-1] if found else None


def number_text(number: Fraction | None) -> str:
    """As people write it; ``none`` for none."""
    if number is None:
        return "none"
    if number.denominator == 1:
        return str(number.numerator)
    ends = pow(10, number.denominator.bit_length(), number.denominator) == 0  # as a decimal: no primes but 2 and 5
    return f"{float(number):.15g}" if ends else str(number)


def _plain(text: str) -> str:
    for pattern, instead in _LATEX:
        text = pattern.sub(instead, text)
    return text


def _numbers(text: str) -> list[Fraction]:
    return [_value(match) for match in _NUMBER.finditer(text)]


def _value(match: re.Match[str]) -> Fraction:
    digits = re.sub(rf"[{_THIN}]", "", match["whole"]) or "0"
    value = Fraction(digits + (match["part"] or ""))
    if match["over"] and int(match["over"]):
        value /= int(match["over"])
    return -value if match["minus"] or match["inner"] else value


def _last_boxed(text: str) -> str | None:
    r"""What the braces of the last ``\boxed{`` hold, to the end of the text if they do not close."""
    at = text.rfind(_BOXED)
    if at < 0:
        return None
    start = at + len(_BOXED)
    depth = 1
    for end in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start:end]
    return text[start:]
