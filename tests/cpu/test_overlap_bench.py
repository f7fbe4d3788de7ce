"""The bench of overlap on the recorded device and on the CPU device: what it measures, keeps and refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dsv4lab.cli.main import main
from dsv4lab.errors import PlanError, TraceError, UsageError
from dsv4lab.overlap.plan import resolve_plan
from dsv4lab.overlap.run_record import timeline_of
from dsv4lab.predict.layer_ops import experts_hit
from dsv4lab.timeline.program import MAIN
from dsv4lab.trace.export import export_kineto
from dsv4lab.tuning.overlap import floor, gate, profiles
from dsv4lab.tuning.overlap.arms import SERIAL, plans_of
from dsv4lab.tuning.overlap.bench import bench, machine_facts
from dsv4lab.tuning.overlap.profiles import device_rows, trace_name
from dsv4lab.tuning.overlap.reading import read
from dsv4lab.tuning.overlap.record import OverlapRecord, load_record, record_from_json
from dsv4lab.tuning.overlap.settings import Settings, model_of
from dsv4lab.tuning.overlap.stage import Stage, side_chain
from tests.cpu.fake_device import FakeDevice, FakeGraph

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = Settings(
    "tiny",
    "cpu",
    4,
    300,
    (1, 3),
    plans=("hip", "cuda+moe"),
    rounds=5,
    in_a_row=2,
    replays=4,
    minutes=30,
    traced=("hip",),
)


def priced(graph: FakeGraph) -> float:
    """Streams beside each other are free: the longest one counts."""
    streams = [stream for stream, work, _ in graph.nodes if work is not None]
    return float(max(streams.count(stream) for stream in set(streams)))


def device() -> FakeDevice:
    found = FakeDevice()
    found.price = priced
    return found


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[OverlapRecord, Path]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("bench")
    return bench(SETTINGS, folder, lambda text: None, device()), folder


def test_every_plan_is_gated_timed_and_held_against_the_faster_serial_program(
    ran: tuple[OverlapRecord, Path],
) -> None:
    record, _ = ran
    assert record.gate is not None
    assert record.gate.green
    assert {"2: hip, graph", "3: cuda+moe, eager", "replays allocate nothing"} <= set(record.gate.verdicts)
    assert record.left_out == ()
    assert [level.concurrency for level in record.levels] == [1, 3]
    for view in read(record):
        assert {plan.plan for plan in view.plans} >= {*SERIAL, "hip", "cuda+moe"}
        assert view.control.plan in SERIAL
        assert view.best.delta.delta < 0
        assert all(len(plan.times.rounds_us) == SETTINGS.rounds for plan in view.plans)
        assert view.auto is not None
        assert view.auto.us <= view.best.us, "auto may take plans that were not asked for"


def test_hidden_time_is_that_of_the_side_ops_alone(ran: tuple[OverlapRecord, Path]) -> None:
    record, _ = ran
    for view in read(record):
        hip = view.of("hip")
        assert hip is not None
        assert hip.times.side_us is not None
        assert 0 < hip.times.side_us < view.control.us
        assert hip.hidden == pytest.approx(1.0), "the price of this device hides all of it"
        assert view.control.hidden is None


def test_replays_are_compared_and_levels_profiled(ran: tuple[OverlapRecord, Path]) -> None:
    record, _ = ran
    assert record.replays is not None
    assert (record.replays.replays, record.replays.identical) == (4, 4)
    first = read(record)[0]
    wanted = dict.fromkeys([first.control.plan, first.best.plan, "off", "hip"])
    assert [(p.concurrency, p.plan) for p in record.profiles] == [(1, plan) for plan in wanted]


def test_files_are_written_and_read_back(ran: tuple[OverlapRecord, Path]) -> None:
    record, folder = ran
    assert load_record(folder / "overlap-tiny.json") == record
    assert record.carveouts == {}
    older = {name: value for name, value in record.to_json().items() if name != "carveouts"}
    assert record_from_json(older, "older") == record
    page = (folder / "overlap-tiny.md").read_text(encoding="utf-8")
    assert page.startswith("# Overlap: tiny\n")
    assert "## Every plan" in page
    names = {path.name for path in folder.iterdir()}
    assert {profile.trace for profile in record.profiles} <= names
    assert "probe.json" in names
    programs = json.loads((folder / "programs-tiny.json").read_text(encoding="utf-8"))
    assert {plan: len(one["streams"]) for plan, one in programs["1"].items()}["hip"] == 3
    assert not any(name.endswith(".part") for name in names)


def test_a_stored_record_is_printed_again(
    ran: tuple[OverlapRecord, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = ran[1] / "overlap-tiny.json"
    assert main(["bench", "overlap", "--show", str(path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["result"]) == 2
    assert main(["bench", "overlap", "--show", str(path)]) == 0
    assert "Profile of a step" in capsys.readouterr().out
    other = tmp_path / "other.json"
    assert main(["bench", "overlap", "--show", str(other)]) == 2
    assert f"{other}: cannot be read" in capsys.readouterr().err
    other.write_text('{"kind": "something"}', encoding="utf-8")
    assert main(["bench", "overlap", "--show", str(other)]) == 2
    assert "this is no record of dsv4lab bench overlap" in capsys.readouterr().err


def test_a_plan_with_other_bits_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "same", lambda left, right: False)
    record = bench(SETTINGS, None, lambda text: None, device())
    assert record.gate is not None
    assert not record.gate.green
    assert record.levels == ()


def test_levels_without_time_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10**9, 600))
    monkeypatch.setattr("dsv4lab.tuning.overlap.bench.time.monotonic", lambda: float(next(clock)))
    record = bench(SETTINGS, None, lambda text: None, device())
    assert [level.concurrency for level in record.levels] == [1]
    assert record.left_out == ("concurrency 3: no time left", *record.left_out[1:])
    assert {text.partition(":")[0] for text in record.left_out[1:]} == {"replays", "profiles", "probe"}


def test_hip_forks_in_graphs_only_and_has_few_streams() -> None:
    amd = FakeDevice("hip", distinct=3)
    amd.price = priced
    settings = replace(SETTINGS, concurrency=(1,), plans=("hip", "cuda"), traced=())
    record = bench(settings, None, lambda text: None, amd)
    assert record.gate is not None
    assert record.gate.green
    assert "1: hip, graph" in record.gate.verdicts
    assert "1: hip, eager" not in record.gate.verdicts
    assert "1: off, eager" in record.gate.verdicts
    assert record.left_out[0].startswith("cuda: stream side2: torch gives this process 3 distinct streams")
    assert {times.plan for times in record.levels[0].plans} >= {*SERIAL, "hip"}
    assert "cuda" not in {times.plan for times in record.levels[0].plans}


def test_the_cpu_device_takes_turns_too(tmp_path: Path) -> None:
    settings = Settings("tiny", "cpu", 4, 300, (1,), plans=("hip",), rounds=5, in_a_row=1, replays=2, minutes=30)
    record = bench(settings, tmp_path, lambda text: None)
    view = read(record)[0]
    assert record.gate is not None
    assert record.gate.green
    assert record.device == record.machine["cpu"]
    assert view.auto is None
    assert view.floor_us is None
    assert view.of("hip") is not None
    streams = {lane.name for profile in record.profiles for lane in profile.streams if profile.plan == "hip"}
    assert streams == {"main", "side0", "side1"}


def test_bytes_count_shared_memory_once_and_experts_as_they_are_hit() -> None:
    stage = Stage(SETTINGS, device())
    one, three = floor.step_bytes(stage, 1), floor.step_bytes(stage, 3)
    assert three.kv == 3 * one.kv
    experts = sum(layer.moe.w13.nbytes + layer.moe.w2.nbytes for layer in stage.runner.weights.layers)
    share = [experts_hit(stage.model, n) / stage.model.n_routed_experts for n in (1, 3)]
    assert three.weights - one.weights == pytest.approx((share[1] - share[0]) * experts, abs=8)
    tensor = torch.zeros(6, 4)
    assert floor._memory((tensor, tensor[:2], tensor[2:])) == tensor.nbytes
    stage.close()


def test_side_ops_alone_keep_their_order_on_one_stream() -> None:
    stage = Stage(SETTINGS, device())
    compiled = stage.step(1, "cuda+moe").compiled
    chain = side_chain(compiled)
    assert chain is not None
    moved = [op.label for op in compiled.program.ops if op.stream != MAIN]
    assert [op.label for op in chain.program.ops] == moved
    assert {op.stream for op in chain.program.ops} == {MAIN}
    assert [op.index for op in chain.program.ops] == list(range(len(moved)))
    assert side_chain(stage.step(1, "off").compiled) is None
    stage.close()


def test_shards_are_an_eighth() -> None:
    whole, part = model_of("flash", 3), model_of("flash-tp8", 3)
    assert part.num_attention_heads == whole.num_attention_heads // 8
    assert part.moe_intermediate_size == whole.moe_intermediate_size // 8
    assert (part.num_hidden_layers, part.mtp_layers, part.dspark) == (3, 0, None)
    assert Settings("pro-tp8").gpus == 8
    assert Settings("pro").gpus == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"shape": "huge"}, "shape is 'huge'"),
        ({"concurrency": (1, 1)}, "concurrency is"),
        ({"rounds": 0}, "rounds is 0"),
        ({"minutes": 0.0}, "minutes is 0.0"),
        ({"kv": "int3"}, "kv is 'int3'"),
    ],
)
def test_settings_name_what_they_do_not_take(change: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Settings(**change)  # type: ignore[arg-type]


def test_plans_that_are_none() -> None:
    with pytest.raises(UsageError, match="auto is asked at every level"):
        plans_of(["auto"])
    with pytest.raises(PlanError, match="unknown overlap plan"):
        plans_of(["warp"])
    with pytest.raises(UsageError, match="on the CPU device it takes tiny or demo"):
        Stage(Settings("flash", "cpu"))
    assert plans_of(["hip", "off"]) == (*SERIAL, "hip")
    assert all(resolve_plan(name) for name in SERIAL)


def test_rows_of_a_profiler_by_stream() -> None:
    rows = [
        {"ph": "X", "cat": "kernel", "ts": 5157996374138.841, "dur": 2.5, "args": {"stream": 7}},
        {"ph": "X", "cat": "gpu_memset", "ts": 5157996374140.841, "dur": 1.0, "args": {"stream": 13}},
        {"ph": "X", "cat": "cuda_runtime", "ts": 1.0, "dur": 9.0, "args": {}},
        {"ph": "M", "name": "process_name"},
    ]
    busy = device_rows(rows).stream_busy()
    assert {(s.stream, s.busy_ns) for s in busy.streams} == {("7", 2500), ("13", 1000)}
    assert (busy.wall_ns, busy.hidden_ns) == (3000, 500)
    assert trace_name("flash-tp8", "cuda+moe", 4) == "overlap-flash-tp8-cuda_moe-4.pt.trace.json.gz"


class Capture:
    """Stands in for torch's profiler: counts what it is told."""

    platform = "cuda"
    programs, runs = (), ()

    def __init__(self, *, device: bool) -> None:
        self.told: list[str] = []
        assert device
        made.append(self)

    def _range(self, what: str) -> Any:
        self.told.append(what)
        return nullcontext()

    def start(self) -> None:
        self.told.append("start")

    def stop(self) -> None:
        self.told.append("stop")

    def export(self, path: Path) -> None:
        path.write_text("{}", encoding="utf-8")

    def belongs_to(self, step: int) -> None:
        self.told.append(f"step {step}")

    def op(self, op: Any) -> Any:
        return self._range("op")

    def run(self, program: Any, *, graph: bool) -> Any:
        return self._range(f"run {program.plan} {graph}")

    def setup(self) -> Any:
        return self._range("setup")

    def learn(self, program: Any) -> Any:
        return self._range("learn")

    def knows(self, program: Any) -> bool:
        return "learn" in self.told


