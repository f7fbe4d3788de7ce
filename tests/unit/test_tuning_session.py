from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dsv4lab.config.engine import EngineConfig, OverlapSetting
from dsv4lab.engine.request import FinishReason, Limits
from dsv4lab.engine.results import GenerateResult, Profile, RequestStats
from dsv4lab.errors import UsageError, WorkerDiedError
from dsv4lab.timeline.program import ProgramOp, StreamProgram
from dsv4lab.timeline.records import PoolRequest, PoolSnapshot, QueryReads, StepRecord
from dsv4lab.timeline.timeline import Timeline
from dsv4lab.tuning import tables
from dsv4lab.tuning.report import report_page, steps_of, typical_steps, write_report
from dsv4lab.tuning.session import SessionResult, run_session
from dsv4lab.tuning.space import Load, PlanChoice, SweepSpace
from dsv4lab.tuning.store import MANIFEST, RECORDS, RESULT, read_records
from dsv4lab.tuning.sweep import load_count

CONFIG = EngineConfig("tiny")
SPACE = SweepSpace(
    plans=tuple(PlanChoice(name, name) for name in ("off", "hip")),
    hw_queues=(1, 2),
    concurrency=(1, 2),
    load=Load(prompt_tokens=8, max_new_tokens=4),
    rounds=1,
    repeats=2,
    confirm=6,
)


@dataclass
class Machine:
    """What the fake engines share: a log, the plan that is faster, and faults to come."""

    gain: float = 0.2
    corrupt: Callable[[EngineConfig, str, int], bool] = lambda config, plan, load: False
    noisy_logits: Callable[[str], bool] = lambda plan: False
    die_at: int | None = None
    loads: int = 0
    starts: list[tuple[str, int, int]] = field(default_factory=list)
    open: int = 0
    plans: list[str] = field(default_factory=list)


class FakeHandle:
    def __iter__(self) -> Iterator[int]:
        return iter([1, 2, 3])

    def abort(self) -> None:
        pass

    def result(self) -> list[int]:
        return [1]


class FakeTarget:
    limits = Limits(vocab_size=64, pool_tokens=4096, page_size=256, max_requests=8, max_position=4096)

    def __init__(self, machine: Machine, config: EngineConfig) -> None:
        self._machine = machine
        self._config = config
        self._plan = "off"
        machine.open += 1
        self._start(config.hw_queues)

    def _start(self, hw_queues: int) -> None:
        self._queues = hw_queues
        self._machine.starts.append((self._config.streams, hw_queues, self._config.intra_op_threads))

    def set_plan(self, plan: OverlapSetting) -> None:
        assert isinstance(plan, str)
        self._plan = plan

    def set_hw_queues(self, hw_queues: int) -> None:
        self._start(hw_queues)

    def load(
        self,
        concurrency: int,
        prompt_tokens: int,
        max_new_tokens: int,
        seed: int,
        *,
        profile: bool = False,
        fingerprints: bool = False,
    ) -> GenerateResult:
        machine = self._machine
        machine.loads += 1
        if machine.loads == machine.die_at:
            machine.die_at = None
            raise WorkerDiedError("the worker process ended unexpectedly: killed")
        machine.plans.append(self._plan)
        wrong = machine.corrupt(self._config, self._plan, machine.loads)
        tokens = [[p, seed, 7, 8 + wrong] for p in range(concurrency)]
        tpot = 10.0 * (1 - machine.gain if self._plan == "hip" and self._queues == 2 else 1) * (1 + 0.001 * concurrency)
        bits = tuple(row + 100 * concurrency + machine.noisy_logits(self._plan) for row in range(4))
        stats = [
            RequestStats(5.0, tpot, FinishReason.LENGTH, 4, bits if fingerprints else ()) for _ in range(concurrency)
        ]
        return GenerateResult.of(tokens, stats, 10**9, self._timeline() if profile else None)

    def submit(self, prompt: Sequence[int], *, max_new_tokens: int) -> FakeHandle:
        return FakeHandle()

    def profile(self, steps: int) -> Profile:
        records = tuple(StepRecord(n, "decode", 2, 2, n * 1000, 900, self._plan, self._queues) for n in range(steps))
        stream = "main" if self._plan == "off" else "side0"
        ops = (ProgramOp(0, "a", 0, "main", (), (), (), ()), ProgramOp(1, "b", 0, stream, (0,), (0,), (), ()))
        program = StreamProgram(ops, ("main", "side0"), self._plan, "decode", 2)
        return Profile(self._timeline(steps), program=program, steps=records)

    def pool_snapshot(self) -> PoolSnapshot:
        request = PoolRequest(1, 1, 9, (1,))
        return PoolSnapshot(3, 3, 136, 128, 9, 256, 64, 4, (0, 4, 128, 4), (request,), tuple(range(2, 9)), (2,))

    def query_reads(self, request_id: int, position: int, layer: int) -> QueryReads:
        assert (request_id, position, layer) == (1, 8, 1)
        return QueryReads(request_id, position, layer, 4, (136, 137), (500, 501))

    def close(self) -> None:
        self._machine.open -= 1

    def _timeline(self, steps: int = 2) -> Timeline:
        side = 0 if self._plan == "off" else 1
        return Timeline.build(
            start_ns=[s * 1000 + o * 400 for s in range(steps) for o in (0, 1)],
            dur_ns=[500, 300] * steps,
            stream=[0, side] * steps,
            queue=[0, side] * steps,
            queued_ns=[s * 1000 for s in range(steps) for _ in (0, 1)],
            name=[0, 1] * steps,
            correlation=[0, 1] * steps,
            step=[s for s in range(steps) for _ in (0, 1)],
            names=("a", "b"),
            streams=("main", "side0"),
            queues=("q0", "q1"),
            main_stream="main",
        )


