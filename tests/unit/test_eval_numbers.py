"""The number that an answer ends in."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.evaluate.numbers import final_number, number_text

ANSWERS = {
    "She has 3 + 4 = 7 apples.\n#### 7": "7",
    "#### 1,234": "1234",
    "####-12": "-12",
    "#### $1,200.50": "1200.5",
    "#### 35%": "35",
    "#### 72 dollars, and 5 cents are left": "72",
    "First #### 3, then again\n#### 4": "4",
    "So the answer is \\boxed{42}.": "42",
    "\\boxed{\\frac{3}{4}}": "3/4",
    "\\boxed{\\text{about } 1{,}000{,}000 \\text{ cells}}": "1000000",
    "\\boxed{12": "12",
    "\\boxed{-\\$5}, not 7": "-5",
    "It costs 5 dollars and later 10.": "10",
    "The total is $18.00.": "18",
    "**Answer: 99**": "99",
    "x = -5": "-5",
    "x = \N{MINUS SIGN}5.25": "-5.25",
    "-$7": "-7",
    "$-7": "-7",
    "10-5": "5",
    "(10)-5": "5",
    "10 - 5 = 5": "5",
    "between 5-10": "10",
    "pick 1, 2, 3": "3",
    "3,4,5": "5",
    "1,2345": "2345",
    "12,345,678 people": "12345678",
    "1\N{NARROW NO-BREAK SPACE}234\N{NARROW NO-BREAK SPACE}567": "1234567",
    "a probability of .5": "1/2",
    "two thirds, that is 2/3": "2/3",
    "6 / 4": "3/2",
    "1/0": "1",
    "room A7 has 3": "3",
    "5kg": "5",
    "50 %": "50",
    "€3": "3",
    "3.14159": "3.14159",
    "#### none of them, so 8 at first": "8",
    "it is 4 ####": "4",
}


@pytest.mark.parametrize("text", ANSWERS)
def test_answers(text: str) -> None:
    assert final_number(text) == Fraction(ANSWERS[text])


@pytest.mark.parametrize("text", ["", "no number", "####", "A7", "\\boxed{x}", "one hundred"])
def test_no_number_is_an_invalid_answer(text: str) -> None:
    assert final_number(text) is None


@given(st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**9), max_value=10**9))
def test_every_decimal_is_read_as_written(number: object) -> None:
    assert final_number(f"I think: #### {number:,}") == Fraction(str(number))
    assert final_number(f"so we get {number}.") == Fraction(str(number))


@given(st.text())
def test_no_text_fails(text: str) -> None:
    final_number(text)


def test_numbers_are_shown_as_people_write_them() -> None:
    shown = {"7": "7", "1200.5": "1200.5", "1/3": "1/3", "-0.125": "-0.125"}
    for written, says in shown.items():
        assert number_text(Fraction(written)) == says
    assert number_text(None) == "none"