made: list[Capture] = []


def test_kernels_are_put_on_the_streams_of_the_plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    timeline = timeline_of([])

    def written(raw: Path, path: Path, programs: Any, runs: Any, meta: Any, *, platform: str) -> Any:
        assert raw.exists()
        export_kineto(timeline, path)
        return SimpleNamespace(problems=("two kernels have no op",))

    monkeypatch.setattr("dsv4lab.trace.capture.TorchCapture", Capture)
    monkeypatch.setattr("dsv4lab.trace.named.write_named", written)
    stage = Stage(SETTINGS, device())
    step = stage.step(1, "hip")
    found, problems = profiles._by_op(stage, step, tmp_path / trace_name("tiny", "hip", 1))
    assert (len(found), problems) == (0, ("two kernels have no op",))
    told = [text for text in made[-1].told if text != "op"]
    steps = [text for at in range(profiles.STEPS) for text in ("run hip True", f"step {at}")]
    assert told == ["start", "setup", "learn", *steps, "stop"]
    assert stage.gpu is not None
    assert stage.gpu.streams.tracer is None
    stage.close()


def test_a_profiler_that_fails_takes_no_figures_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise TraceError("the profiler told of no kernel")

    monkeypatch.setattr(profiles, "profile", failing)
    record = bench(SETTINGS, None, lambda text: None, device())
    assert len(record.levels) == 2
    assert record.profiles == ()
    assert record.left_out[0] == f"profile of {read(record)[0].control.plan} at 1: the profiler told of no kernel"


