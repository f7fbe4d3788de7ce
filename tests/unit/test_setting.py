from __future__ import annotations

from dataclasses import replace

import pytest

from dsv4lab.errors import UsageError
from dsv4lab.overlap.plan import CUDA, HIP, OFF
from dsv4lab.predict.roofline import decode_step
from dsv4lab.predict.setting import GPUS, Setting, leans, predict, runtimes_of
from dsv4lab.queues.simulate import simulate

SHORT = Setting(layers=4)


def test_it_runs_what_the_simulator_runs() -> None:
    run = SHORT.run()
    expected = simulate(decode_step(SHORT.scenario, HIP, SHORT.machine), SHORT.machine, torch=True)
    assert run.wall_ns == expected.wall_ns
    assert SHORT.baseline().wall_ns == replace(SHORT, plan=OFF).run().wall_ns


def test_each_device_comes_with_a_runtime_of_its_own() -> None:
    assert GPUS == ("mi355x", "mi300x", "h200")
    for name in GPUS:
        moved = SHORT.on_device(name)
        assert moved.runtime in runtimes_of(name)
        assert moved.run().wall_ns > 0
    assert SHORT.on_device("mi300x").runtime == "rocm-10"
    assert SHORT.on_device("h200").runtime == "cuda-13"


def test_side_streams_are_folded() -> None:
    folded = replace(SHORT, plan=CUDA, side_streams=1)
    assert set(folded.run().workload.streams) == {"main", "side0"}


def test_priorities_take_a_pool_of_their_own_when_ops_are_launched_one_by_one() -> None:
    eager = replace(SHORT, graphs=False, hw_queues=1)
    queues = [max(r.layout.queue_of_lane) for r in (eager.run(), replace(eager, side_priority=-1).run())]
    assert queues[0] == 0 < queues[1]


def test_values_of_the_device_can_be_replaced() -> None:
    slow = replace(SHORT, values=(("gap_us", 10.0),))
    assert slow.run().wall_ns > SHORT.run().wall_ns
    with pytest.raises(UsageError, match="there is no value 'gap'"):
        replace(SHORT, values=(("gap", 1.0),)).run()


def test_a_prediction_is_of_the_whole_model() -> None:
    demo = Setting(model="tiny", tp=1, isl=256, concurrency=2, layers=1)
    found = predict(demo)
    assert found.setting.layers is None
    assert found.change == found.tpot_ms / found.off_tpot_ms - 1
    assert predict(replace(demo, plan=OFF)).change == 0.0


def test_what_the_answer_leans_on() -> None:
    found, gain = leans(replace(SHORT, layers=None), layers=2)
    assert {lean.status for lean in found} <= {"assumed"}
    two = replace(SHORT, layers=2)
    assert gain == 1.0 - two.run().wall_ns / two.baseline().wall_ns


def test_what_a_model_cannot_do_is_refused() -> None:
    with pytest.raises(UsageError, match="does not divide"):
        replace(SHORT, model="tiny", tp=3).run()
    with pytest.raises(UsageError, match="does not run"):
        replace(SHORT, runtime="cuda-13").run()
