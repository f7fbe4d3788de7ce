"""Placement: dynamic queues, PyTorch's pools, HIP graph segments, CUDA graph lanes, barrier bits."""

from __future__ import annotations

from typing import Any

import pytest

from dsv4lab.errors import UsageError
from dsv4lab.queues.costs import machine
from dsv4lab.queues.graph_cuda import lanes
from dsv4lab.queues.graph_hip import collapses, segment
from dsv4lab.queues.layout import Layout
from dsv4lab.queues.packets import _barrier_bits
from dsv4lab.queues.place import place
from dsv4lab.queues.policies import HIGH, NORMAL, DynamicPool, QueuePool, torch_pool_size, torch_stream
from dsv4lab.queues.program_json import workload_from_json
from dsv4lab.queues.workload import Workload


def program(ops: list[tuple[str, str, list[str]]], **top: Any) -> Workload:
    """A workload of ``(name, stream, after)`` with 1 us kernels."""
    rows = [{"name": n, "stream": s, "after": a, "duration_us": 1.0} for n, s, a in ops]
    return workload_from_json({"ops": rows, **top}, machine("mi355x"))


def test_the_dynamic_metric_counts_depth_users_and_the_dedicated_ring() -> None:
    pool = DynamicPool(4, mode=2)
    assert pool.metric(0) == 2048 + 1
    pool.submit("a", 3)
    assert pool.mapping["a"] == 1
    assert pool.metric(1) == 16 * 3 + 1
    assert [pool.acquire(s) for s in "bc"] == [2, 3]  # unused rings before any metric
    pool.rings[2].written = 2
    assert pool.acquire("d") == 3  # 1 user and nothing waiting, against depth 2 and 3; the dedicated ring last


def test_ties_of_the_dynamic_metric_go_to_the_lower_pipe() -> None:
    pool = DynamicPool(6, mode=1, pipes=4)
    for name in "abcdef":
        pool.submit(name)
    pool.rings[0].written = 5
    assert pool.acquire("g") == 4  # rings 1 to 5 tie; ring 4 is on pipe 0


def test_exclusion_is_dropped_only_as_a_last_resort() -> None:
    pool = DynamicPool(2)
    assert pool.acquire("launch") == 0
    assert pool.acquire("graph.1", frozenset({0})) == 1
    assert pool.acquire("graph.2", frozenset({0, 1})) in (0, 1)


def test_a_stream_hands_its_queue_back_only_when_the_pool_is_oversubscribed() -> None:
    pool = DynamicPool(2)
    first = pool.acquire("a")
    assert not pool.idle("a")
    pool.acquire("b")
    pool.acquire("c")
    assert pool.idle("a")
    pool.rings[first].written = 9
    assert pool.acquire("a") != first


def test_stream_id_is_a_modulo() -> None:
    pool = QueuePool(3, "stream_id")
    assert [pool.acquire(s) for s in ("main", "side0", "side1", "side2", "side3")] == [0, 1, 2, 0, 1]


def test_pools_of_pytorch() -> None:
    assert [torch_pool_size(q) for q in (1, 2, 4, 64)] == [1, 1, 3, 32]
    assert torch_pool_size(4, HIGH) == 4
    assert torch_pool_size(4, NORMAL, fixed=32) == 32
    assert [torch_stream(n, 3) for n in range(5)] == [0, 1, 2, 0, 1]  # the fourth is the first one again


@pytest.mark.parametrize(("limit", "mode"), [(0, 1), (4, 3)])
def test_bad_dynamic_pools_are_refused(limit: int, mode: int) -> None:
    with pytest.raises(UsageError):
        DynamicPool(limit, mode)


def layered(side_first: bool, layers: int) -> Workload:
    """Fork and join in every layer; side work recorded before or after the main work that it is joined with."""
    ops: list[tuple[str, str, list[str]]] = []
    for i in range(layers):
        ops.append((f"f{i}", "main", [f"s{i - 1}"] if i else []))
        body = [(f"m{i}", "main", []), (f"s{i}", "side0", [f"f{i}"])]
        ops += reversed(body) if side_first else body
    ops.append(("end", "main", [f"s{layers - 1}"]))
    return program(ops)


