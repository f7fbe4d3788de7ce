"""Profiles of the recorded device: what is learnt, what is left out, and what is said where names cannot be had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsv4lab.config.engine import EngineConfig
from dsv4lab.engine import messages as m
from dsv4lab.engine.factory import make_runner
from dsv4lab.engine.profiling import How, profile_of, recording_of
from dsv4lab.engine.request import RequestSpec
from dsv4lab.engine.results import Profile
from dsv4lab.engine.runner import Runner
from dsv4lab.engine.sampling_params import SamplingParams
from dsv4lab.engine.service import Service
from dsv4lab.errors import TraceError
from dsv4lab.timeline.timeline import UNKNOWN
from dsv4lab.trace.capture import TorchCapture
from tests.cpu.fake_kineto import Event, TracedDevice, as_gpu

STEPS = 4
INIT, EXPORT = TorchCapture.__init__, TorchCapture.export


class Bench:
    """An engine on a device whose captures look like a GPU's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
        monkeypatch.setattr("dsv4lab.engine.runner.device_api", lambda place: TracedDevice())
        fields = {"max_running_requests": 3, "max_total_tokens": 2048, "plan": "cuda+moe", **changes}
        runner, model = make_runner(EngineConfig("tiny", **fields), lambda _: None)
        assert isinstance(runner, Runner)
        self.runner = runner
        self.sent: list[m.Message] = []
        self.service = Service(EngineConfig("tiny", **fields), model, runner, self.sent.append)
        self.monkeypatch = monkeypatch

    def profile(
        self,
        folder: Path,
        change: Callable[[list[Event]], None] = lambda kernels: None,
        *,
        nodes: bool = True,
        ask: Callable[[str], m.Record] = lambda raw: m.Record(7, STEPS, 1, torch=raw, lead=3),
    ) -> Profile:
        def without(self: TorchCapture, *, device: bool) -> None:
            assert device
            INIT(self, device=False)

        def and_change(self: TorchCapture, path: Path) -> None:
            EXPORT(self, path)
            as_gpu(path, change, nodes=nodes)

        self.monkeypatch.setattr(TorchCapture, "__init__", without)
        self.monkeypatch.setattr(TorchCapture, "export", and_change)
        self.monkeypatch.setattr(TorchCapture, "platform", "cuda")
        how = How(torch=True, directory=folder)
        with how.raw() as raw:
            self.service.handle(m.Submit([RequestSpec(1, (5, 6, 7), 14, SamplingParams())]))
            self.service.handle(ask(raw))
            while not self.service.idle:
                self.service.step()
            (recorded,) = [s for s in self.sent if isinstance(s, m.Recorded)]
            return profile_of(recorded, recording_of(recorded, how))


def counts(found: Profile, step: int) -> Counter[tuple[int, str, str]]:
    t = found.timeline
    rows = [row for row in range(len(t)) if t.step[row] == step and t.op[row] != UNKNOWN]
    return Counter((int(t.layer[r]), t.names[t.op[r]], t.streams[t.stream[r]]) for r in rows)


def test_replays_are_named_op_by_op_as_an_eager_run_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bench = Bench(monkeypatch)
    found = bench.profile(tmp_path / "graphs")
    capture = found.timeline.meta["capture"]
    assert [w for w in found.warnings if "profiling" not in w] == []
    assert (capture["runs"], capture["how"], capture["named"]) == (STEPS, ["by graph node"], capture["rows"])
    assert bench.runner.gpu is not None
    assert bench.runner.gpu.streams.tracer is None
    per_step = [counts(found, step.step) for step in found.steps]
    assert len(per_step) == STEPS
    assert per_step == [per_step[0]] * STEPS
    streams = {(op.layer, op.name): op.stream for op in found.program.ops}
    assert {(layer, name, streams[layer, name]) for layer, name, _ in per_step[0]} == set(per_step[0])
    assert {"main", "side0"} <= set(found.timeline.streams)
    assert found.cost is not None
    assert found.cost.profiled_steps == STEPS
    assert found.cost.what == "decode of 1 tokens of 1 requests under plan cuda+moe"


