"""Analyses on small timelines with answers worked out by hand, and identities on real ones."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.errors import UsageError
from dsv4lab.timeline.busy import summarise
from dsv4lab.timeline.occupancy import queue_depth
from dsv4lab.timeline.timeline import Kind, Timeline
from dsv4lab.trace.analyse.categories import base_name, by_category, category, exposure
from dsv4lab.trace.analyse.critical import critical_path
from dsv4lab.trace.analyse.fork import fork_verdict, hidden_by_name
from dsv4lab.trace.analyse.idle import CAUSES, idle_causes, idle_gaps, stream_idle
from dsv4lab.trace.analyse.launches import graph_replays, launch_boundness
from dsv4lab.trace.analyse.ops import layer_ids, work
from dsv4lab.trace.analyse.roofline import Work, roofline
from dsv4lab.trace.analyse.steps import find_steps, mode_of, step_times
from dsv4lab.trace.api import Trace, load_trace
from tools.gen_trace import Generator

ROOT = Path(__file__).resolve().parents[2]
TRACES = sorted(p for p in (ROOT / "traces").iterdir() if p.suffix in (".gz", ".csv", ".db"))


def build(rows: list[tuple[str, int, int, int]], **more: Any) -> Timeline:
    """Rows of ``(name, start, dur, stream)``; streams are main, side0, side1."""
    name, start, dur, stream = zip(*rows, strict=True)
    names = list(dict.fromkeys(name))
    return Timeline.build(
        start_ns=start,
        dur_ns=dur,
        stream=stream,
        name=[names.index(n) for n in name],
        names=names,
        streams=("main", "side0", "side1"),
        main_stream="main",
        **more,
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sparse_attn_v4_paged_decode", "attention"),
        ("aiter::v4_attention_with_output", "attention"),
        ("hca_decode_kernel", "attention"),
        ("qk_norm_rope_H64_D512_RD64", "attention"),
        ("fused_compress_attn", "compressor"),
        ("_update_compressor_states_kernel", "compressor"),
        ("compressor.gemm", "compressor"),
        ("indexer.compressor.gemm", "indexer"),
        ("_fwd_indexer_topk_kernel", "indexer"),
        ("mhc.pre", "mHC"),
        ("moe.experts", "MoE"),
        ("void ck_tile::kentry<256, 2, ck_tile::FusedMoeGemmKernel<P>>", "MoE"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV", "GEMM"),
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNT", "GEMM"),
        ("void vllm::rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*)", "norm/rope/quant"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(args)", "communication"),
        ("__amd_rocclr_copyBuffer", "copy"),
        ("Memcpy DtoH (Device -> Pinned)", "copy"),
        ("lm_head", "GEMM"),
        ("o_a", "GEMM"),
        ("what_is_this", "other"),
    ],
)
def test_categories_are_told_by_name(name: str, expected: str) -> None:
    assert category(name) == expected


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<8, F<A>, std::array<char*, 3ul> >(int, F)",
            "at::native::vectorized_elementwise_kernel",
        ),
        ("void (anonymous namespace)::store<2048l>(P)", "(anonymous namespace)::store"),
        ("gemm", "gemm"),
        ("<built-in>", "<built-in>"),
    ],
)
def test_base_names_drop_template_arguments(name: str, short: str) -> None:
    assert base_name(name) == short or base_name(name) in name


def test_categories_split_exclusive_from_shared_time() -> None:
    line = build([("gemm", 0, 10, 0), ("indexer_topk", 5, 10, 1), ("gemm", 20, 5, 0)])
    got = {c.category: (c.rows, c.busy_ns, c.exclusive_ns) for c in by_category(line)}
    assert got == {"GEMM": (2, 15, 10), "indexer": (1, 10, 5)}


def test_exposure_gives_every_moment_one_owner() -> None:
    line = build(
        [("gemm", 0, 10, 0), ("ncclDevKernel_AllReduce", 5, 15, 1), ("Memcpy HtoD", 18, 10, 2), ("gemm", 40, 5, 0)]
    )
    got = exposure(line)
    assert (got.compute_ns, got.exposed_communication_ns, got.exposed_copy_ns, got.idle_ns) == (15, 10, 8, 12)
    assert got.wall_ns == 45


def launched(
    rows: list[tuple[str, int, int, int]], queued: list[int], calls: list[tuple[int, int]], **more: Any
) -> Timeline:
    """GPU rows with their launch times, and the host's launch calls as ``(start, dur)``."""
    every = [*rows, *(("launch", start, dur, -1) for start, dur in calls)]
    kinds = [int(Kind.KERNEL)] * len(rows) + [int(Kind.HOST)] * len(calls)
    return build(every, kind=kinds, queued_ns=[*queued, *[-1] * len(calls)], **more)


