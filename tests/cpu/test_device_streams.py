"""Device streams on a recorded device: everything that must be ordered is, and nothing else is waited for."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4lab.errors import EngineError, UnavailableError
from dsv4lab.overlap.arena import Arena, Lane
from dsv4lab.overlap.compile import CompiledProgram, compile_program
from dsv4lab.overlap.graphs import GraphCache
from dsv4lab.overlap.ops import Op
from dsv4lab.overlap.plan import OverlapPlan, Rule
from dsv4lab.overlap.schedule import START, schedule_of
from dsv4lab.overlap.streams_device import DeviceStreams
from dsv4lab.timeline.program import StreamProgram
from tests.cpu.fake_device import FakeDevice

STREAMS = ("main", "side0", "side1", "side2")
ARENA = Arena(1)

Access = tuple[tuple[str, ...], tuple[str, ...]]
Listed = list[tuple[Access, str]]
_resources = st.lists(st.sampled_from("abcd"), max_size=2, unique=True).map(tuple)
programs: st.SearchStrategy[Listed] = st.lists(
    st.tuples(st.tuples(_resources, _resources), st.sampled_from(STREAMS)), min_size=1, max_size=14
)


class Ran:
    """What each item of the device was: run, number of the op, its access."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.run = 0
        self.items: dict[int, tuple[int, int, Access]] = {}

    def op(self, number: int, access: Access) -> Op:
        def note(_: Lane) -> None:
            self.items[self.device.item] = (self.run, number, access)

        return Op(f"o{number}", note, *access)

    def races(self) -> list[tuple[int, int]]:
        """Pairs of items that touch the same memory, one of them writing, and are not ordered as the program has it."""
        by_time = sorted(self.items.items(), key=lambda entry: entry[1][:2])
        return [
            (first, second)
            for at, (second, (_, _, later)) in enumerate(by_time)
            for first, (_, _, earlier) in by_time[:at]
            if conflict(earlier, later) and not self.device.ordered(first, second)
        ]


def conflict(a: Access, b: Access) -> bool:
    return bool({*a[1]} & {*b[0], *b[1]} or {*b[1]} & {*a[0]})


def compiled_of(
    listed: Listed, make: Callable[[int, Access], Op], *, late: bool = False, name: str = "p"
) -> CompiledProgram:
    ops = [make(i, access) for i, (access, _) in enumerate(listed)]
    rules = tuple(Rule(f"o{i}", stream) for i, (_, stream) in enumerate(listed))
    return compile_program(ops, OverlapPlan(name, rules), "decode", 1, late_sides=late)


def tails_to_join(compiled: CompiledProgram) -> int:
    """Side streams whose last op no other stream's last op follows."""
    ops = compiled.program.ops
    after: list[set[int]] = []
    last: dict[str, int] = {}
    for op in ops:
        direct = {*op.waits, *({last[op.stream]} if op.stream in last else set())}
        after.append(direct.union(*(after[d] for d in direct)))
        last[op.stream] = op.index
    ends = set(last.values())
    return sum(stream != "main" and not any(end in after[e] for e in ends) for stream, end in last.items())


@settings(max_examples=200)
@given(programs, programs, st.booleans())
def test_every_hazard_is_ordered_within_a_run_and_across_runs(first: Listed, second: Listed, late: bool) -> None:
    device = FakeDevice()
    streams, ran = DeviceStreams(device), Ran(device)
    compiled = [compiled_of(listed, ran.op, late=late) for listed in (first, second)]
    for run, one in enumerate((*compiled, compiled[0])):
        ran.run = run
        streams.launch(one, ARENA)
    assert len(ran.items) == 2 * len(first) + len(second)
    assert ran.races() == []
    assert device.host_waits == 0


@settings(max_examples=200)
@given(programs, st.booleans())
def test_no_wait_is_issued_beyond_the_programs_forks_and_joins(listed: Listed, late: bool) -> None:
    device = FakeDevice()
    streams = DeviceStreams(device)
    compiled = compiled_of(listed, Ran(device).op, late=late)
    ops, schedule = compiled.program.ops, schedule_of(compiled.program)
    streams.launch(compiled, ARENA)
    firsts = {op.stream: op for op in reversed(ops)}
    forks = sum(stream != "main" and not op.waits for stream, op in firsts.items())
    joins = tails_to_join(compiled)
    into_and_out_of_the_run = 2
    assert device.waits == len(compiled.program.edges) + forks + joins + into_and_out_of_the_run
    assert schedule.edges == len(compiled.program.edges) + forks + joins
    for op, waits in zip(ops, schedule.waits, strict=True):
        assert tuple(w for w in waits if w != START) == op.waits


