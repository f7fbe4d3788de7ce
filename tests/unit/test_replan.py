"""A profiled program under other plans, the CPU device's machine, and calibration."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4lab.errors import TraceError, UsageError
from dsv4lab.overlap.plan import CUDA, HIP, OFF, OverlapPlan, Rule
from dsv4lab.predict import published as pub
from dsv4lab.predict.calibrate import Measured, fit, load_probe, predict
from dsv4lab.predict.cpu_probe import CpuProbe, probe_cpu
from dsv4lab.predict.replan import Profiled, predicted_gain, profiled, replan
from dsv4lab.predict.scenarios import run_scenario
from dsv4lab.predict.seed_profile import seed_scenario
from dsv4lab.predict.trace_pair import fit_pair
from dsv4lab.predict.whatif import Baseline, ask, baseline_of, moved
from dsv4lab.queues.costs import machine
from dsv4lab.queues.sensitivity import sensitivity
from dsv4lab.queues.simulate import simulate
from dsv4lab.queues.workload import Cost, Workload, from_program
from dsv4lab.timeline.program import MAIN, StreamProgram
from tests.unit.attention_layer import US, serial


def base() -> Profiled:
    on = machine("cpu", None, 2, {"gap_us": 3.0, "graph_us": 0.0})
    run = simulate(from_program(serial(), [Cost(us) for us in US], steps=3), on)
    return profiled(serial(), run.timeline())


def test_costs_come_back_from_a_profile() -> None:
    found = base()
    assert found.us == pytest.approx(US)
    assert found.gap_us == pytest.approx(3.0)
    assert found.wall_us == pytest.approx(sum(US) + 6 * 3.0)


def test_only_serial_and_complete_profiles_are_baselines() -> None:
    run = simulate(from_program(serial(), [Cost(1.0)] * 7), machine("cpu")).timeline()
    with pytest.raises(TraceError, match="no step"):
        profiled(serial(), run.select(run.correlation < 5))
    other = StreamProgram(serial().ops, (MAIN, "side0"), "hip", "decode", 1)
    with pytest.raises(TraceError, match="ran under hip"):
        profiled(other, run)


def test_plans_move_split_and_wait() -> None:
    probe = CpuProbe(20.0, 1.0)
    hip = replan(base(), HIP, 2, probe)
    assert hip.streams == (MAIN, "side0", "side0", MAIN, MAIN, MAIN, MAIN)
    assert hip.waits[1] == (0,)
    assert hip.waits[6] == (2,)
    cuda = replan(base(), CUDA, 2, probe)
    assert cuda.names[5:7] == ("q_norm_rope", "kv_norm_rope_store")
    assert cuda.waits[6] == (3,)
    assert set(cuda.waits[7]) == {2, 6}


@pytest.mark.parametrize(
    ("slowdown", "cores", "queues", "gain"), [(1.0, 2, 2, 0.41), (2.0, 2, 2, 0.0), (1.0, 1, 2, 0.0), (1.0, 2, 1, 0.0)]
)
def test_overlap_pays_with_cores_queues_and_bandwidth_to_spare(
    slowdown: float, cores: int, queues: int, gain: float
) -> None:
    found = predicted_gain(base(), HIP, cores, queues, CpuProbe(20.0, slowdown))
    assert found == pytest.approx(gain, abs=0.03)
    assert predicted_gain(base(), OFF, cores, queues, CpuProbe(20.0, slowdown)) == 0.0


def test_a_probe_of_this_machine_is_plausible() -> None:
    found = probe_cpu(3)
    assert found.handoff_us > 0
    assert 1.0 <= found.slowdown <= 2.0
    assert 1.0 <= found.compute_slowdown <= 2.0


def test_cores_that_are_threads_of_one_share_its_arithmetic() -> None:
    gains = [predicted_gain(base(), HIP, 2, 2, CpuProbe(20.0, 1.0, s)) for s in (1.0, 1.5, 2.0)]
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] == pytest.approx(0.0, abs=0.03)


ROWS = [
    Measured("pair, host", pub.projection_pairs(20, two_streams=True), 0.0, "rocm-7.2", 4),
    Measured("pair, device", pub.projection_pairs(20, two_streams=True), 0.0, "rocm-10+ordering-edges", 4),
    Measured("chain", pub.one_projection(20, 3.0), 0.0, "rocm-7.2", 4),
    Measured("serial", pub.projection_pairs(20, two_streams=False), 0.0, "rocm-7.2", 4, held_out=True),
]
TRUTH = {"gap_us": 1.7, "signal_host_us": 7.0, "signal_device_us": 1.1}


def measured(noise: float = 1.0) -> list[Measured]:
    return [
        Measured(
            r.name,
            r.program,
            predict(r, "mi355x", TRUTH) * (noise if r.held_out else 1.0),
            r.runtime,
            r.hw_queues,
            r.held_out,
        )
        for r in ROWS
    ]


def test_calibration_finds_what_the_rows_were_made_with() -> None:
    found = fit(measured(), "mi355x", [*TRUTH, "queue_slots"])
    assert found.values == pytest.approx(TRUTH, rel=0.05)
    assert found.unidentified == ("queue_slots",)
    assert max(abs(r.error) for r in found.residuals) < 0.01


def test_held_out_rows_are_reported_and_never_fitted() -> None:
    right, wrong = fit(measured(), "mi355x", list(TRUTH)), fit(measured(noise=3.0), "mi355x", list(TRUTH))
    assert right.values == wrong.values
    assert [r.name for r in wrong.residuals if r.held_out and abs(r.error) > 0.5] == ["serial"]


def test_bad_calibrations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not held out"):
        fit([r for r in measured() if r.held_out], "mi355x", ["gap_us"])
    with pytest.raises(UsageError, match="no value 'x'"):
        fit(measured(), "mi355x", ["x"])
    file = tmp_path / "probe.json"
    for data, text in (
        ([], "a probe file is"),
        ({"rows": [{}]}, "row 0: it takes"),
        ({"rows": [{"name": "a", "program": {}, "measured_us": 0}]}, "above 0"),
    ):
        file.write_text(json.dumps(data), encoding="utf-8")
        with pytest.raises(UsageError, match=text):
            load_probe(file)
    file.write_text(
        json.dumps({"rows": [{"name": "a", "program": pub.one_projection(3, 2.0), "measured_us": 9}]}), encoding="utf-8"
    )
    assert load_probe(file).rows[0].measured_us == 9


def test_moved_kernels_of_a_trace_fork_and_join() -> None:
    names = ["a", "k", "b", "c", "a", "k", "b", "c"]
    work = Workload(
        tuple(names), (-1,) * 8, (MAIN,) * 8, ((),) * 8, (Cost(5.0),) * 8, ("kernel",) * 8, (0,) * 8, lead_us=(0.0,) * 8
    )
    base = Baseline(work, ("",) * 8, 1.0, 8 * 5.0 + 7.0, ())
    with_reader = moved(base, OFF, move={"k": "side0"}, join=["c"])
    assert with_reader.waits == ((), (0,), (), (1,), (), (4,), (), (5,))
    without = moved(base, OFF, move={"k": "side0"})
    assert without.waits == ((), (0,), (), (), (1,), (4,), (), (5,))  # at the next fork, and at the end


def test_a_trace_pair_gives_signals_and_losses_back() -> None:
    """Both traces are made by the model with other values; whatif has to find them in the traces alone."""
    truth = {"signal_device_us": 5.0, "corun_loss": 0.3}
    scenario = replace(seed_scenario(), model=replace(seed_scenario().model, compress_ratios=(128, 4, 128, 4, 128, 4)))
    odd = machine("mi355x", changes=truth)
    base = baseline_of(run_scenario(scenario, OFF, odd).timeline())
    patched = ask(base, HIP, odd).run.timeline()
    found = fit_pair(run_scenario(scenario, OFF, odd).timeline(), patched, HIP, machine("mi355x"))
    assert found.values == pytest.approx(truth, rel=0.1)
    assert found.unidentified == ()
    assert max(abs(r.error) for r in found.residuals) < 0.01


def test_sensitivity_finds_what_turns_an_answer_round() -> None:
    values = machine("mi355x").values

    def gain(changes: dict[str, float]) -> float:
        return 0.04 - 0.02 * changes.get("barrier_us", values["barrier_us"].value)

    found = sensitivity(gain, values)
    assert [lean.name for lean in found] == ["barrier_us"]
    assert found[0].flips_at == pytest.approx(2.0, rel=0.1)
    assert found[0].low > found[0].high


def test_a_share_is_not_taken_beyond_1() -> None:
    shares = {"roof_share": machine("mi355x").values["roof_share"]}
    tried: list[float] = []

    def gain(changes: dict[str, float]) -> float:
        tried.extend(changes.values())
        return 0.9 - changes.get("roof_share", 0.8)

    assert sensitivity(gain, shares)[0].flips_at == pytest.approx(0.9, rel=0.02)
    assert max(tried) == pytest.approx(1.0)


def test_user_plans_match_recorded_ops() -> None:
    plan = OverlapPlan("mine", (Rule("q_b", "side3"),))
    assert replan(base(), plan, 2, CpuProbe(5.0, 1.0)).streams.count("side3") == 1
