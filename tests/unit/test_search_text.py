"""What a search says while it runs."""

from __future__ import annotations

from dsv4lab.tuning.search.runner import Progress
from dsv4lab.tuning.search.text import told_once


def test_each_thing_is_told_once_as_it_begins() -> None:
    said: list[str] = []
    tell = told_once(said.append)
    for now in (
        Progress(0, 6, "forecast", None), Progress(0, 6, "forecast", None), Progress(0, 6, "off", 12.4),
        Progress(1, 6, "hip", 9.0), Progress(1, 6, "off", 8.0),
    ):  # fmt: skip
        tell(now)
    assert said == ["0 of 6: forecast", "0 of 6, 12 s left: off", "1 of 6, 9 s left: hip"]
