from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsv4lab.errors import UsageError
from dsv4lab.overlap.plan import PRESETS, OverlapPlan, Rule
from dsv4lab.predict.scenes import SCENES, STEP, run_scene
from dsv4lab.predict.setting import Setting
from dsv4lab.viz.queue_sweep import queue_sweep_figure
from dsv4lab.widgets.packets import MOST_PACKETS, film
from dsv4lab.widgets.simulate_queues import QueueLab

HOSTILE = "<img src=x onerror=alert(1)></script>"
NAME, STREAM, QUEUE, READY, HEAD, WAKE, START, END, WAITS, BIT = range(10)


class Bench:
    """A lab that is driven by hand."""

    def __init__(self, **options: Any) -> None:
        self.lab = QueueLab(_threaded=False, layers=2, **options)
        self.s = self.lab.controls.settings

    def draw(self, *, rest: bool = False) -> None:
        pump = self.lab._pump
        assert pump is not None
        pump._drawn_at = float("-inf")
        while pump.turn():
            pass
        if rest and pump._later is not None:
            pump._later[1]()

    def title(self, name: str) -> str:
        text: str = self.lab.board.sheets[name].layout["title"]["text"]
        return text


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.lab.close()


@pytest.mark.parametrize("scene", [STEP, *SCENES])
def test_a_film_is_in_order_and_whole(scene: str) -> None:
    run = run_scene(scene, Setting(layers=2, hw_queues=2))
    told = film(run, scene)
    assert len(told["packets"]) == len(run.workload)
    for p in told["packets"]:
        assert p[HEAD] <= p[WAKE] <= p[START] <= p[END]
        assert all(told["packets"][w][END] <= p[START] for w in p[WAITS])
    for queue in range(len(told["queues"])):
        ring = [p for p in told["packets"] if p[QUEUE] == queue]
        assert [p[HEAD] for p in ring] == sorted(p[HEAD] for p in ring)
    json.dumps(told)


def test_a_long_run_is_cut() -> None:
    told = film(Setting(layers=16).run(), "x")
    assert len(told["packets"]) == MOST_PACKETS
    assert told["left_out"] > 0
    assert all(w < MOST_PACKETS for p in told["packets"] for w in p[WAITS])


def test_scenes_show_what_they_say() -> None:
    few, many = (run_scene("alias", Setting(hw_queues=q)).wall_ns for q in (1, 8))
    assert many < few / 2
    host, device = (run_scene("edges", Setting(runtime=r)).wall_ns for r in ("rocm-10", "rocm-10+ordering-edges"))
    assert device < 0.8 * host
    blocked = film(run_scene("barrier", Setting()), "x")["packets"]
    attention = next(p for p in blocked if p[NAME] == "attention")
    assert attention[WAKE] > attention[HEAD]
    behind = next(p for p in blocked if p[NAME] == "next.norm")
    assert behind[HEAD] >= attention[END]
    with pytest.raises(UsageError, match="scene 'x' is unknown"):
        run_scene("x", Setting())


def test_controls_start_as_asked_for() -> None:
    bench = Bench(device="h200", plan="cuda", hw_queues=8, concurrency=2)
    assert (bench.s["device"].value, bench.s["runtime"].value) == ("h200", "cuda-13")
    assert (bench.s["plan"].value, bench.s["hw_queues"].value, bench.s["layers"].value) == ("cuda", 8, 2)
    assert "simulated, not measured" in bench.lab.headline.value
    bench.lab.close()


@pytest.mark.parametrize(
    ("control", "value", "field", "expected"),
    [
        ("hw_queues", 2, "hw_queues", 2),
        ("plan", "cuda", "plan", PRESETS["cuda"]),
        ("side_streams", 1, "side_streams", 1),
        ("policy", "round_robin", "policy", "round_robin"),
        ("graphs", False, "graphs", False),
        ("barrier_elision", True, "barrier_elision", True),
        ("concurrency", 9, "concurrency", 9),
        ("isl", 1024, "isl", 1024),
        ("model", "flash", "model", "flash"),
        ("layers", 5, "layers", 5),
        ("runtime", "rocm-7.2", "runtime", "rocm-7.2"),
        ("device", "mi300x", "device", "mi300x"),
    ],
)
def test_every_control_changes_the_run(bench: Bench, control: str, value: Any, field: str, expected: Any) -> None:
    before = bench.lab.player.run["title"]
    bench.s[control].value = value
    assert getattr(bench.lab.setting, field) == expected
    bench.draw()
    assert bench.lab.errors.value == ""
    assert bench.lab.player.run["title"] != before or bench.lab.run is not None