def test_eager_runs_have_the_same_ops(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    graphs = Bench(monkeypatch).profile(tmp_path)
    eager = Bench(monkeypatch, graphs=False).profile(tmp_path)
    assert set(counts(eager, eager.steps[-1].step)) == set(counts(graphs, graphs.steps[-1].step))
    assert eager.timeline.meta["capture"]["how"] == []


def test_a_graph_captured_while_profiled_leaves_only_its_replays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = Bench(monkeypatch).profile(tmp_path, ask=lambda raw: m.Record(7, 6, torch=raw))
    assert found.steps[0].mode == "prefill"
    assert [w for w in found.warnings if "profil" not in w] == []
    assert found.timeline.meta["capture"]["runs"] == 6
    decodes = [counts(found, step.step) for step in found.steps if step.mode == "decode"]
    assert decodes == [decodes[0]] * 5


def test_kernels_that_do_not_match_have_no_op_and_the_text_says_how_they_differ(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def rename(kernels: list[Event]) -> None:
        last = max(k["args"]["correlation"] for k in kernels if "graph node id" in k["args"])
        next(k for k in kernels if k["args"]["correlation"] == last)["name"] = "another"

    found = Bench(monkeypatch).profile(tmp_path, rename)
    (said,) = [w for w in found.warnings if "named" in w]
    assert "graph of decode of 1 tokens under plan cuda+moe: 1 of 4 replays not named" in said
    assert "another +1" in said
    assert said in found.timeline.warnings
    assert counts(found, found.steps[-1].step) == Counter()
    assert counts(found, found.steps[0].step)


def test_without_node_ids_order_and_lanes_decide_and_what_stays_open_has_no_op(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench = Bench(monkeypatch)
    sure = bench.profile(tmp_path)
    found = Bench(monkeypatch).profile(tmp_path, nodes=False)
    capture = found.timeline.meta["capture"]
    assert capture["how"] == ["in order, each op on one lane"]
    open_rows = capture["rows"] - capture["named"]
    assert open_rows < capture["rows"] / 4
    assert (open_rows == 0) == (not any("fit several ops" in w for w in found.warnings))
    assert counts(found, found.steps[0].step) <= counts(sure, sure.steps[0].step)


def test_a_profile_without_kernels_is_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(TraceError, match=r"told of no kernel.*capture='ops' records without it"):
        Bench(monkeypatch).profile(tmp_path, lambda kernels: kernels.clear())


def test_a_torch_without_gpu_activities_answers_the_call_and_the_engine_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench = Bench(monkeypatch)
    bench.service.handle(m.Record(7, 2, torch=str(tmp_path / "raw.json")))
    bench.service.handle(m.Submit([RequestSpec(1, (5, 6, 7), 4, SamplingParams())]))
    bench.service.handle(m.Record(8, 2, 1, torch=str(tmp_path / "raw.json"), lead=1))
    while not bench.service.idle:
        bench.service.step()
    failed = [s for s in bench.sent if isinstance(s, m.Failed)]
    assert [f.call for f in failed] == [7, 8]
    assert all("profiles no CUDA activities" in f.text for f in failed)
    assert any(isinstance(s, m.Progress) and s.finished for s in bench.sent)


@pytest.mark.parametrize("speculative", ["mtp", "dspark"])
def test_drafters_are_runs_of_the_same_step(speculative: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = Bench(monkeypatch, speculative=speculative).profile(tmp_path, ask=lambda raw: m.Record(7, 3, torch=raw))
    capture = found.timeline.meta["capture"]
    assert [w for w in found.warnings if "profil" not in w] == []
    assert capture["runs"] > len(found.steps) == 3
    assert capture["named"] == capture["rows"]
    assert {int(step) for step in set(found.timeline.step.tolist()) - {UNKNOWN}} == {s.step for s in found.steps}
    assert "lm_head" in {op.name for op in found.program.ops}
    last = counts(found, found.steps[-1].step)
    assert {op.name for op in found.program.ops} & {name for _, name, _ in last}