def test_idle_causes() -> None:
    us = 1000
    rows = [
        ("a", 0, 10 * us, 0),
        ("b", 12 * us, 8 * us, 0),
        ("c", 30 * us, 10 * us, 1),
        ("d", 60 * us, 5 * us, 0),
        ("e", 300 * us, 5 * us, 0),
    ]
    queued = [-5 * us, 5 * us, 8 * us, 50 * us, 290 * us]
    calls = [(q, 1 * us) for q in queued]
    gaps = idle_gaps(launched(rows, queued, calls))
    assert [(g.cause, g.start_ns // us, g.dur_ns // us) for g in gaps] == [
        ("kernel gap", 10, 2),
        ("other stream", 20, 10),
        ("launch-bound", 40, 20),
        ("host gap", 65, 225),
        ("launch-bound", 290, 10),
    ]
    causes = {c.cause: c.idle_ns // us for c in idle_causes(launched(rows, queued, calls))}
    assert causes == {"host gap": 225, "launch-bound": 30, "other stream": 10, "kernel gap": 2}


def test_gaps_of_one_replay_are_inside_the_graph() -> None:
    line = launched([("a", 10, 5, 0), ("b", 20, 5, 0)], [1, 1], [(1, 3)], correlation=[7, 7, 7])
    assert [(g.cause, g.dur_ns) for g in idle_gaps(line)] == [("inside graph", 5)]


def test_without_launch_times_the_cause_is_unknown() -> None:
    assert [g.cause for g in idle_gaps(build([("a", 0, 5, 0), ("b", 9, 5, 0)]))] == ["unknown"]


def test_a_stream_s_idle_time_is_split_by_what_others_did() -> None:
    got = {
        s.stream: (s.idle_ns, s.others_busy_ns, s.device_idle_ns)
        for s in stream_idle(build([("a", 0, 10, 0), ("b", 5, 10, 1), ("a", 20, 10, 0)]))
    }
    assert got == {"main": (10, 5, 5), "side0": (20, 15, 5)}


@pytest.mark.parametrize("path", TRACES, ids=lambda p: p.name[:30])
def test_identities_hold_on_real_traces(path: Path) -> None:
    trace = load_trace(path)
    busy = trace.stream_busy()
    gaps = idle_gaps(trace)
    assert sum(g.dur_ns for g in gaps) == busy.wall_ns - busy.union_busy_ns
    assert {g.cause for g in gaps} <= set(CAUSES)
    found = exposure(trace)
    assert found.compute_ns + found.exposed_communication_ns + found.exposed_copy_ns + found.idle_ns == busy.wall_ns
    chain = critical_path(trace)
    assert chain.wall_ns == busy.wall_ns == sum(s.dur_ns for s in chain.segments)
    for by in ("name", "category", "stream"):
        assert sum(w.sum_dur_ns for w in work(trace, by)) == busy.sum_dur_ns


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 15), st.integers(0, 2)), min_size=1, max_size=15)


@given(SPANS)
def test_the_critical_path_tiles_the_wall(spans: list[tuple[int, int, int]]) -> None:
    line = build([("k", start, dur, stream) for start, dur, stream in spans])
    path = critical_path(line)
    assert path.wall_ns == summarise(line).wall_ns
    at = min(start for start, _, _ in spans)
    for segment in path.segments:
        assert segment.start_ns == at
        assert segment.dur_ns >= 0
        at += segment.dur_ns
    assert at == max(start + dur for start, dur, _ in spans)


def test_the_critical_path_goes_through_the_stream_that_released_the_row() -> None:
    line = build([("a", 0, 10_000, 0), ("side", 10_000, 30_000, 1), ("b", 40_000, 10_000, 0)])
    assert [s.what for s in critical_path(line).segments] == ["a", "side", "b"]
    assert critical_path(line).by("stream") == {"side0": 30_000, "main": 20_000}