def fetched(page: str) -> list[str]:
    """Elements of ``page`` that load something else."""
    bare = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    return re.findall(r"<(?:script|img|link|iframe)\s[^>]*(?:src|href)=[^>]*>", bare)


def session(folder: Path, machine: Machine, *, resume: bool = False, space: SweepSpace = SPACE) -> SessionResult:
    told: list[int] = []

    def tell(loads: int, text: str) -> None:
        assert text
        told.append(loads)

    def open_target(config: EngineConfig) -> FakeTarget:
        return FakeTarget(machine, config)

    try:
        result = run_session(space, CONFIG, folder, open_target=open_target, tell=tell, resume=resume)
    finally:
        assert machine.open == 0, "a worker was left running"
    if result.identical:
        assert sum(told) == load_count(space)
    return result


def test_a_session_ends_in_a_recommendation_and_a_folder(tmp_path: Path) -> None:
    machine = Machine()
    result = session(tmp_path / "s", machine)
    assert result.identical
    assert machine.loads == load_count(SPACE)
    assert result.recommendation is not None
    assert result.recommendation.use.text == "hip on 2 hardware queues"
    assert [arm.role for arm in result.arms] == ["baseline", "best"]
    assert result.arms[1].busy.hidden_ns > 0
    assert {path.name.split(".")[0] for path in (tmp_path / "s").glob("*.pt.trace.json.gz")} == {
        "baseline-off-q2-c2",
        "best-hip-q2-c2",
    }
    document = json.loads((tmp_path / "s" / RESULT).read_text())
    assert document["identical"] is True
    assert len(document["rows"]) == 8
    assert [row["control"] for row in document["controls"]] == [True, True]
    assert document["best"]["plan"] == "hip"


def test_every_queue_count_and_the_control_get_a_process_of_their_own(tmp_path: Path) -> None:
    machine = Machine()
    result = session(tmp_path, machine)
    cores = result.manifest.settings["cores"]
    assert machine.starts == [("queue", 1, 1), ("queue", 2, 1), ("serial", 4, cores), ("queue", 2, 1)]


def test_the_report_is_one_file_with_everything_in_it(tmp_path: Path) -> None:
    result = session(tmp_path, Machine())
    page = write_report(result).read_text()
    for text in ("Use hip on 2 hardware queues on this CPU.", "predicts nothing about a GPU", "cores inside the op"):
        assert text in page
    for heading in ("The sweep", "Streams", "Hardware queues", "timeline", "KV pool", "Method", "Manifest"):
        assert heading in page
    assert "one intra-op thread in every plan" in page
    assert fetched(page) == []


def test_a_mismatch_stops_the_session_and_names_the_first_token(tmp_path: Path) -> None:
    machine = Machine(corrupt=lambda config, plan, load: plan == "hip" and config.streams == "queue")
    result = session(tmp_path, machine)
    assert not result.identical
    assert result.recommendation is None
    assert result.arms == ()
    assert result.divergence is not None
    assert (result.divergence.cell.plan, result.divergence.prompt, result.divergence.position) == ("hip", 0, 3)
    document = result.to_json()
    assert document["identical"] is False
    assert document["best"] is None
    assert "No recommendation: outputs differ" in report_page(result)
    again = session(tmp_path, Machine(), resume=True)
    assert not again.identical, "a session that failed its gate stays failed"


def test_a_mismatch_in_a_measured_trial_counts_too(tmp_path: Path) -> None:
    late = Machine(corrupt=lambda config, plan, load: load == 8)
    result = session(tmp_path, late)
    assert not result.identical
    assert result.findings, "what was measured before is kept"


def test_logits_that_differ_in_a_bit_are_a_mismatch(tmp_path: Path) -> None:
    result = session(tmp_path, Machine(noisy_logits=lambda plan: plan == "hip"))
    assert not result.identical
    assert "the logits of [hip, 1 queue, concurrency" in str(result.divergence)
    assert "are not those of [off, 1 queue" in tables.identical_text(result)


