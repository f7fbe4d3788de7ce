"""Replays named by op: two real captures of graph replays on an H200, random programs, and what is said otherwise.

``replays/`` has the files of a decode step of Flash's one-rank share of eight, six layers, under ``off`` and
``cuda+moe`` (torch 2.11, which tells no graph node), and its ops with their numbers of kernels. Under ``off`` all
kernels are in one order, so that those numbers give each op its kernels; what ``cuda+moe`` is matched with comes from
there.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4lab.errors import TraceError
from dsv4lab.timeline.program import ProgramOp, StreamProgram
from dsv4lab.timeline.timeline import UNKNOWN, Kind
from dsv4lab.trace.api import load_trace
from dsv4lab.trace.marks import SETUP, CapturedRun, learn_mark, op_mark, run_mark
from dsv4lab.trace.named import NamedCapture, write_named
from dsv4lab.trace.replays import GraphKernels, Key, ReplayRow, kernel_key

FOLDER = Path(__file__).parent / "replays"
OPS: dict[str, list[Any]] = json.loads((FOLDER / "flash-tp8.ops.json").read_text(encoding="utf-8"))
LANES = {("main", 208): 154, ("main", 13): 33, ("side0", 13): 36, ("side1", 210): 18, ("side2", 209): 26}


def program_of(plan: str) -> StreamProgram:
    ops = [
        ProgramOp(i, name, layer, on, tuple(waits), (), (), ())
        for i, (name, layer, on, waits, _) in enumerate(OPS[plan])
    ]
    streams = ("main", *sorted({op.stream for op in ops} - {"main"}))
    return StreamProgram(tuple(ops), streams, plan, "decode", 1)


def document_of(plan: str) -> dict[str, Any]:
    path = FOLDER / f"flash-tp8-{plan.replace('+', '_')}.pt.trace.json.gz"
    document: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return document


def kernels_of(document: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The kernels of each replay, in order of start."""
    kernels = sorted((e for e in document["traceEvents"] if e.get("cat") == "kernel"), key=lambda e: e["ts"])
    return [
        [e for e in kernels if e["args"]["correlation"] == c]
        for c in sorted({e["args"]["correlation"] for e in kernels})
    ]


def row_of(event: dict[str, Any]) -> ReplayRow:
    args = event["args"]
    return ReplayRow(kernel_key(event["name"], args["grid"], args["block"]), args["stream"])