@pytest.mark.parametrize(
    ("label", "mode"),
    [
        ("decode[bs=32/64 tok=1 p=0 d=32 spec=0]", "decode"),
        ("prefill[bs=1 tok=512 ctx=512]", "prefill"),
        ("eager_decode[bs=1]", "decode"),
        ("step[DECODE bs=32]", "decode"),
        ("step[EXTEND bs=1]", "prefill"),
        ("draft[0/3 bs=4]", "draft"),
        ("verify[bs=4]", "verify"),
        ("execute_32_context_0(sq0sk0)_generation_32(sq32)", "decode"),
        ("execute_8192_context_9(sq8155)_generation_37(sq37)", "mixed"),
        ("ProfilerStep#3", "unknown"),
    ],
)
def test_step_labels_tell_the_mode(label: str, mode: str) -> None:
    assert mode_of(label) == mode


def marked(marks: list[tuple[str, int, int]], rows: list[tuple[int, int, int]]) -> Timeline:
    """Host ranges ``(label, start, dur)`` and rows ``(start, dur, queued)``."""
    every = [
        *((label, start, dur, -1) for label, start, dur in marks),
        *(("gemm", start, dur, 0) for start, dur, _ in rows),
    ]
    kinds = [int(Kind.ANNOTATION)] * len(marks) + [int(Kind.KERNEL)] * len(rows)
    return build(every, kind=kinds, queued_ns=[-1] * len(marks) + [q for *_, q in rows])


def test_rows_belong_to_the_step_that_launched_them() -> None:
    marks = [
        ("prefill[bs=1]", 0, 10),
        ("dummy_decode[bs=1]", 10, 10),
        ("decode[bs=1]", 20, 10),
        ("ProfilerStep#9", 0, 40),
    ]
    line = marked(marks, [(15, 5, 3), (30, 5, 12), (36, 5, 25), (50, 4, 29), (60, 1, 35), (70, 1, -1)])
    steps = find_steps(line)
    assert (steps.source, steps.unattributed) == ("engine labels", 3)
    got = [(t.label, t.mode, t.rows, t.wall_ns, t.union_busy_ns, t.last) for t in step_times(line, steps)]
    assert got == [("prefill[bs=1]", "prefill", 1, 5, 5, False), ("decode[bs=1]", "decode", 2, 18, 9, True)]


def test_the_step_column_of_our_own_runs_wins() -> None:
    line = build(
        [("a", 0, 5, 0), ("b", 5, 5, 1), ("a", 20, 5, 0)], step=[4, 4, 5], meta={"step_modes": {"4": "prefill"}}
    )
    assert [(t.step, t.mode, t.rows) for t in step_times(line)] == [(4, "prefill", 2), (5, "unknown", 1)]


def test_layers_come_from_annotations_where_there_is_no_column() -> None:
    line = marked([("layer_3", 0, 10), ("model.layers.12.attn", 10, 10)], [(15, 5, 3), (30, 5, 12), (40, 5, 50)])
    assert layer_ids(line).tolist() == [-1, -1, 3, 12, -1]
    assert {w.key for w in work(line, "layer")} == {"layer 3", "layer 12", "no layer"}


def test_work_by_an_unknown_key_names_what_it_takes() -> None:
    with pytest.raises(UsageError, match="name, op, layer, category, stream, queue"):
        work(build([("a", 0, 5, 0)]), "color")


def test_replays_own_their_rows_and_lanes() -> None:
    trace = load_trace(ROOT / "traces/rocm_mi300x_sglang_decode_hipgraph.pt.trace.json.gz")
    (replay,) = graph_replays(trace)
    assert (replay.rows, replay.lanes, replay.call) == (544, 1, "hipGraphLaunch")
    assert launch_boundness(trace).verdict == "device-bound"


def test_a_host_that_launches_just_in_time_is_launch_bound() -> None:
    rows = [("k", at * 100_000, 5_000, 0) for at in range(10)]
    line = launched(rows, [start - 4_000 for _, start, *_ in rows], [])
    assert launch_boundness(line).verdict == "launch-bound"