@pytest.mark.parametrize("layers", [3, 20])
def test_recording_order_decides_the_lanes_of_a_cuda_graph(layers: int) -> None:
    assert len(lanes(layered(False, layers)).opened_by) == 2
    many = lanes(layered(True, layers))
    assert layers <= len(many.opened_by) <= layers + 2
    opener = {layered(True, layers).names[i][0] for i in many.opened_by[2:]}
    assert opener <= {"s", "m"}


def test_segments_are_maximal_linear_paths() -> None:
    work = program(
        [
            ("a", "main", []),
            ("b", "main", []),
            ("s", "side0", ["b"]),
            ("t", "side0", []),
            ("c", "main", []),
            ("d", "main", ["t"]),
        ]
    )
    found = segment(work, 4)
    assert found.of == (0, 0, 1, 1, 2, 3)
    assert found.level == (0, 1, 1, 2)
    assert found.slot == (0, 0, 1, 0)
    assert found.width == 2


def test_wide_levels_go_round_robin_over_four_streams() -> None:
    work = program([(f"k{i}", f"s{i}", []) for i in range(6)])
    assert segment(work, 4).slot == (0, 1, 2, 3, 0, 1)
    layout = place(work, machine("mi355x", "rocm-7.14", 4))
    assert len(set(layout.queue_of_lane)) == 4


def test_four_branches_get_three_queues_on_7_2() -> None:
    work = program([(f"k{i}.{j}", f"s{i}", []) for i in range(4) for j in range(3)])
    layout = place(work, machine("mi355x", "rocm-7.2", 4))
    assert len(set(layout.queue_of_lane)) == 3
    assert "share 3 hardware queues" in layout.notes[0]


def test_a_process_of_pytorch_has_its_graphs_on_one_queue_on_7_2() -> None:
    work = program([("a", "main", []), ("s", "side0", ["a"]), ("b", "main", []), ("c", "main", ["s"])])
    shared = place(work, machine("mi355x", "rocm-7.2", 4), torch=True)
    assert len(set(shared.queue_of_lane)) == 1
    assert "--graph-streams apart" in shared.notes[0]
    apart = place(work, machine("mi355x", "rocm-7.14", 4), torch=True)
    assert len(set(apart.queue_of_lane)) == 2


def test_small_parallel_graphs_collapse_on_10_and_deep_ones_do_not() -> None:
    on = machine("mi355x", "rocm-10", 4)
    shallow, deep = layered(True, 1), layered(True, 5)
    assert collapses(shallow, segment(shallow, 4), on)
    assert not collapses(deep, segment(deep, 4), on)
    assert not collapses(shallow, segment(shallow, 4), machine("mi355x", "rocm-7.14", 4))
    assert set(place(shallow, on).queue_of_lane) == {place(shallow, on).queue_of_lane[0]}


def test_eager_streams_of_pytorch_alias_with_main_once_the_queues_are_used_up() -> None:
    work = program([("m", "main", []), *((f"k{i}", f"side{i}", []) for i in range(4))], launch="eager")
    four = place(work, machine("mi355x", "rocm-7.2", 4), torch=True)
    assert four.queue_of_lane == (0, 1, 2, 3, 0)
    eight = place(work, machine("mi355x", "rocm-7.2", 8), torch=True)
    assert eight.queue_of_lane == (0, 1, 2, 3, 4)
    assert [x.mapped for x in (four, eight)] == [8, 16]


def test_priorities_have_pools_of_their_own() -> None:
    work = program([("a", "main", []), ("b", "urgent", [])], launch="eager", priorities={"urgent": -1})
    assert len(set(place(work, machine("mi355x", "rocm-7.2", 1)).queue_of_lane)) == 2


def test_barrier_bits_follow_the_rule_of_elision() -> None:
    layout = Layout((0, 1, 0, 1, 1, 0), ((),) * 6, (0, 0), ("a", "b"), tuple(range(6)), 1)
    ring = (0,) * 6
    assert _barrier_bits(layout, ring, elide=False) == [True] * 6
    # a's second needs one and covers b's second; b's third needs its own and covers a's third
    assert _barrier_bits(layout, ring, elide=True) == [False, False, True, False, True, False]
