"""The callback thread: in order, one at a time, and not harmed by what it runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from dsv4lab.engine.callbacks import Callbacks

WAIT_S = 30.0


@pytest.fixture
def callbacks() -> Iterator[Callbacks]:
    made = Callbacks()
    yield made
    made.close()


def test_they_run_in_order_on_one_other_thread(callbacks: Callbacks) -> None:
    seen: list[tuple[int, int]] = []
    for i in range(50):
        callbacks.post(lambda i=i: seen.append((i, threading.get_ident())))
    assert callbacks.flush(WAIT_S)
    assert [i for i, _ in seen] == list(range(50))
    assert {thread for _, thread in seen} != {threading.get_ident()}
    assert len({thread for _, thread in seen}) == 1


def test_an_exception_is_logged_and_kept_and_ends_nothing(
    callbacks: Callbacks, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(text: str) -> None:
        raise ValueError(text)

    seen: list[int] = []
    with caplog.at_level(logging.ERROR):
        callbacks.post(broken, "planted")
        callbacks.post(seen.append, 1)
        assert callbacks.flush(WAIT_S)
    assert seen == [1]
    assert [str(error) for error in callbacks.errors] == ["planted"]
    assert "ValueError: planted" in caplog.text


def test_a_slow_callback_loses_updates_and_not_its_order(callbacks: Callbacks) -> None:
    started, go = threading.Event(), threading.Event()
    seen: list[int] = []

    def slow(number: int) -> None:
        started.set()
        assert go.wait(WAIT_S)
        seen.append(number)

    callbacks.post(slow, 0, room=2)
    assert started.wait(WAIT_S)
    for number in range(1, 6):
        callbacks.post(slow, number, room=2)
    assert callbacks.dropped == 3
    go.set()
    assert callbacks.flush(WAIT_S)
    assert seen == [0, 1, 2]


def test_flushing_from_a_callback_does_not_wait_for_itself(callbacks: Callbacks) -> None:
    answers: list[bool] = []
    callbacks.post(lambda: answers.append(callbacks.flush(WAIT_S)))
    assert callbacks.flush(WAIT_S)
    assert answers == [True]


def test_flush_gives_up(callbacks: Callbacks) -> None:
    go = threading.Event()
    callbacks.post(go.wait, WAIT_S)
    assert not callbacks.flush(0.01)
    go.set()


def test_after_the_end_nothing_runs(callbacks: Callbacks) -> None:
    callbacks.close()
    callbacks.post(pytest.fail, "ran after the end")
    assert callbacks.flush(WAIT_S)
