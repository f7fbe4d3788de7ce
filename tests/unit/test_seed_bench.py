"""The plan and the tables of ``kernels/bench/seed.py``: what it asks of eight GPUs is what engines and GPUs take."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dsv4lab.cli.main import main
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.presets import preset
from dsv4lab.overlap.plan import resolve_plan
from dsv4lab.parallel.layout import Layout
from dsv4lab.timeline.records import StepRecord

NAMES = ("pro-tp8", "flash-tp8", "flash-tp4", "pro-tp8-block5", "pro-tp8-block6", "flash-dp8")


@pytest.fixture(scope="module")
def seed(repo_root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("seed_plan", repo_root / "kernels/bench/seed_plan.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["seed_plan"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_everything_that_was_asked_for_is_planned(seed: ModuleType) -> None:
    stages = {stage.name: stage for stage in seed.STAGES}
    assert set(NAMES) <= set(stages)
    for name in ("pro-tp8", "flash-tp8", "flash-tp4"):
        assert (stages[name].plans, stages[name].levels) == (("off", "hip", "cuda", "auto"), (1, 4, 8, 16, 32))
    assert stages["pro-tp8-block6"].levels == stages["pro-tp8-block5"].levels == (1, 4, 8)
    assert stages["flash-dp8"].levels == (32, 64)
    assert (stages["flash-tp4"].ranks, stages["flash-dp8"].ranks) == (4, 8)


def test_engines_take_every_stage(seed: ModuleType) -> None:
    for stage in seed.STAGES:
        config = EngineConfig(stage.preset, device="cuda", dtype="bfloat16", weights="stored", **stage.fields())
        assert config.world_size == stage.ranks
        Layout(config.tp_size, config.dp_size, config.ep_size).check(preset(stage.preset))
        assert "auto" not in stage.plans or config.times_plans
        for plan in stage.plans:
            resolve_plan(plan)


def test_weights_and_pools_fit_an_h200(seed: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    largest = {(s.preset, s.tp, s.dp): s for s in sorted(seed.STAGES, key=lambda s: seed.pool_tokens(s, 8192, 5, 16))}
    for stage in largest.values():
        requests = -(-max(stage.levels) // stage.dp)
        line = f"memory --preset {stage.preset} --tp-size {stage.tp} --dp-size {stage.dp} --kv-cache-dtype fp8 --json"
        line += f" --device-memory 141GB --weight-memory auto --max-running-requests {requests}"
        line += f" --ep-size {stage.dp}" if stage.dp > 1 else ""
        assert main(line.split()) == 0
        plan = json.loads(capsys.readouterr().out)
        assert plan["pages"] * 256 > 1.2 * seed.pool_tokens(stage, 8192, 5, 16), stage.name


def test_stages_are_chosen_by_what_is_there(seed: ModuleType) -> None:
    assert [stage.name for stage in seed.chosen([], 4)] == [
        "flash-tp4",
        "flash-tp2",
        "flash-tp2-block6",
        "flash-tp2-block5",
        "flash-dp2",
    ]
    assert len(seed.chosen([], 8)) == len(seed.STAGES)
    assert [stage.name for stage in seed.chosen(["flash-tp4"], 8)] == ["flash-tp4"]
    with pytest.raises(ValueError, match="stage pro-tp8 takes 8 GPUs, here are 4"):
        seed.chosen(["pro-tp8"], 4)
    with pytest.raises(ValueError, match="there is no stage 'tp8'"):
        seed.chosen(["tp8"], 8)


def test_plans_take_turns_and_none_is_always_first(seed: ModuleType) -> None:
    assert seed.turns(("off", "hip", "cuda"), 2) == ["off", "hip", "cuda", "hip", "cuda", "off"]


def step(number: int, start_ms: float, plan: str = "off", mode: str = "decode", requests: int = 4) -> StepRecord:
    return StepRecord(number, mode, 4, requests, int(start_ms * 1e6), 900_000, plan, 4)


def test_a_step_is_timed_to_the_next_one_of_its_kind(seed: ModuleType) -> None:
    steps = [step(n, 10.0 * n) for n in (1, 2, 3)] + [step(4, 45.0, "hip"), step(5, 52.0, "hip"), step(6, 60.0, "hip")]
    steps += [step(7, 99.0, "hip", "prefill"), step(8, 140.0, "hip"), step(9, 149.0, "hip", requests=3)]
    assert seed.step_times(steps, "off", 4, 0) == [10.0, 10.0]
    assert seed.step_times(steps[::-1], "hip", 4, 0) == [7.0, 8.0]
    assert seed.step_times(steps, "hip", 4, 1) == [8.0]
    assert seed.step_times([*steps[:3], *steps[:3]], "off", 4, 1, groups=2) == [0.9] * 4


def rows(seed: ModuleType, **machine: Any) -> list[dict[str, Any]]:
    stage = seed.chosen(["pro-tp8-block6"], 8)[0]
    times = {"off": [[10.0, 10.2], [20.0, 20.0]], "hip": [[9.0, 9.0], [18.0, 18.4]], "auto": [[10.0], [20.0]]}
    profile = {"kind": "profile", "stage": stage.name, "plan": "hip", "level": 4, "steps": 6, "wall_ms": 60.0}
    ranks = [{"rank": r, "main_ms": 50.0 + r, "side_ms": 6.0, "concurrency": 1.1} for r in range(2)]
    arrivals = {"collectives": 90, "median_skew_us": 3.0, "most_skew_us": 41.0, "last_rank": 1}
    return [
        {"kind": "machine", **machine},
        {"kind": "tokens", "stage": stage.name, "requests": 2, "plans": ["off", "hip"], "same": True},
        seed.level_row(stage, 1, times, 1.5),
        seed.level_row(stage, 16, times, 1.5),
        {**profile, "ranks": ranks, "arrivals": arrivals},
        {"kind": "left_out", "stage": "flash-tp4", "what": "all of it: no time left"},
    ]


def test_a_level_compares_round_by_round(seed: ModuleType) -> None:
    row = rows(seed)[2]
    assert row["plans"]["off"]["delta"] == 0.0
    assert row["plans"]["hip"]["delta"] == pytest.approx((9.0 / 10.1 + 18.2 / 20.0) / 2 - 1)
    assert row["plans"]["off"]["tpot_ms"] == pytest.approx(15.05 / 2.5)
    assert row["plans"]["off"]["tokens_per_s_per_gpu"] == pytest.approx(1e3 * 2.5 / 15.05 / 8)
    assert seed.passes(row)
    assert seed.passes(rows(seed)[3])
    row["plans"]["auto"]["delta"] = 0.02
    assert not seed.passes({**row, "level": 32})
    assert seed.passes({**row, "level": 32, "plans": {"off": row["plans"]["off"]}}) is None


def test_the_tables_have_everything(seed: ModuleType) -> None:
    text = seed.markdown(rows(seed, gpus=["NVIDIA H200"] * 8))
    assert "| 1 | 6.020 | -9.9 % | -0.5 % | -8.5 % | 20.8 | 23.0 | met |" in text
    assert "Greedy tokens and fingerprints of 2 requests under off, hip: the same." in text
    assert "| hip | 1 | 6 | 51.000 | 6.000 | 1.100 | 60.000 |" in text
    assert "ranks 3.0 us apart in the median, 41.0 us at most; rank 1 was last most often." in text
    assert "## flash-tp4\n\nLeft out: all of it: no time left." in text
    assert "met" not in seed.markdown(rows(seed, gpus=[])), "the bar is a GPU's"
    dry = seed.markdown(rows(seed, gpus=["NVIDIA H200"] * 2, arguments={"layers": 5}))
    assert dry.startswith("A dry run: the first 5 layers, not the model.\n\n## pro-tp8-block6")
    assert "met" not in dry, "and a whole model's"


def test_levels_are_shared_evenly_by_attention_groups(seed: ModuleType) -> None:
    assert [level for level in (1, 4, 8) if seed.chosen(["flash-dp2"], 2)[0].takes(level)] == [4, 8]
