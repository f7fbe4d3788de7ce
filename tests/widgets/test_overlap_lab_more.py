"""The Overlap Lab on simulated GPUs, several labs on one client, exports, and cells that are run again."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dsv4lab.overlap.plan import PRESETS, OverlapPlan
from dsv4lab.widgets import cells
from dsv4lab.widgets.base import View
from dsv4lab.widgets.cells import Execution, OpenViews
from dsv4lab.widgets.exports import csv_bytes
from dsv4lab.widgets.overlap_lab import OverlapLab

HOSTILE = "<img src=x onerror=alert(1)></script>"


class Bench:
    """A lab over a fake client, driven by hand; ``files`` are what it hands to the browser."""

    def __init__(self, client: Any, **options: Any) -> None:
        self.client = client
        self.lab = OverlapLab(client, _threaded=False, **options)
        self.c = self.lab.controls
        self.files: dict[str, bytes] = {}
        board = self.lab.pictures.board
        board.save_file = lambda name, data, mime: self.files.__setitem__(name, data)  # type: ignore[method-assign]
        board.save_images = lambda name, form: self.files.__setitem__(f"{name}.{form}", b"")  # type: ignore[method-assign]
        self.run()

    def run(self) -> None:
        while self.lab._pump.turn():
            pass

    def redraw(self, *, rest: bool = False) -> None:
        pump = self.lab._pump
        pump._drawn_at = self.lab.engine._pool_at = self.lab.pictures._lanes_at = float("-inf")
        pump.touch()
        self.run()
        if rest and pump._later is not None:
            pump._later[1]()

    def title(self, name: str) -> str:
        text: str = self.lab.pictures.board.sheets[name].layout["title"]["text"]
        return text


@pytest.fixture
def bench(fakes: ModuleType) -> Iterator[Bench]:
    made = Bench(fakes.FakeClient())
    yield made
    made.lab.close()


def simulate(bench: Bench, device: str = "mi355x") -> None:
    bench.c.where.value = device
    bench.run()
    bench.redraw(rest=True)


def test_what_the_cpu_device_lacks_is_off_and_says_why(bench: Bench) -> None:
    assert bench.c.graphs.disabled
    assert bench.c.priority.disabled
    assert "the CPU device has none" in bench.c.graphs.tooltip
    assert "<b>priority, graphs</b>: the CPU device has none" in bench.c.reasons.value


def test_the_same_controls_drive_the_simulator(bench: Bench) -> None:
    simulate(bench)
    assert "simulated mi355x, rocm-10" in bench.lab.status.value
    assert "simulated, not measured" in bench.lab.status.value
    assert "slices on 3 streams" in bench.title("lanes")
    assert "against off" in bench.title("ribbon")
    assert "leans on" in bench.title("pool")
    assert not bench.c.graphs.disabled
    assert bench.c.apply_queues.layout.display == "none"
    assert "takes effect at once" in bench.c.note.value
    bench.c.queues.value = 2
    bench.c.plan.value = "cuda"
    bench.c.concurrency.value = 16
    bench.c.isl.value = 1024
    bench.run()
    setting = bench.lab.simulated.setting
    assert (setting.hw_queues, setting.plan, setting.concurrency, setting.isl) == (2, PRESETS["cuda"], 16, 1024)
    bench.redraw(rest=True)
    assert "against the setting before" in bench.title("ribbon")
    assert bench.client.calls == []


def test_priorities_need_ops_that_are_launched_one_by_one(bench: Bench) -> None:
    simulate(bench)
    assert bench.c.priority.disabled
    bench.c.graphs.value = False
    bench.run()
    assert not bench.c.priority.disabled
    bench.c.priority.value = -1
    bench.run()
    assert bench.lab.simulated.setting.side_priority == -1
    bench.c.graphs.value = True
    bench.run()
    assert bench.lab.simulated.setting.side_priority == 0


def test_another_device_brings_its_runtimes(bench: Bench) -> None:
    simulate(bench, "h200")
    assert bench.c.runtime.options == ("cuda-13",)
    bench.c.where.value = "mi300x"
    bench.run()
    assert "rocm-7.2" in bench.c.runtime.options


def test_a_model_that_cannot_be_asked_for_that_is_an_error_and_goes_back(bench: Bench) -> None:
    simulate(bench)
    bench.c.model.value = "tiny"
    bench.run()
    bench.c.speculation.value = "dspark"
    bench.run()
    assert bench.lab.errors.value == "" or "no DSpark drafter" in bench.lab.errors.value
    assert bench.c.speculation.value == bench.lab.simulated.setting.speculative


def test_back_on_the_engine_everything_is_as_it_is_there(bench: Bench) -> None:
    simulate(bench)
    bench.c.plan.value = "cuda"
    bench.run()
    bench.c.where.value = "engine"
    bench.run()
    bench.client.decode()
    bench.redraw()
    assert (bench.c.plan.value, bench.c.queues.value, bench.c.model.value) == ("hip", 4, "tiny")
    assert "worker 77" in bench.lab.status.value
    assert bench.client.calls == []


def test_the_plan_editor_puts_plans_into_force(bench: Bench) -> None:
    bench.c.edit.value = True
    bench.run()
    assert bench.lab.editor.layout.display is None
    assert bench.lab.editor.state["plan"] == "hip"
    bench.lab.editor._handle_custom_msg({"kind": "move", "op": "moe.shared", "stream": "side0"}, [])
    bench.run()
    assert bench.client.calls == [("set_plan", "hip.1")]
    assert bench.c.plan.value == "hip.1"
    bench.c.plan.value = "off"
    bench.run()
    assert bench.lab.editor.state["plan"] == "off"


def test_two_labs_on_one_client_show_the_same(fakes: ModuleType) -> None:
    client = fakes.FakeClient()
    first, second = Bench(client), Bench(client)
    first.c.concurrency.value = 4
    first.run()
    first.c.decode.value = True
    first.run()
    second.run()
    assert (second.c.decode.value, second.c.concurrency.value) == (True, 4)
    third = Bench(client)
    assert third.c.decode.description == "Stop decoding"
    third.c.decode.value = False
    third.run()
    first.run()
    assert not first.c.decode.value
    assert client.calls == [("start_load", 4, 64, 256), ("stop_load",)]
    first.lab.close()
    assert client.calls[-1] == ("stop_load",)
    assert len(client.calls) == 2  # the load that it started is gone already
    second.run()
    second.c.decode.value = True
    second.run()
    third.lab.close()
    assert client.load_running is not None  # it is the second's
    second.lab.close()
    assert client.load_running is None


def test_acceptance_is_drawn_where_the_engine_speculates(fakes: ModuleType) -> None:
    client = fakes.FakeClient()
    client.config.speculative = "mtp"
    bench = Bench(client)
    bench.client.decode()
    bench.redraw()
    assert "1.30 of 2 drafts a step" in bench.title("accepted")
    bench.lab.close()


def test_a_pinned_baseline_is_compared_in_words(bench: Bench) -> None:
    bench.client.decode()
    bench.redraw()
    bench.c.pin.value = True
    bench.run()
    bench.client.decode(first=3)
    bench.redraw()
    assert "+0.0 % against the pinned 0.90 ms" in bench.lab.status.value


@pytest.mark.parametrize("form", ["PNG", "SVG", "HTML", "CSV", "trace"])
def test_exports(bench: Bench, form: str) -> None:
    bench.client.decode()
    bench.redraw()
    bench.c.form.value = form
    bench.c.export.click()
    bench.run()
    names = {
        "PNG": ["overlap-lab.png"],
        "SVG": ["overlap-lab.svg"],
        "HTML": ["overlap-lab.html"],
        "CSV": ["overlap-lab-steps.csv", "overlap-lab-busy.csv"],
        "trace": ["overlap-lab.pt.trace.json"],
    }
    assert list(bench.files) == names[form]
    if form == "CSV":
        rows = list(csv.DictReader(io.StringIO(bench.files["overlap-lab-steps.csv"].decode())))
        assert [row["plan"] for row in rows] == ["hip"] * 3
    if form == "trace":
        assert len(json.loads(bench.files["overlap-lab.pt.trace.json"])["traceEvents"]) >= 30


def test_a_trace_of_nothing_is_an_explanation(bench: Bench) -> None:
    bench.c.form.value = "trace"
    bench.c.export.click()
    bench.run()
    assert "start decoding" in bench.lab.errors.value


def test_the_page_cannot_be_left_by_a_name(fakes: ModuleType, tmp_path: Path) -> None:
    client = fakes.FakeClient()
    client.plan = OverlapPlan(HOSTILE, PRESETS["hip"].rules)
    bench = Bench(client)
    bench.client.decode()
    bench.redraw()
    page = bench.lab.save_html(tmp_path / "lab.html").read_text(encoding="utf-8")
    assert "<img" not in page
    bench.lab.close()


def test_texts_that_a_spreadsheet_would_run_are_disarmed() -> None:
    assert csv_bytes(["plan"], [["=1+1"], [-3], ["hip"]]) == b"plan\r\n'=1+1\r\n-3\r\nhip\r\n"


def test_running_a_cell_again_closes_what_it_made(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class Note(View):
        def __init__(self, name: str) -> None:
            self.name = name
            super().__init__()

        def close(self) -> None:
            closed.append(self.name)
            super().close()

    run = Execution("cell", "1")
    monkeypatch.setattr("dsv4lab.widgets.base.current_execution", lambda: run)
    monkeypatch.setattr("dsv4lab.widgets.base.OPEN", OpenViews())
    kept = [Note("a"), Note("b")]
    assert closed == []
    run = Execution("other", "2")
    kept.append(Note("c"))
    assert closed == []
    run = Execution("cell", "3")
    kept.append(Note("d"))
    assert closed == ["a", "b"]
    assert cells.current_execution() is None