@settings(max_examples=100)
@given(programs)
def test_without_any_one_of_the_waits_something_is_not_ordered(listed: Listed) -> None:
    """The program's own waits are minimal too."""
    compiled = compiled_of(listed, Ran(FakeDevice()).op)
    ops = compiled.program.ops
    for consumer in ops:
        for dropped in consumer.waits:
            before: list[set[int]] = []
            last: dict[str, int] = {}
            for op in ops:
                waits = set(op.waits) - ({dropped} if op is consumer else set())
                direct = waits | ({last[op.stream]} if op.stream in last else set())
                before.append(direct.union(*(before[d] for d in direct)))
                last[op.stream] = op.index
            assert any(d not in before[op.index] for op in ops for d in op.deps)


@settings(max_examples=100)
@given(programs, programs)
def test_captured_graphs_keep_the_order_among_replays_and_eager_runs(first: Listed, second: Listed) -> None:
    device = FakeDevice()
    streams, ran = DeviceStreams(device), Ran(device)
    cache = GraphCache(streams)
    graphed, eager = compiled_of(first, ran.op), compiled_of(second, ran.op)
    captured = cache.get("key", graphed, ARENA)  # its warm-up ran the program once, in run 0
    waits = device.host_waits
    for run in range(1, 5):
        ran.run = run
        if run == 3:
            streams.launch(eager, ARENA)
        else:
            cache.launch(captured)
    assert ran.races() == []
    assert device.host_waits == waits
    assert (cache.captures, cache.replays) == (1, 3)


def test_events_are_used_again_once_their_readers_have_been_told() -> None:
    access: Access = (("a",), ("a",))
    listed = [(access, STREAMS[i % 2]) for i in range(40)]
    device = FakeDevice()
    compiled = compiled_of(listed, Ran(device).op)
    assert len(compiled.program.edges) == 39
    assert schedule_of(compiled.program).slots == 1
    streams = DeviceStreams(device)
    streams.launch(compiled, ARENA)
    made = device.calls.count("event")
    for _ in range(3):
        streams.launch(compiled, ARENA)
    assert device.calls.count("event") == made + 3 * 2  # the timed pair around each run


def test_what_an_op_hands_over_lives_until_the_next_run() -> None:
    """Its reader drops it at once: were it freed then, its own stream could use the memory again too early."""
    handed: list[torch.Tensor] = []
    seen: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []

    def produce(lane: Lane) -> None:
        handed.append(lane.keep(torch.ones(1)))
        seen.append(weakref.ref(handed[0]))

    def allocate(_: Lane) -> None:
        alive.append(seen[-1]() is not None)

    ops = [Op("a", produce, (), ("x",)), Op("b", lambda _: handed.clear(), ("x",), ()), Op("c", allocate, (), ("y",))]
    compiled = compile_program(ops, OverlapPlan("p", (Rule("[ac]", "side0"),)), "decode", 1)
    streams = DeviceStreams(FakeDevice())
    streams.launch(compiled, ARENA)
    first = seen[0]
    assert first() is not None
    streams.launch(compiled, ARENA)
    assert first() is None
    assert alive == [True, True]


def failing(device: FakeDevice, number: int, access: Access) -> Op:
    def fail(_: Lane) -> None:
        raise RuntimeError("planted")

    return Op(f"o{number}", fail if number == 2 else lambda _: None, *access)


BROKEN: Listed = [(((), ("a",)), "main"), ((("a",), ("b",)), "side0"), ((("a",), ("c",)), "main")]


def test_a_failing_op_is_named_and_leaves_no_stream_forked() -> None:
    device = FakeDevice()
    streams = DeviceStreams(device)
    with pytest.raises(RuntimeError, match="planted") as caught:
        streams.launch(compiled_of(BROKEN, lambda i, access: failing(device, i, access)), ARENA)
    assert caught.value.__notes__ == ["in op o2 on main"]
    ran = Ran(device)
    streams.launch(compiled_of(BROKEN, ran.op), ARENA)
    assert all(device.ordered(1, item) for item in ran.items), "side0 of the broken run is over before the next one"


def test_what_cannot_be_captured_is_an_error_and_the_next_capture_works() -> None:
    device = FakeDevice()
    streams, ran = DeviceStreams(device), Ran(device)
    cache = GraphCache(streams)
    compiled = compiled_of(BROKEN, ran.op, name="hip")
    device.fail_at = 1
    with pytest.raises(
        EngineError,
        match="decode of 1 tokens under plan hip cannot be captured in op o1 on side0: RuntimeError: operation not "
        "permitted when stream is capturing; graphs=False",
    ):
        cache.get("key", compiled, ARENA)
    assert "replay" not in device.calls
    assert len(cache) == 0
    device.fail_at, ran.run = None, 1
    captured = cache.get("key", compiled, ARENA)
    ran.run = 2
    cache.launch(captured)
    assert ran.races() == []


