from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4lab.errors import UsageError
from dsv4lab.timeline.records import BusySummary, QueueBusy, QueueOccupancy, StreamBusy
from dsv4lab.timeline.timeline import Kind, Timeline
from dsv4lab.viz.axes import time_text, time_unit
from dsv4lab.viz.queue_occupancy import MOST_STEPS, queue_occupancy_figure
from dsv4lab.viz.stream_busy import busy_headline, stream_busy_figure
from dsv4lab.viz.timeline_view import timeline_figure

SEED = BusySummary(  # the profile that DESIGN quotes
    wall_ns=1_561_100_000,
    union_busy_ns=1_189_406_000,
    sum_busy_ns=1_302_400_000,
    sum_dur_ns=1_302_400_000,
    hidden_ns=112_994_000,
    streams=(
        StreamBusy("main", "0", "main", 1_141_000_000, 1_141_000_000, 0, 100),
        StreamBusy("side0", "1", "side", 161_400_000, 161_400_000, 112_994_000, 20),
    ),
    queues=(),
)


def timeline(n: int, *, streams: int = 2, queues: int = 2) -> Timeline:
    i = np.arange(n)
    return Timeline.build(
        start_ns=1_000 + i * 100,
        dur_ns=np.full(n, 90),
        stream=i % streams,
        name=i % 3,
        names=("gemm<float>", "b", "c"),
        streams=("main", "side0", "side1")[:streams],
        queue=i % queues,
        queues=tuple(f"q{q}" for q in range(queues)),
        queued_ns=1_000 + i * 100 - 50,
        step=i // 4,
        layer=i % 5,
        main_stream="main",
    )


def occupancy(steps: int, queues: int) -> QueueOccupancy:
    rng = np.random.default_rng(steps)
    shape = (queues, steps)
    return QueueOccupancy(
        tuple(f"q{q}" for q in range(queues)),
        5_000 + np.cumsum(rng.integers(1, 50, steps + 1)),
        rng.integers(0, 2, shape).astype(np.int32),
        rng.integers(0, 9, shape).astype(np.int32),
    )


def test_units_suit_the_span() -> None:
    assert [time_unit(s).name for s in (0, 1_999, 2_000, 2_000_000, 1_999_999_999, 2_000_000_000)] == [
        "ns",
        "ns",
        "µs",
        "ms",
        "ms",
        "s",
    ]
    assert time_text(1_269_500_000) == "1,269.5 ms"
    assert time_text(830) == "830.0 ns"


def test_busy_bars_add_up_to_the_wall() -> None:
    fig = stream_busy_figure(SEED)
    bars = [t for t in fig.data if t.text is not None]
    assert np.allclose(sum(np.asarray(t.x) for t in bars), 1561.1)
    covered, exposed, _idle = (list(t.x) for t in bars)
    assert covered == pytest.approx([1141.0, 112.994])
    assert exposed == pytest.approx([0.0, 48.406])
    assert "main 1,141.0 + side 161.4 ms at 1.095× on 1,561.1 ms wall, 70 % hidden" in fig.layout.title.text
    assert fig.layout.xaxis.title.text == "time (ms)"
    assert busy_headline(SEED).endswith("on 1,561.1 ms wall")


def test_several_summaries_share_one_axis() -> None:
    off = BusySummary(2_000_000_000, 1, 1, 1, 0, (StreamBusy("main", None, "main", 10**9, 10**9, 0, 1),), ())
    fig = stream_busy_figure({"off": off, "<b>hip": SEED})
    assert [a.text.split(":")[0] for a in fig.layout.annotations] == ["<b>off</b>", "<b>&lt;b&gt;hip</b>"]
    assert fig.layout.xaxis2.title.text == "time (s)"
    assert fig.layout.xaxis.range == fig.layout.xaxis2.range


def test_many_streams_show_the_busiest_and_say_so() -> None:
    streams = (
        StreamBusy("m", None, "main", 1000, 1000, 0, 1),
        *(StreamBusy(str(i), None, "side", i, i, 0, 1) for i in range(500)),
    )
    fig = stream_busy_figure(BusySummary(2000, 1000, 1000, 1000, 0, streams, ()))
    assert "489 quieter streams are not drawn" in fig.layout.title.text
    assert list(fig.data[0].y) == ["m", *(str(i) for i in range(489, 500))]


def test_a_summary_by_queue_is_drawn_by_queue() -> None:
    fig = stream_busy_figure(BusySummary(100, 90, 90, 90, 0, (), (QueueBusy("hw0", 90, 90, 3),)))
    assert list(fig.data[0].y) == ["hw0"]
    assert "hidden" not in fig.data[0].text[0]


@settings(max_examples=25)
@given(st.integers(0, 60), st.integers(1, 10))
def test_occupancy_of_any_shape(steps: int, queues: int) -> None:
    fig = queue_occupancy_figure(occupancy(steps, queues))
    if steps == 0:
        assert "no packets" in fig.layout.annotations[0].text
    elif queues <= 8:
        assert len(fig.data) == 2 * queues
        assert all(t.line.shape == "hv" for t in fig.data)
    else:
        assert fig.data[0].type == "heatmap"