@pytest.mark.parametrize(
    ("rows", "queues", "verdict"),
    [
        ([("a", 0, 10, 0)], [0], "not forked"),
        ([("a", 0, 10, 0), ("s", 0, 9, 1)], [0, 1], "hidden"),
        ([("a", 0, 10, 0), ("s", 5, 10, 1)], [0, 1], "partly hidden"),
        ([("a", 0, 10, 0), ("s", 10, 8, 1)], [0, 0], "serialised"),
        ([("a", 0, 10, 0), ("s", 10, 8, 1)], [0, 1], "serialised"),
    ],
)
def test_fork_verdicts(rows: list[tuple[str, int, int, int]], queues: list[int], verdict: str) -> None:
    line = build(rows, queue=queues, queues=("q0", "q1"))
    got = fork_verdict(line, expected=("side0",))
    assert got.verdict == verdict
    assert ("share queue q0" in got.reason) == (verdict == "serialised" and queues == [0, 0])


def test_hidden_time_by_name() -> None:
    line = build([("a", 0, 10, 0), ("s", 5, 10, 1), ("t", 1, 4, 1)])
    assert hidden_by_name(line) == [("s", 10, 5), ("t", 4, 4)]


def test_queue_depth_is_packets_over_the_wall() -> None:
    line = build([("a", 0, 10, 0), ("b", 10, 10, 0)], queue=[0, 0], queues=("q0",), queued_ns=[-4, 0])
    (depth,) = queue_depth(line)
    assert (depth.queue, depth.mean_running, depth.mean_waiting, depth.most_waiting) == ("q0", 1.0, 0.7, 1)


def test_tables_are_tidy_and_escape_what_they_show() -> None:
    trace = Trace.of(build([("<img src=x>", 0, 5, 0), ("b", 9, 5, 1)]))
    table = trace.ops()
    assert table.columns[:4] == ("key", "category", "rows", "sum_dur_ns")
    assert table.column("rows") == [1, 1]
    assert "<img" not in table._repr_html_()
    frame = table.to_pandas() if pytest.importorskip("pandas") else None
    assert list(frame["key"]) == table.column("key")
    assert len(trace.gaps()) == 1
    assert trace.streams_table().column("stream") == ["main", "side0"]
    assert len(trace.queues_table()) == 0
    assert trace.fork().verdict == "serialised"


def test_step_times_of_a_generated_trace_add_up(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Generator(platform="rocm").write(buffer, steps=3)
    path = tmp_path / "t.json"
    path.write_bytes(buffer.getvalue())
    trace = load_trace(path)
    rows = step_times(trace)
    assert [r.step for r in rows] == [1, 2, 3]
    assert sum(r.rows for r in rows) == int(trace.busy_mask.sum())
    assert np.unique(find_steps(trace).of_row[trace.busy_mask]).tolist() == [0, 1, 2]


def test_roofline_tells_memory_bound_from_compute_bound() -> None:
    line = build([("gemm", 0, 1000, 0), ("gemm", 1000, 1000, 0), ("copy", 2000, 500, 0), ("other", 3000, 10, 0)])
    known = {"gemm": Work(2e9, 1e6), "copy": Work(0, 5e5), "absent": Work(1, 1)}
    gemm, copy = roofline(line, known, peak_flops=8e15, peak_bytes=2e12)
    assert (gemm.name, gemm.rows, gemm.bound, gemm.intensity) == ("gemm", 2, "memory", 2000)
    assert (gemm.share, gemm.roof, gemm.flops_rate) == (0.5, 4e15, 2e15)
    assert (copy.bound, copy.share, copy.bytes_rate) == ("memory", 0.5, 1e12)
    assert roofline(line, known, peak_flops=2e15, peak_bytes=2e12)[0].bound == "compute"
    with pytest.raises(UsageError, match="above zero"):
        roofline(line, known, peak_flops=0, peak_bytes=1)


def test_the_rank_may_be_in_the_folder_s_name(tmp_path: Path) -> None:
    folder = tmp_path / "rank_3"
    folder.mkdir()
    event = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 0, "ts": 1, "dur": 1, "args": {"stream": 0}}'
    path = folder / "model_ts_20260101.pt.trace.json"
    path.write_text('{"traceEvents": [' + event + "]}")
    assert load_trace(path).rank.tolist() == [3]