def test_facts_name_no_folder_and_no_user() -> None:
    text = json.dumps(machine_facts())
    assert str(Path.home()) not in text
    assert os.sep + "tmp" not in text


def test_it_runs_where_only_torch_numpy_scipy_and_rich_are() -> None:
    code = """
import sys
for name in ("msgspec", "isal", "plotly", "optuna", "sqlalchemy", "aiohttp", "pyarrow"):
    sys.modules[name] = None
from dsv4lab.cli.bench import BenchCommand
from dsv4lab.cli.bench_overlap import show
from dsv4lab.tuning.overlap.bench import bench
from dsv4lab.tuning.overlap.settings import Settings
from tests.cpu.fake_device import FakeDevice
settings = Settings("tiny", "cpu", 4, 300, (1,), plans=("hip",), rounds=5, in_a_row=1, replays=1, minutes=30)
show(bench(settings, None, print, FakeDevice()))
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "The gate is green" in done.stdout


def test_the_command_prints_tables_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "overlap", "--device", "cpu", "--shape", "tiny", "--isl", "300", "--concurrency", "1"]
    words += ["--plans", "hip", "--rounds", "5", "--in-a-row", "1", "--replays", "1", "--minutes", "30"]
    assert main([*words, "--json"]) == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert told["kind"] == "dsv4lab overlap bench"
    assert told["result"][0]["best"]["plan"] == "hip"
    assert told["result"][0]["best"]["vs_control"]["pairs"] == 5
    assert "concurrency 1" in said.err
    assert main([*words[:2], "--device", "cpu", "--concurrency", "one"]) == 2
