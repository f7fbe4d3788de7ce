"""Durations, sizes and rates as short text, with units."""

from __future__ import annotations

_TIME = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))
_BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_FLOPS = ((10**15, "PFLOP"), (10**12, "TFLOP"), (10**9, "GFLOP"), (10**6, "MFLOP"), (10**3, "kFLOP"))
_DIGITS = 3


def _significant(value: float) -> str:
    """Three significant digits, never an exponent: ``1.23``, ``45.6``, ``789``, ``1024``."""
    size = abs(value)
    for whole, limit in enumerate((10, 100, 1000), start=1):
        text = f"{value:.{_DIGITS - whole}f}"
        if size < limit and abs(float(text)) < limit:
            return text
    return f"{value:.0f}"


def _scaled(value: float, steps: tuple[tuple[int, str], ...], smallest: str) -> str:
    """``value`` in the largest unit of which there is at least one, after rounding."""
    for factor, unit in steps:
        if round(abs(value) / factor, _DIGITS) >= 1:
            return f"{_significant(value / factor)} {unit}"
    return f"{value:.0f} {smallest}" if float(value).is_integer() else f"{_significant(value)} {smallest}"


def ns_text(ns: float) -> str:
    """A duration given in nanoseconds: ``"830 ns"``, ``"1.23 µs"``, ``"45.6 ms"``, ``"12.0 s"``."""
    return _scaled(ns, _TIME, "ns")


def seconds_text(seconds: float) -> str:
    """A duration that someone waits for: ``"45 s"``, ``"12 min"``, ``"1.5 h"``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def bytes_text(n: float) -> str:
    """A size given in bytes, in binary units: ``"512 B"``, ``"1.50 KiB"``, ``"2.00 GiB"``."""
    return _scaled(n, _BYTES, "B")


def flops_text(n: float) -> str:
    """A count of floating-point operations, in decimal units: ``"1.50 GFLOP"``."""
    return _scaled(n, _FLOPS, "FLOP")


def rate_text(amount_text: str) -> str:
    """``"2.00 GiB"`` to ``"2.00 GiB/s"``."""
    return f"{amount_text}/s"


def ratio_text(ratio: float) -> str:
    """A speed-up or concurrency: ``"1.095×"``."""
    return f"{ratio:.3f}×"


def percent_text(fraction: float) -> str:
    """A signed change: ``0.034`` to ``"+3.4 %"``."""
    return f"{100 * fraction:+.1f} %"