def test_the_control_may_differ_and_that_is_said(tmp_path: Path) -> None:
    result = session(tmp_path, Machine(corrupt=lambda config, plan, load: config.streams == "serial"))
    assert result.identical
    assert result.control_differs
    assert "not bit-identical to the others'" in tables.control_text(result)
    assert result.to_json()["control_identical"] is False


@pytest.mark.parametrize("die_at", [1, 4, 9, 20, 23, 30, 41])
def test_a_session_that_died_goes_on_and_measures_nothing_twice(tmp_path: Path, die_at: int) -> None:
    machine = Machine(die_at=die_at)
    with pytest.raises(WorkerDiedError):
        session(tmp_path, machine)
    before = (tmp_path / RECORDS).read_bytes()
    result = session(tmp_path, machine, resume=True)
    assert result.identical
    assert result.recommendation is not None
    assert result.recommendation.use.text == "hip on 2 hardware queues"
    assert (tmp_path / RECORDS).read_bytes().startswith(before)
    records, torn = read_records(tmp_path / RECORDS)
    keys = [json.dumps([r["phase"], r["round"], r["repeat"], r["cell"]]) for r in records if r["kind"] == "trial"]
    assert len(keys) == len(set(keys)) == sum(len(v.turns) for v in SPACE.visits()) + 2 * 2 * SPACE.confirm
    assert torn == 0


def test_a_finished_session_resumes_to_the_same_answer(tmp_path: Path) -> None:
    first = session(tmp_path, Machine())
    machine = Machine(gain=-0.5)
    second = session(tmp_path, machine, resume=True)
    assert machine.loads == 0
    assert second.recommendation == first.recommendation
    assert [f.row for f in second.findings] == [f.row for f in first.findings]


def test_the_report_shows_steps_of_median_length(tmp_path: Path) -> None:
    arm = session(tmp_path, Machine()).arms[0]
    steps = tuple(dataclasses.replace(step, dur_ns=dur) for step, dur in zip(arm.steps, (9, 1, 5, 90, 2), strict=False))
    arm = dataclasses.replace(arm, steps=steps)
    assert [step.dur_ns for step in typical_steps(arm, 1)] == [5]
    assert [step.dur_ns for step in typical_steps(arm, 2)] == [9, 1]
    assert set(steps_of(arm, typical_steps(arm, 2)).step.tolist()) == {0, 1}


def test_another_load_cannot_continue_a_session(tmp_path: Path) -> None:
    session(tmp_path, Machine())
    other = SweepSpace(SPACE.plans, SPACE.hw_queues, SPACE.concurrency, Load(8, 5), 1, 2, 6)
    with pytest.raises(UsageError, match=r"settings\.sweep\.load\.max_new_tokens is 4 there and 5 now"):
        session(tmp_path, Machine(), resume=True, space=other)
    with pytest.raises(UsageError, match="already holds a session"):
        session(tmp_path, Machine())


def test_the_manifest_says_what_it_was_made_with(tmp_path: Path) -> None:
    session(tmp_path, Machine())
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    assert manifest["preset"] == "tiny"
    assert manifest["settings"]["sweep"]["hw_queues"] == [1, 2]
    assert manifest["settings"]["engine"]["dtype"] == "float32"
    assert manifest["cpu"]
    assert manifest["torch"]


def test_off_alone_makes_a_session_too(tmp_path: Path) -> None:
    alone = SweepSpace(SPACE.plans[:1], (1,), (1,), SPACE.load, 1, 1, 5, control=False)
    result = session(tmp_path, Machine(), space=alone)
    assert result.recommendation is not None
    assert result.recommendation.verdict == "nothing to compare"
    assert [arm.role for arm in result.arms] == ["baseline"]
    assert "Only off was measured" in report_page(result)


def test_tables_and_launch_line(tmp_path: Path) -> None:
    result = session(tmp_path, Machine())
    assert tables.launch_line(result) == "dsv4lab run --preset tiny --concurrency 2 --plan hip --hw-queues 2"
    columns, rows = tables.sweep_table(result)
    assert "paired trials" not in columns, "two repeats decide nothing"
    assert {len(row) for row in rows} == {len(columns)}
    more = dataclasses.replace(SPACE, repeats=5)
    columns, rows = tables.sweep_table(session(tmp_path / "more", Machine(), space=more))
    assert [row[-1] for row in rows if row[:3] == ("1", "hip", "2")] == ["faster"]
    columns, rows = tables.short_sweep_table(result)
    assert {len(row) for row in rows} == {len(columns)}
    assert tables.identical_text(result) == (
        "Outputs are bit-identical in all 8 settings: same tokens, same logits at equal concurrency."
    )
    found = result.recommendation
    assert found is not None
    assert tables.confirm_title(found) == "hip on 2 hardware queues against off, 6 pairs at each level"
    assert [row[0] for row in tables.confirm_table(found)] == ["1", "2", "all"]
    assert tables.confirm_table(found)[0][1:] == ("10.01", "8.01", "-20.0 %", "-20.0 % to -20.0 %", "faster")
    assert "6 pairs with off" in " ".join(tables.method_lines(result))
