from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import dsv4lab as lab
from dsv4lab.errors import UsageError
from dsv4lab.overlap.plan import OverlapPlan, Rule
from dsv4lab.widgets.base import ErrorPane, View
from dsv4lab.widgets.overlap_lab import OverlapLab


class Bench:
    """A lab over a fake client, driven by hand."""

    def __init__(self, fakes: ModuleType, **options: Any) -> None:
        self.client = fakes.FakeClient()
        self.lab = OverlapLab(self.client, _threaded=False, **options)
        self.c = self.lab.controls
        self.run()

    def run(self) -> None:
        while self.lab._pump.turn():
            pass

    def redraw(self) -> None:
        self.lab._pump._drawn_at = self.lab.engine._pool_at = self.lab.pictures._lanes_at = float("-inf")
        self.lab._pump.touch()
        self.run()

    def title(self, name: str) -> str:
        text: str = self.lab.pictures.board.sheets[name].layout["title"]["text"]
        return text


@pytest.fixture
def bench(fakes: ModuleType) -> Iterator[Bench]:
    made = Bench(fakes)
    yield made
    made.lab.close()


def test_controls_start_as_the_engine_is(bench: Bench) -> None:
    assert bench.c.plan.value == "hip"
    assert bench.c.queues.value == 4
    assert bench.c.apply_queues.disabled
    assert bench.c.side_streams.value == 0
    assert [label for label, _ in bench.c.reads.options][1:3] == ["layer 0 (SWA)", "layer 1 (CSA)"]
    assert bench.c.isl.options == (16, 64, 256, 1024)
    assert bench.client.calls == []


@pytest.mark.parametrize(
    ("control", "value", "call"),
    [
        ("plan", "cuda", ("set_plan", "cuda")),
        ("side_streams", 1, ("set_side_streams", 1)),
        ("policy", "refcount", ("set_queue_policy", "refcount")),
        ("decode", True, ("start_load", 2, 64, 256)),
    ],
)
def test_each_control_reaches_the_client(bench: Bench, control: str, value: Any, call: tuple[Any, ...]) -> None:
    getattr(bench.c, control).value = value
    assert bench.client.calls == []  # not on the notebook's thread
    bench.run()
    assert bench.client.calls == [call]


def test_the_load_follows_its_controls_only_while_it_runs(bench: Bench) -> None:
    bench.c.concurrency.value = 3
    bench.run()
    assert bench.client.calls == []
    bench.c.decode.value = True
    bench.run()
    bench.c.isl.value = 256
    bench.run()
    bench.c.decode.value = False
    bench.run()
    assert bench.client.calls == [("start_load", 3, 64, 256), ("start_load", 3, 256, 256), ("stop_load",)]
    assert bench.c.decode.description == "Start decoding"


def test_queues_wait_for_apply_and_say_that_it_restarts(bench: Bench) -> None:
    bench.c.queues.value = 2
    bench.run()
    assert bench.client.calls == []
    assert not bench.c.apply_queues.disabled
    assert "restart" in bench.c.apply_queues.description
    assert "restarts the worker" in bench.c.note.value
    stages: list[tuple[float, str]] = []
    bench.c.progress.observe(lambda change: stages.append((change["new"], bench.c.stage.value)), "value")
    bench.c.apply_queues.click()
    bench.run()
    assert bench.client.calls == [("set_hw_queues", 2)]
    assert stages[0][0] == 0.5
    assert bench.c.progress.layout.display == "none"
    assert bench.c.apply_queues.disabled


def test_a_pending_choice_of_queues_survives_drawing(bench: Bench) -> None:
    bench.c.queues.value = 8
    bench.client.decode()
    bench.redraw()
    assert bench.c.queues.value == 8


def test_pictures_follow_the_forwards(bench: Bench) -> None:
    assert "no decode forward" in bench.lab.pictures.board.sheets["ribbon"].layout["annotations"][0]["text"]
    bench.client.decode()
    bench.redraw()
    assert "hip, 4 hardware queues, 2 in flight" in bench.title("ribbon")
    assert "run at once" in bench.title("queues")
    assert "per forward" in bench.title("busy")
    assert "30 slices on 2 streams" in bench.title("lanes")
    assert "2 of 5 pages in use" in bench.title("pool")
    assert "worker 77" in bench.lab.status.value


def test_freeze_stops_the_pictures(bench: Bench) -> None:
    bench.c.freeze.value = True
    bench.client.decode()
    bench.redraw()
    assert "slices" not in bench.title("lanes")
    bench.c.freeze.value = False
    bench.redraw()
    assert "slices" in bench.title("lanes")


def test_pictures_pause_while_nobody_looks(bench: Bench) -> None:
    board = bench.lab.pictures.board
    board._view_count = 1
    bench.redraw()
    board._view_count = 0
    bench.client.decode()
    bench.redraw()
    assert "slices" not in bench.title("lanes")