def test_strips_draw_the_steps_as_they_are_and_long_records_in_means() -> None:
    short = occupancy(40, 2)
    fig = queue_occupancy_figure(short)
    assert np.allclose(np.asarray(fig.data[0].y)[:-1], short.waiting[0])
    assert np.allclose(np.asarray(fig.data[1].customdata)[:-1, 0], short.running[0])
    assert (np.asarray(fig.data[1].y) <= 0).all()
    assert np.allclose(np.asarray(fig.data[0].x), short.edges_ns - short.edges_ns[0])
    long = queue_occupancy_figure(occupancy(MOST_STEPS + 1, 2), bins=100)
    assert len(long.data[0].x) == 101
    assert "means of" in long.layout.title.text


@settings(max_examples=25)
@given(st.integers(0, 40), st.sampled_from(["stream", "queue"]), st.sampled_from(["light", "dark"]))
def test_timeline_of_any_length(n: int, lanes: str, theme: str) -> None:
    fig = timeline_figure(timeline(n), lanes=lanes, theme=theme)
    if n == 0:
        assert "no slices" in fig.layout.annotations[0].text
        return
    assert len(fig.data[0].x) == n
    assert fig.layout.yaxis.title.text == lanes
    unit = {"ns": 1, "µs": 1000}[fig.layout.xaxis.title.text[6:-1]]
    assert list(fig.data[0].base) == pytest.approx([100 * i / unit for i in range(n)])


def test_hover_names_op_place_and_wait() -> None:
    text = timeline_figure(timeline(3)).data[0].text[1]
    assert (
        text
        == "<b>b</b><br>stream side0, queue q1, layer 1, step 0<br>90.0 ns from 100.0 ns, after 50.0 ns in its queue"
    )


def test_main_comes_first_and_unknown_last() -> None:
    shuffled = Timeline.build(
        start_ns=[0, 1, 2],
        dur_ns=[1, 1, 1],
        stream=[-1, 0, 1],
        name=[0, 0, 0],
        names=["k"],
        streams=["side0", "main"],
        main_stream="main",
    )
    assert list(timeline_figure(shuffled).layout.yaxis.ticktext) == ["main", "side0", "unknown"]


def test_overlapping_slices_share_their_lane() -> None:
    both = Timeline.build(start_ns=[0, 5], dur_ns=[10, 10], stream=[0, 0], name=[0, 0], names=["k"], streams=["main"])
    bars = timeline_figure(both).data[0]
    assert len(set(bars.y)) == 2
    assert list(bars.width) == pytest.approx([0.39, 0.39])


def test_many_slices_become_a_heat_map() -> None:
    fig = timeline_figure(timeline(400), most_slices=300)
    assert [t.type for t in fig.data] == ["heatmap"]
    assert np.asarray(fig.data[0].z).shape[0] == 2
    assert "busy" in fig.data[0].text[0][0]


def test_waiting_is_not_busy_in_the_heat_map() -> None:
    n = 40
    kinds = np.where(np.arange(n) % 2, int(Kind.WAIT), int(Kind.KERNEL))
    waits = Timeline.build(
        start_ns=np.arange(n) * 800, dur_ns=np.full(n, 800), stream=np.zeros(n), name=np.zeros(n), names=["k"],
        streams=["main"], kind=kinds,
    )  # fmt: skip
    fig = timeline_figure(waits, most_slices=10)
    assert np.asarray(fig.data[0].z).mean() == pytest.approx(0.5, abs=0.02)
    assert "20 slices" in fig.layout.title.text
    assert "grey: waiting" in timeline_figure(waits).layout.title.text


def test_window_and_edges() -> None:
    fig = timeline_figure(timeline(20), window_ns=(1_500, 1_800), edges=[(5, 6), (0, 1)])
    assert len(fig.data[0].x) == 3  # rows 5, 6 and 7
    assert list(fig.layout.xaxis.range) == [0.0, 300.0]
    waits = fig.data[1]
    assert list(waits.x) == [pytest.approx(90.0), pytest.approx(100.0), None]


def test_host_rows_are_not_drawn_and_waits_are_grey() -> None:
    kinds = [int(Kind.KERNEL), int(Kind.HOST), int(Kind.WAIT)]
    mixed = Timeline.build(
        start_ns=[0, 1, 2],
        dur_ns=[1, 1, 1],
        stream=[0, 0, 0],
        name=[0, 0, 0],
        names=["k"],
        streams=["main"],
        kind=kinds,
    )
    bars = timeline_figure(mixed).data[0]
    assert len(bars.x) == 2
    assert bars.marker.color[0] != bars.marker.color[1]


def test_unknown_lanes_and_themes_are_refused() -> None:
    with pytest.raises(UsageError, match="stream, queue"):
        timeline_figure(timeline(2), lanes="rank")
    with pytest.raises(UsageError, match="light, dark"):
        stream_busy_figure(SEED, theme="pink")