def by_label(events: list[dict[str, Any]]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Kernels of each op under ``off``, by label and how often it came before; fused ops by their parts too."""
    at, found, seen = 0, {}, Counter[str]()
    for op, (*_, count) in zip(program_of("off").ops, OPS["off"], strict=True):
        part, at = events[at : at + count], at + count
        found[op.label, seen[op.label]] = part
        seen[op.label] += 1
        if op.name == "qk_norm_rope_store":
            found[f"L{op.layer}.q_norm_rope", 0], found[f"L{op.layer}.kv_norm_rope_store", 0] = part[:1], part[1:]
    assert at == len(events)
    return found


def events_by_op(plan: str) -> list[list[dict[str, Any]]]:
    known, seen, out = by_label(kernels_of(document_of("off"))[0]), Counter[str](), []
    for op, (*_, count) in zip(program_of(plan).ops, OPS[plan], strict=True):
        out.append(known[op.label, seen[op.label]])
        assert len(out[-1]) == count
        seen[op.label] += 1
    return out


def learnt(plan: str) -> list[list[Key]]:
    return [[row_of(e).key for e in events] for events in events_by_op(plan)]


@pytest.mark.parametrize("plan", ["off", "cuda+moe"])
def test_every_kernel_of_a_real_replay_has_its_op(plan: str) -> None:
    program, replays = program_of(plan), [[row_of(e) for e in events] for events in kernels_of(document_of(plan))]
    found = GraphKernels(program, learnt(plan)).match(replays)
    assert len(found) == 2
    for matched, rows in zip(found, replays, strict=True):
        assert (matched.problem, matched.unsure, len(matched.ops)) == ("", 0, 267)
        assert matched.how == "in order, each op on one lane"
        lanes = Counter((program.ops[op].stream, row.lane) for op, row in zip(matched.ops, rows, strict=True))
        assert lanes == ({("main", 13): 267} if plan == "off" else LANES)


def test_kernels_of_another_program_are_not_named() -> None:
    replays = [[row_of(e) for e in events] for events in kernels_of(document_of("cuda+moe"))]
    for matched in GraphKernels(program_of("off"), learnt("off")).match(replays):
        assert matched.problem == "its kernels start in an order that the program does not allow"
        assert set(matched.ops) == {UNKNOWN}
    one_more = learnt("cuda+moe")
    one_more[5] = [*one_more[5], ("extra", (1, 1, 1), (32, 1, 1))]
    (first, _) = GraphKernels(program_of("cuda+moe"), one_more).match(replays)
    assert first.problem == "267 kernels, 268 in an eager run of the same ops (extra -1)"


def small(*ops: tuple[str, str, tuple[int, ...]]) -> StreamProgram:
    made = tuple(ProgramOp(i, name, -1, stream, waits, (), (), ()) for i, (name, stream, waits) in enumerate(ops))
    return StreamProgram(made, ("main", "side0", "side1"), "p", "decode", 1)


def rows(*pairs: tuple[str, int]) -> list[ReplayRow]:
    return [ReplayRow(key, lane) for key, lane in pairs]


def test_kernels_alike_on_two_streams_have_no_op_unless_an_op_or_another_replay_tells() -> None:
    program = small(("a", "main", ()), ("b", "side0", (0,)), ("c", "side1", (0,)))
    kernels = GraphKernels(program, [["k"], ["same"], ["same"]])
    (matched,) = kernels.match([rows(("k", 1), ("same", 2), ("same", 3))])
    assert (matched.ops, matched.unsure, matched.problem) == ([0, UNKNOWN, UNKNOWN], 2, "")
    kernels = GraphKernels(program, [["k"], ["same", "b"], ["same", "c"]])
    (matched,) = kernels.match([rows(("k", 1), ("same", 2), ("same", 3), ("c", 2), ("b", 3))])
    assert matched.ops == [0, 2, 1, 2, 1]
    program = small(("a", "main", ()), ("b", "side0", ()), ("c", "main", (1,)))
    kernels = GraphKernels(program, [["same"], ["same"], ["end"]])
    assert [m.unsure for m in kernels.match([rows(("same", 1), ("same", 2), ("end", 1))])] == [2]


def test_a_place_on_a_lane_is_one_node_in_all_replays() -> None:
    program = small(("a", "main", ()), ("b", "side0", ()), ("c", "main", ()), ("d", "side1", (2,)))
    kernels = GraphKernels(program, [["x"], ["x"], ["y"], ["x"]])
    early, late = rows(("x", 1), ("y", 1), ("x", 2), ("x", 3)), rows(("x", 1), ("x", 2), ("y", 1), ("x", 3))
    alone = kernels.match([late])[0].ops
    both = kernels.match([early, late])
    assert alone.count(UNKNOWN) >= both[1].ops.count(UNKNOWN)
    assert alone[3] == both[1].ops[3] == 3
    for matched in both:
        assert not matched.problem


def test_graph_nodes_are_taken_in_the_order_of_recording_if_their_kernels_agree() -> None:
    program = small(("a", "main", ()), ("b", "side0", ()), ("c", "side1", ()))
    kernels = GraphKernels(program, [["s"], ["s"], ["s"]])
    told = [ReplayRow("s", 1, 12), ReplayRow("s", 2, 10), ReplayRow("s", 3, 11)]
    (matched,) = kernels.match([told])
    assert (matched.ops, matched.how) == ([2, 0, 1], "by graph node")
    kernels = GraphKernels(program, [["s"], ["t"], ["s"]])
    wrong = [replace(row, key=key) for row, key in zip(told, "sts", strict=True)]
    assert kernels.match([wrong])[0].how == "in order, each op on one lane"


def test_copies_and_fills_are_alike_in_eager_runs_and_replays() -> None:
    assert kernel_key("Memcpy DtoD (Device -> Device)", None, None) == kernel_key(
        "memcpy32_post", [2, 1, 1], [256, 1, 1]
    )
    assert kernel_key("Memset (Device)", None, None) == kernel_key("memset32_post", [1, 1, 1], [32, 1, 1])
    assert kernel_key("k", [1, 1, 1], [32, 1, 1]) != kernel_key("k", [2, 1, 1], [32, 1, 1])


@pytest.mark.parametrize("seed", range(60))
def test_no_kernel_of_a_random_program_gets_a_wrong_op(seed: int) -> None:
    rng = random.Random(seed)
    streams = ("main", "side0", "side1")
    ops = [
        (f"o{i}", rng.choice(streams), tuple(sorted(rng.sample(range(i), min(i, rng.randint(0, 2))))))
        for i in range(rng.randint(2, 14))
    ]
    program = small(*ops)
    kernels = [[rng.choice("abc") for _ in range(rng.randint(0, 3))] for _ in ops]
    replays, truth = zip(*(replayed(program, kernels, rng) for _ in range(3)), strict=True)
    known = 0
    for matched, true in zip(GraphKernels(program, kernels).match(replays), truth, strict=True):
        assert matched.problem in ("", "too many ways to assign its kernels")
        assert all(op in (UNKNOWN, right) for op, right in zip(matched.ops, true, strict=True)), (matched.ops, true)
        known += len(true) - matched.unsure
    assert known > 0 or not any(kernels) or seed


def replayed(program: StreamProgram, kernels: list[list[str]], rng: random.Random) -> tuple[list[ReplayRow], list[int]]:
    """An order that streams and waits allow; each stream is a lane."""
    left = {
        s: [(k, i) for i, op in enumerate(program.ops) if op.stream == s for k in kernels[i]] for s in program.streams
    }
    done: set[int] = set()
    out: list[ReplayRow] = []
    truth: list[int] = []

    def settle() -> None:
        """Ops whose kernels have all started, and without kernels those whose turn has come."""
        for i, op in enumerate(program.ops):
            before = [j for j, other in enumerate(program.ops[:i]) if other.stream == op.stream]
            if all(j in done for j in (*before, *op.waits)) and truth.count(i) == len(kernels[i]):
                done.add(i)

    settle()
    while any(left.values()):
        ready = [s for s, queue in left.items() if queue and all(w in done for w in program.ops[queue[0][1]].waits)]
        ready = [s for s in ready if all(_before(program, left[s][0][1], done))]
        stream = rng.choice(ready)
        key, op = left[stream].pop(0)
        out.append(ReplayRow(key, stream))
        truth.append(op)
        settle()
    return out, truth


def _before(program: StreamProgram, op: int, done: set[int]) -> list[bool]:
    return [j in done for j in range(op) if program.ops[j].stream == program.ops[op].stream]


def captured(tmp_path: Path, *, learn: bool = True) -> tuple[NamedCapture, dict[str, Any]]:
    """The real replays of ``cuda+moe`` with the marks of a capture, behind an eager run that tells their kernels."""
    program, document = program_of("cuda+moe"), document_of("cuda+moe")
    events = document["traceEvents"]
    launches = sorted((e for e in events if e["name"] == "cudaGraphLaunch"), key=lambda e: e["ts"])
    for n, launch in enumerate(launches):
        events.append(mark(run_mark(n, "graph"), launch["ts"] - 5, launch["dur"] + 10))
    at = launches[0]["ts"] - 50_000
    eager: list[dict[str, Any]] = []
    for op, kernels in zip(program.ops, events_by_op("cuda+moe"), strict=True):
        events.append(mark(op_mark(op), at, 10 * len(kernels) + 5))
        for n, kernel in enumerate(kernels):
            ids = {"correlation": 10_000 + len(eager), "stream": 7 + program.streams.index(op.stream)}
            call = {"name": "cuLaunchKernelEx", "ts": at + 10 * n + 1, "dur": 1, "pid": 9, "tid": 9}
            events.append({"ph": "X", "cat": "cuda_driver", **call, "args": {"correlation": ids["correlation"]}})
            eager.append({**kernel, "ts": at + 10 * n + 3, "args": {**kernel["args"], **ids}})
        at += 10 * len(kernels) + 10
    first = launches[0]["ts"] - 50_001
    if learn:
        events += [mark(SETUP, first, at - first), mark(learn_mark(0), first, at - first), *eager]
    raw = tmp_path / "raw.json"
    raw.write_text(json.dumps(document), encoding="utf-8")
    runs = (CapturedRun(0, graph=True, step=5), CapturedRun(0, graph=True, step=6))
    meta = {"manifest": {"settings": {"plan": "cuda+moe"}}, "step_modes": {"5": "decode", "6": "decode"}}
    path = tmp_path / "run" / "w.1.pt.trace.json.gz"
    return write_named(raw, path, (program,), runs, meta, platform="cuda"), document_of("cuda+moe")


def mark(name: str, ts: float, dur: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 9, "tid": 9, "ts": ts, "dur": dur}


def test_a_real_capture_becomes_a_file_with_ops_streams_and_knobs(tmp_path: Path) -> None:
    found, before = captured(tmp_path)
    assert (found.rows, found.named, found.runs, found.problems) == (534, 534, 2, ())
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["w.1.pt.trace.json.gz"]
    trace = load_trace(found.path)
    busy = trace.busy_mask
    assert int(busy.sum()) == 534
    assert trace.main_stream == "main"
    assert trace.meta["manifest"]["settings"]["plan"] == "cuda+moe"
    assert trace.meta["step_modes"] == {"5": "decode", "6": "decode"}
    streams = Counter(trace.streams[s] for s in trace.stream[busy & (trace.step == 6)].tolist())
    assert streams == {"main": 187, "side0": 36, "side1": 18, "side2": 26}
    ops = Counter(trace.names[o] for o in trace.op[busy & (trace.step == 5) & (trace.layer == 3)].tolist())
    assert ops["compressor.store"] == 3
    assert ops["attention"] == 2
    kernels = [e for events in kernels_of(before) for e in events]
    assert Counter(trace.names[n] for n in trace.name[busy].tolist()) == Counter(e["name"] for e in kernels)
    assert trace.dur_ns[busy].sum() == round(sum(e["dur"] for e in kernels) * 1000)
    summary = trace.stream_busy()
    assert 0 < summary.hidden_ns < summary.side_busy_ns
    assert not np.isin(trace.correlation, range(10_000, 11_000)).any()
    assert (trace.kind == int(Kind.HOST)).sum() == 33


def test_tensorboard_s_plugin_reads_the_file(tmp_path: Path) -> None:
    data = pytest.importorskip("torch_tb_profiler.profiler.data", reason="torch-tb-profiler is not installed")
    found, _ = captured(tmp_path)
    profile = data.RunProfileData.parse("worker", None, str(found.path), str(tmp_path))
    assert profile.kernel_stat["count"].sum() == 534
    assert profile.steps_names == ["5", "6"]


def test_replays_without_an_eager_run_keep_their_lanes_and_say_so(tmp_path: Path) -> None:
    found, _ = captured(tmp_path, learn=False)
    assert (found.rows, found.named) == (534, 0)
    assert found.problems == ("graph of decode of 1 tokens under plan cuda+moe: no eager run tells its kernels",)
    trace = load_trace(found.path)
    lanes = {trace.streams[s] for s in trace.stream[trace.busy_mask].tolist()}
    assert lanes == {"stream 13", "stream 208", "stream 209", "stream 210"}


def test_a_file_that_is_no_capture_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "raw.json"
    path.write_text('{"traceEvents": [', encoding="utf-8")
    with pytest.raises(TraceError, match=r"raw\.json: not what torch's profiler writes"):
        write_named(path, tmp_path / "out.pt.trace.json.gz", (), (), {}, platform="cuda")