def test_a_pinned_baseline_stands_beside_what_follows(bench: Bench) -> None:
    bench.client.decode()
    bench.redraw()
    bench.c.pin.value = True
    bench.run()
    bench.c.plan.value = "off"
    bench.run()
    bench.redraw()
    notes = [note["text"] for note in bench.lab.pictures.board.sheets["busy"].layout["annotations"]]
    assert notes[0].startswith("<b>pinned, hip · 4 queues</b>")
    assert notes[1].startswith("<b>now, off · 4 queues</b>")
    bench.c.pin.value = False
    bench.run()
    assert "annotations" not in bench.lab.pictures.board.sheets["busy"].layout


def test_rows_read_by_a_query(bench: Bench) -> None:
    bench.c.reads.value = 1
    bench.run()
    assert ("query_reads", 5, None, 1) in bench.client.calls
    assert "rows that request 5 reads at position 300 in layer 1" in bench.title("pool")


def test_controls_follow_changes_from_elsewhere(bench: Bench) -> None:
    mine = OverlapPlan("mine", (Rule("compressor.*", "side0"),))
    bench.client.plan, bench.client.hw_queues = mine, 3
    bench.client.changed()
    bench.run()
    assert (bench.c.plan.value, bench.c.queues.value) == ("mine", 3)
    bench.run()
    assert bench.client.calls == []


def test_an_error_is_shown_escaped_and_the_control_goes_back(bench: Bench, fakes: ModuleType) -> None:
    bench.client.refuse = fakes.unknown_plan()
    bench.c.plan.value = "cuda"
    bench.run()
    assert "unknown op &lt;b&gt;x&lt;/b&gt;" in bench.lab.errors.value
    assert bench.lab.errors.layout.display is None
    assert bench.c.plan.value == "hip"
    assert not bench.c.plan.disabled
    bench.client.refuse = None
    bench.c.plan.value = "off"
    bench.run()
    assert bench.lab.errors.value == ""


def test_a_dead_worker_is_a_message_and_a_button(bench: Bench) -> None:
    bench.c.decode.value = True
    bench.run()
    bench.client.die()
    bench.run()
    bench.redraw()
    assert "signal 9" in bench.lab.errors.value
    assert bench.c.restart.layout.display is None
    assert bench.c.plan.disabled
    assert not bench.c.decode.value
    assert "no worker" in bench.lab.status.value
    bench.c.restart.click()
    bench.run()
    assert bench.client.calls[-1] == ("restart",)
    assert bench.c.restart.layout.display == "none"
    assert not bench.c.plan.disabled


def test_close_ends_the_watching_and_its_own_load(fakes: ModuleType) -> None:
    bench = Bench(fakes, concurrency=4, prompt_tokens=100)
    bench.c.decode.value = True
    bench.run()
    bench.lab.close()
    assert bench.client.calls == [("start_load", 4, 100, 256), ("stop_load",)]
    assert bench.client.watchers == bench.client.mourners == []


def test_the_thread_draws_by_itself_and_ends(fakes: ModuleType) -> None:
    import threading

    client = fakes.FakeClient()
    drawn = threading.Event()
    view = lab.dashboard(client)
    view.pictures.board.send = lambda message, buffers=(): "busy" in message.get("cells", {}) and drawn.set()
    for n in range(600):  # a page that never answers gets a drawing a second, when there is news
        client.decode(first=3 * n)
        if drawn.wait(0.1):
            break
    assert drawn.is_set()
    thread = view._pump._thread
    view.close()
    assert thread is not None
    assert not thread.is_alive()


def test_own_plans_can_be_offered(fakes: ModuleType) -> None:
    mine = OverlapPlan("mine", (Rule("compressor.*", "side0"),))
    bench = Bench(fakes, plans=[mine])
    bench.c.plan.value = "mine"
    bench.run()
    assert bench.client.calls == [("set_plan", "mine")]
    bench.lab.close()
    with pytest.raises(UsageError, match="OverlapPlan objects, got str"):
        OverlapLab(fakes.FakeClient(), plans=["off"], _threaded=False)


def test_unknown_options_are_refused_with_a_hint(fakes: ModuleType) -> None:
    with pytest.raises(UsageError, match="did you mean 'concurrency'"):
        lab.dashboard(fakes.FakeClient(), concurency=2)
    with pytest.raises(UsageError, match="OverlapLab takes no 'zzz'"):
        lab.dashboard(fakes.FakeClient(), zzz=2)


def test_repr_is_cheap(bench: Bench) -> None:
    assert repr(bench.lab) == "<OverlapLab>"


def test_guarded_callbacks_show_and_log_unexpected_errors(caplog: pytest.LogCaptureFixture) -> None:
    view = View()
    view.guarded(lambda: 1 / 0)()
    assert "ZeroDivisionError: division by zero" in view.errors.value
    assert "Traceback" in caplog.text


def test_the_pane_takes_no_room_when_empty() -> None:
    pane = ErrorPane()
    pane.show("<i>")
    assert "&lt;i&gt;" in pane.value
    pane.clear()
    assert (pane.layout.display, pane.value) == ("none", "")
