"""A search's target over a recorded device: one engine, plans changed between loads, the same outputs from graphs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dsv4lab.config.engine import EngineConfig, OverlapSetting
from dsv4lab.engine import messages as m
from dsv4lab.engine.factory import make_runner
from dsv4lab.engine.prompts import synthetic
from dsv4lab.engine.request import RequestSpec
from dsv4lab.engine.results import GenerateResult, Profile, RequestStats
from dsv4lab.engine.runner import Runner
from dsv4lab.engine.sampling_params import SamplingParams
from dsv4lab.engine.service import Service
from dsv4lab.errors import EngineError
from dsv4lab.overlap.plan import resolve_plan
from dsv4lab.tuning.engine_arms import EngineArms, engine_knob
from dsv4lab.tuning.knobs import KnobSpace, Setting
from dsv4lab.tuning.read_view import read_view
from dsv4lab.tuning.search.plan import Effort, SearchPlan
from dsv4lab.tuning.search.session import run_search
from dsv4lab.tuning.store import RECORDS, read_records
from tests.cpu.fake_device import FakeDevice

PLANS = ("auto", "off", "cuda", "cuda+moe", "side")
SPACE = KnobSpace(
    (
        engine_knob("plan", PLANS),
        engine_knob("side_streams", (None, 1)),
        engine_knob("concurrency", (2,)),
        engine_knob("prompt_tokens", (20,)),
        engine_knob("max_new_tokens", (4,)),
    ),
    Setting.of(plan="auto", side_streams=None),
)


class InProcess:
    """What :class:`EngineArms` uses of a client, over a service in this process."""

    alive = True

    def __init__(self, config: EngineConfig) -> None:
        runner, model = make_runner(config, lambda _: None)
        assert isinstance(runner, Runner)
        self.runner, self._config = runner, config
        self._sent: list[m.Message] = []
        self._service = Service(config, model, runner, self._sent.append)
        self._made = 0
        self._plan: OverlapSetting = config.plan
        self._side_streams: int | None = config.side_streams

    def set_plan(self, plan: OverlapSetting) -> None:
        self._plan = plan
        self._replan()

    def set_side_streams(self, count: int | None) -> None:
        self._side_streams = count
        self._replan()

    def load(self, concurrency: int, prompt: int, new: int, seed: int, *, fingerprints: bool) -> GenerateResult:
        rows = synthetic(512, concurrency, prompt, seed)
        first, self._made = self._made, self._made + concurrency
        greedy = SamplingParams()
        specs = [
            RequestSpec(first + i, tuple(row), new, greedy, fingerprints=fingerprints) for i, row in enumerate(rows)
        ]
        self._sent.clear()
        self._service.handle(m.Submit(specs))
        while not self._service.idle:
            self._service.step()
        told = [sent for sent in self._sent if isinstance(sent, m.Progress)]
        tokens = [[t for p in told for r, t in p.tokens if r == spec.request_id] for spec in specs]
        ends = {end.request_id: end for p in told for end in p.finished}
        stats = [RequestStats(1.0, 1.0, ends[s.request_id].reason, new, ends[s.request_id].fingerprints) for s in specs]
        return GenerateResult.of(tokens, stats, 10**6)

    def profile(self, steps: int, *, concurrency: int, prompt_tokens: int) -> Profile:
        raise EngineError("no profiler here")

    def close(self) -> None:
        self.alive = False

    def _replan(self) -> None:
        plan = resolve_plan(self._plan)
        folded = plan if self._side_streams is None else plan.fold(self._side_streams)
        self._service.handle(m.SetPlan(1, folded.to_json()))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[InProcess]:
    """The engines that were opened, all on one recorded device."""
    device = FakeDevice()
    monkeypatch.setattr("dsv4lab.engine.runner.device_api", lambda place: device)
    return []


def arms_over(space: KnobSpace, opened: list[InProcess]) -> EngineArms:
    def start(config: EngineConfig, environ: Mapping[str, str | None]) -> Any:
        assert not environ
        opened.append(InProcess(config))
        return opened[-1]

    config = EngineConfig("tiny", num_layers=3, streams="serial", max_running_requests=2, max_total_tokens=2048)
    return EngineArms(space, config, alive=1, open_engine=start)


def test_all_plans_are_tuned_in_one_engine_with_graphs(opened: list[InProcess]) -> None:
    arms = arms_over(SPACE, opened)
    seen = set()
    outputs, measured = [], []
    for plan in (*PLANS, "off"):
        for side_streams in (None, 1):
            setting = SPACE.join(Setting.of(plan=plan, side_streams=side_streams), SPACE.strata()[0])
            assert arms.prepare(setting) == 1
            seen.add(opened[0].runner.plan.name)
            outputs.append(arms.outputs(setting))
            measured.append(arms.measure(setting, seed=3))
    assert {"auto", "off", "cuda", "cuda+moe", "side", "auto/1", "cuda+moe/1"} <= seen
    assert all(found == outputs[0] for found in outputs)
    assert [len(prints) for prints in outputs[0].fingerprints or ()] == [4, 4]
    assert len({block.tokens for block in measured}) == 1
    status = opened[0].runner.device_status()
    assert status is not None
    assert (len(opened), status["eagerly"]) == (1, 0)
    assert status["replays"] > status["captures"] > len(PLANS)
    arms.close()
    assert not opened[0].alive


def test_a_whole_session_against_auto_ends_with_its_answers(opened: list[InProcess], tmp_path: Path) -> None:
    """Gate, pairs, a profile that fails. Every block has the same TPOT, so nothing is better than `auto`."""
    plans = ("auto", "off", "cuda+moe")
    loads = {"concurrency": (1, 2), "prompt_tokens": (20,), "max_new_tokens": (3,)}
    knobs = [engine_knob(name, values) for name, values in {"plan": plans, **loads}.items()]
    space = KnobSpace(tuple(knobs), Setting.of(plan="auto"))
    arms = arms_over(space, opened)
    plan = SearchPlan(space, "grid", Effort(explore_pairs=1, confirm_pairs=1))
    result = run_search(plan, arms, tmp_path / "s", alike=arms.program_of)
    records, _ = read_records(tmp_path / "s" / RECORDS)
    assert len(opened) == 1
    assert [(level.use.get("plan"), level.tried, level.failed) for level in result.levels] == [("auto", 2, 0)] * 2
    gates = [record for record in records if record["kind"] == "gate"]
    assert len(gates) == space.size
    assert all(record["identical"] for record in gates)
    assert {r["why"] for r in records if r["kind"] == "profile"} == {"no profiler here"}
    assert read_view(tmp_path / "s").state == "finished"
