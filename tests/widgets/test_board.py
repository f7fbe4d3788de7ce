from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.errors import UsageError
from dsv4lab.viz.sheet import Heading, Sheet
from dsv4lab.widgets import wire
from dsv4lab.widgets.board import PATIENCE_S, Board


def sheet(y: Any, *, title: str = "t", traces: int = 1) -> Sheet:
    made = Sheet(Heading(title), [100])
    for _ in range(traces):
        made.add("scatter", x=np.arange(3), y=y, name="a")
    return made


def decoded(value: Any, buffers: list[bytes]) -> Any:
    if isinstance(value, list):
        return [decoded(v, buffers) for v in value]
    if isinstance(value, dict) and "$buffer" in value:
        return np.frombuffer(buffers[value["$buffer"]], value["dtype"]).reshape(value["shape"])
    return {k: decoded(v, buffers) for k, v in value.items()} if isinstance(value, dict) else value


class Page:
    """Stands for the browser: keeps what a board sends, and answers when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.board = Board([("p", True), ("q", False)], clock=lambda: self.now)
        self.sent: list[tuple[dict[str, Any], list[bytes]]] = []
        monkeypatch.setattr(self.board, "send", lambda message, buffers=(): self.sent.append((message, list(buffers))))

    def says(self, kind: str) -> None:
        self.board._handle_custom_msg({"kind": kind}, [])

    def kinds(self) -> list[str]:
        return [message["kind"] for message, _ in self.sent]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Page:
    return Page(monkeypatch)


def test_first_whole_then_only_what_changed(page: Page) -> None:
    page.board.show({"p": sheet([1, 2, 3])})
    page.says("drawn")
    page.board.show({"p": sheet([1, 2, 4])})
    (first, _), (second, buffers) = page.sent
    assert (first["kind"], second["kind"]) == ("full", "patch")
    assert set(first["templates"]) == {"light", "dark"}
    assert decoded(second["cells"], buffers) == {"p": {"traces": [{"y": [1, 2, 4]}], "layout": {}}}


def test_equal_sheets_send_nothing(page: Page) -> None:
    page.board.show({"p": sheet(np.array([1.0, np.nan]))})
    page.says("drawn")
    page.board.show({"p": sheet(np.array([1.0, np.nan]))})
    assert page.kinds() == ["full"]


def test_another_number_of_traces_is_sent_whole(page: Page) -> None:
    page.board.show({"p": sheet([1])})
    page.says("drawn")
    page.board.show({"p": sheet([1], traces=2)})
    assert page.kinds() == ["full", "full"]


def test_a_slow_page_gets_the_latest_when_it_is_ready(page: Page) -> None:
    page.board.show({"p": sheet([0])})
    for value in range(1, 6):
        page.board.show({"p": sheet([value])})
    assert page.kinds() == ["full"]
    page.says("drawn")
    assert page.kinds() == ["full", "patch"]
    assert page.sent[1][0]["cells"]["p"]["traces"] == [{"y": [5]}]
    page.says("drawn")
    assert len(page.sent) == 2


def test_a_silent_page_gets_one_a_second(page: Page) -> None:
    page.board.show({"p": sheet([0])})
    page.now = PATIENCE_S / 2
    page.board.show({"p": sheet([1])})
    assert len(page.sent) == 1
    page.now = PATIENCE_S
    page.board.show({"p": sheet([2])})
    assert page.kinds() == ["full", "patch"]


def test_a_new_view_gets_everything(page: Page) -> None:
    page.board.show({"p": sheet([1]), "q": sheet([2])})
    page.says("hello")
    message, _ = page.sent[-1]
    assert message["kind"] == "full"
    assert set(message["cells"]) == {"p", "q"}


def test_plotly_is_sent_when_a_page_asks(page: Page) -> None:
    page.says("need-plotly")
    message, buffers = page.sent[-1]
    assert message == {"kind": "plotly"}
    assert b"plotly.js" in buffers[0][:200]


def test_unknown_theme_is_refused() -> None:
    with pytest.raises(UsageError, match="auto, light, dark"):
        Board([], theme="pink")


def test_repr_is_cheap() -> None:
    assert repr(Board([("p", True)])) == "<Board of 1 pictures>"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(VALUES)
def test_plain_values_come_through_as_json(value: Any) -> None:
    buffers: list[bytes] = []
    assert json.loads(json.dumps(wire.encoded(value, buffers))) == value
    assert buffers == []


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([[1.5, np.nan]]), "float64"),
        (np.array([1, 2], np.int64), "int32"),
        (np.array([2**40]), "float64"),
        (np.array([True, False]), "int32"),
        (np.zeros((0, 3), np.float32), "float32"),
    ],
)
def test_arrays_travel_as_bytes(array: np.ndarray, dtype: str) -> None:
    buffers: list[bytes] = []
    message = wire.encoded(array, buffers)
    assert message["dtype"] == dtype
    np.testing.assert_array_equal(decoded(message, buffers), array.astype(dtype))


def test_texts_in_arrays_travel_as_lists() -> None:
    assert wire.encoded(np.array([["a", None]], object), []) == [["a", None]]