def test_the_least_recently_used_graph_goes_once_its_last_replay_is_over() -> None:
    device = FakeDevice()
    streams = DeviceStreams(device)
    cache = GraphCache(streams, max_graphs=2)
    compiled = {key: compiled_of(BROKEN, Ran(device).op) for key in "abc"}
    for key in "ab":
        cache.launch(cache.get(key, compiled[key], ARENA))
    cache.get("a", compiled["a"], ARENA)
    cache.get("c", compiled["c"], ARENA)
    assert ["a" in cache, "b" in cache, "c" in cache] == [True, False, True]
    assert len(cache._retired) == 1, "its replay may still run"
    device.done = True
    cache.launch(cache.get("c", compiled["c"], ARENA))
    assert cache._retired == []
    assert device.calls.count("pool") == 1, "all graphs share one pool"


def test_memory_of_graphs_is_bounded() -> None:
    device = FakeDevice()
    device.grows = lambda graph: 600
    cache = GraphCache(DeviceStreams(device), max_bytes=1000)
    compiled = [compiled_of(BROKEN, Ran(device).op) for _ in range(3)]
    for key, one in enumerate(compiled):
        cache.get(key, one, ARENA)
    assert len(cache) == 1, "the third began a new pool"
    assert cache.bytes == 600
    assert device.calls.count("pool") == 2
    device.grows = lambda graph: 2000
    with pytest.raises(EngineError, match=r"takes 1.95 KiB: graph_memory_bytes allows 1000 B"):
        cache.get(3, compiled_of(BROKEN, Ran(device).op), ARENA)


def test_streams_are_distinct_or_it_says_how_many_there_are() -> None:
    device = FakeDevice(distinct=3)
    streams = DeviceStreams(device, high_main=True)
    given_out = {streams.stream(name) for name in ("main", "side0", "side1")}
    assert len(given_out) == 3
    assert device.calls.count("stream high") == 1
    assert streams.stream("side0") in given_out
    with pytest.raises(UnavailableError, match=r"gives this process 3 distinct streams; .* side_streams=2"):
        streams.stream("side2")


def test_a_plan_has_streams_of_the_higher_priority() -> None:
    """The same name at both priorities is two streams, so graphs of two plans never share one by mistake."""
    device = FakeDevice()
    streams = DeviceStreams(device)
    ops = [Op(name, lambda _: None, (), (name,)) for name in "abc"]
    rules = tuple(Rule(name, stream) for name, stream in zip("abc", ("main", "side0", "side1"), strict=True))
    plans = [OverlapPlan("normal", rules), OverlapPlan("first", rules, high=("side0", "side5"))]
    normal, first = (compile_program(ops, plan, "decode", 1) for plan in plans)
    assert (normal.program.high, first.program.high) == ((), ("side0",)), "only streams that the program has"
    assert StreamProgram.from_json(first.program.to_json()) == first.program
    for compiled in (normal, first):
        streams.warm(compiled, ARENA)
        streams.run(compiled, ARENA)
    assert device.calls.count("stream high") == 1
    assert streams.stream("side0") != streams.stream("side0", high=True)
    assert streams.has(first.program)


def test_a_record_stands_for_the_whole_run() -> None:
    device = FakeDevice()
    streams = DeviceStreams(device)
    compiled = compiled_of(BROKEN, Ran(device).op, name="hip")
    cache = GraphCache(streams)
    device.price = lambda graph: 12.5
    record = cache.launch(cache.get("a", compiled, ARENA)).record()
    assert (record.end_ns - record.start_ns).tolist() == [12_500]
    assert [op.name for op in record.program.ops] == ["forward"]
    assert (record.program.plan, record.program.mode, record.program.tokens) == ("hip", "decode", 1)
    assert streams.run(compiled, ARENA).program is record.program
    streams.close()
    with pytest.raises(EngineError, match="closed"):
        streams.launch(compiled, ARENA)


def test_side_work_is_recorded_right_before_its_join() -> None:
    listed: Listed = [
        (((), ("x",)), "main"),
        ((("x",), ("c",)), "side0"),
        ((("c",), ("d",)), "side0"),
        ((("x",), ("q",)), "main"),
        ((("q",), ("r",)), "main"),
        ((("d", "r"), ("o",)), "main"),
        ((("x",), ("z",)), "side1"),
    ]
    made = compiled_of(listed, Ran(FakeDevice()).op, late=True)
    assert [op.name for op in made.program.ops] == ["o0", "o3", "o4", "o1", "o2", "o5", "o6"]
