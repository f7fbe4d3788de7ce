"""Numbers as text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.units import bytes_text, flops_text, ns_text, percent_text, rate_text, ratio_text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (830, "830 ns"),
        (1_234, "1.23 µs"),
        (999_400, "999 µs"),
        (999_600, "1.00 ms"),
        (45_600_000, "45.6 ms"),
        (1_269_500_000, "1.27 s"),
        (3_600_000_000_000, "3600 s"),
        (-1_500_000, "-1.50 ms"),
        (12.5, "12.5 ns"),
    ],
)
def test_durations(ns: float, text: str) -> None:
    assert ns_text(ns) == text


def test_sizes_are_binary_and_operations_decimal() -> None:
    assert bytes_text(512) == "512 B"
    assert bytes_text(1536) == "1.50 KiB"
    assert bytes_text(2 << 30) == "2.00 GiB"
    assert flops_text(1_500_000_000) == "1.50 GFLOP"
    assert rate_text(bytes_text(3 << 40)) == "3.00 TiB/s"


def test_ratios_and_changes() -> None:
    assert ratio_text(1.09512) == "1.095×"
    assert percent_text(-0.0344) == "-3.4 %"
    assert percent_text(0.2) == "+20.0 %"


@given(st.integers(1, 10**18))
def test_text_is_within_half_a_percent_of_the_number(ns: int) -> None:
    number, unit = ns_text(ns).split()
    assert re.fullmatch(r"\d+(\.\d+)?", number)
    factor = {"ns": 1, "µs": 10**3, "ms": 10**6, "s": 10**9}[unit]
    assert abs(float(number) * factor - ns) <= 0.005 * ns + 1e-9