def test_an_assumed_number_can_be_turned_up(bench: Bench) -> None:
    bench.lab.controls.value.value = "roof_share"
    bench.draw()
    assert bench.lab.run is not None
    before = bench.lab.run.wall_ns
    bench.lab.controls.factor.value = 0.25
    bench.draw()
    assert bench.lab.setting.values == (("roof_share", pytest.approx(0.2)),)
    assert bench.lab.run.wall_ns > before
    bench.lab.controls.value.value = "barrier_us"
    assert bench.lab.setting.values == ()
    assert bench.lab.controls.factor.value == 1.0


def test_what_takes_longer_follows_when_the_controls_rest(bench: Bench) -> None:
    assert bench.lab.board.sheets["sweep"].data == []
    bench.draw(rest=True)
    assert "fastest from" in bench.title("sweep")
    names = [trace["name"] for trace in bench.lab.board.sheets["sweep"].data]
    assert names == ["hip", "with ordering edges", "off"]
    assert "leans on" in bench.title("leans")
    assert "against off" in bench.lab.headline.value


def test_a_scene_switches_off_what_it_does_not_use(bench: Bench) -> None:
    bench.lab.controls.scene.value = "alias"
    bench.draw(rest=True)
    assert bench.s["plan"].disabled
    assert "program of its own" in bench.s["plan"].tooltip
    assert not bench.s["hw_queues"].disabled
    assert "take turns" in bench.lab.about.value
    assert "choose the decode step" in bench.lab.board.sheets["leans"].layout["annotations"][0]["text"]


def test_priorities_come_with_ops_launched_one_by_one(bench: Bench) -> None:
    assert bench.s["side_priority"].disabled
    bench.s["graphs"].value = False
    assert not bench.s["side_priority"].disabled
    bench.s["side_priority"].value = -1
    assert bench.lab.setting.side_priority == -1
    bench.s["graphs"].value = True
    assert bench.lab.setting.side_priority == 0


def test_what_cannot_be_is_an_error_and_goes_back(bench: Bench) -> None:
    with pytest.raises(UsageError, match="does not run"):
        bench.lab.change(runtime="cuda-13")
    assert bench.lab.setting.runtime == bench.s["runtime"].value == "rocm-10"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"hw_queue": 3}, "did you mean 'hw_queues'"),
        ({"device": "mi400"}, "device 'mi400' is unknown"),
        ({"plan": "fast"}, "plan 'fast' is unknown"),
        ({"plans": ["off"]}, "OverlapPlan objects, got str"),
        ({"scene": "dance"}, "scene 'dance' is unknown"),
    ],
)
def test_options_are_checked(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        QueueLab(_threaded=False, **options)


def test_the_page_plays_without_python_and_cannot_be_left_by_a_name(tmp_path: Path) -> None:
    plan = OverlapPlan(HOSTILE, (Rule("compressor.*", "side0"),))
    bench = Bench(plan=plan)
    bench.draw(rest=True)
    page = bench.lab.save_html(tmp_path / "queues.html").read_text(encoding="utf-8")
    assert "<img" not in page
    assert "pk-stage" in page
    assert HOSTILE in bench.lab.player.run["title"]  # shown through textContent
    bench.lab.close()


def test_the_sweep_as_a_figure() -> None:
    figure = queue_sweep_figure([1, 2], {HOSTILE: [2e6, 1e6]}, 2, theme="dark")
    assert "<img" not in figure.to_json()
    assert list(figure.data[0].y) == [2.0, 1.0]
    assert queue_sweep_figure([1], {}, 1).layout.annotations[0].text == "simulating other queue counts"


def test_equal_settings_give_equal_films() -> None:
    setting = Setting(layers=2)
    assert film(setting.run(), "a") == film(replace(setting).run(), "a")
