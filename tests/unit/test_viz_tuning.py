from __future__ import annotations

import json
import re

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4lab.timeline.records import BusySummary, StreamBusy, SweepRow
from dsv4lab.timeline.timeline import Timeline
from dsv4lab.viz import theme
from dsv4lab.viz.html import Picture, Text, pictures_page
from dsv4lab.viz.stream_busy import stream_busy_figure
from dsv4lab.viz.timeline_view import timeline_figure
from dsv4lab.viz.tuning import delta_bars, tpot_heatmap, tradeoff_scatter

BUSY = BusySummary(100, 90, 100, 100, 10, (StreamBusy("main", None, "main", 90, 90, 0, 1),), ())
HOSTILE = "</script><img src=x onerror=alert(1)>%{x}"


def row(
    plan: str, queues: int, level: int, tpot: float, *, off: float | None = None, control: bool = False
) -> SweepRow:
    delta = tpot / off - 1 if off else None
    return SweepRow(plan, queues, level, 50.0, tpot, tpot * 0.9, tpot * 1.2, 1000 * level / tpot, delta, BUSY, control)


ROWS = [
    row("off", 1, 1, 10.0, off=10.0), row("off", 4, 1, 10.2, off=10.2), row("hip", 1, 1, 10.5, off=10.0),
    row("hip", 4, 1, 9.0, off=10.2), row("hip", 4, 4, 20.0, off=22.0), row("off", 1, 1, 7.0, control=True),
]  # fmt: skip


def test_heat_map_has_a_panel_per_level_and_frames_the_best() -> None:
    fig = tpot_heatmap(ROWS)
    assert [a.text for a in fig.layout.annotations] == ["concurrency level 1", "concurrency level 4"]
    first, second = fig.data
    assert np.asarray(first.z).tolist() == [[10.0, 10.2], [10.5, 9.0]]
    assert np.isnan(np.asarray(second.z)[0]).all()
    box = fig.layout.shapes[0]
    assert (box.x0 < 1 < box.x1, box.y0 < 1 < box.y1) == (True, True)
    assert "not measured" in second.customdata[0][0]


def test_delta_is_in_percent_and_leaves_off_and_controls_out() -> None:
    fig = delta_bars(ROWS)
    values = [v for t in fig.data for v in t.y]
    assert values == pytest.approx([5.0, -11.7647, -9.0909], rel=1e-4)
    assert fig.layout.yaxis.title.text == "TPOT change (%)"


def test_scatter_draws_the_front_without_controls() -> None:
    fig = tradeoff_scatter(ROWS)
    front = fig.data[0]
    assert list(front.x) == [9.0, 20.0]
    off = next(t for t in fig.data if t.name == "off")
    assert [s.endswith("-open") for s in off.marker.symbol] == [False, False, True]
    assert off.error_x.array[0] == pytest.approx(2.0)


@settings(max_examples=25)
@given(
    st.lists(
        st.builds(
            row,
            st.text(max_size=8),
            st.integers(1, 16),
            st.integers(1, 64),
            st.floats(0.01, 1e4),
            off=st.none() | st.floats(0.01, 1e4),
            control=st.booleans(),
        ),
        max_size=12,
    )
)
def test_any_session_can_be_drawn(rows: list[SweepRow]) -> None:
    for draw in (tpot_heatmap, delta_bars, tradeoff_scatter):
        for one in theme.THEMES:
            fig = draw(rows, theme=one)
            assert fig.layout.template.layout.paper_bgcolor == theme.paper_color(one)
            assert fig.layout.height > 100


def hostile_figures() -> list[go.Figure]:
    slices = Timeline.build(
        start_ns=[0], dur_ns=[5], stream=[0], name=[0], names=[HOSTILE], streams=[HOSTILE], queue=[0], queues=[HOSTILE]
    )
    busy = BusySummary(100, 90, 90, 90, 0, (StreamBusy(HOSTILE, HOSTILE, "main", 90, 90, 0, 1),), ())
    rows = [row(HOSTILE, 1, 1, 5.0, off=6.0)]
    return [
        timeline_figure(slices),
        timeline_figure(slices, lanes="queue", most_slices=0),
        stream_busy_figure({HOSTILE: busy}),
        *(draw(rows) for draw in (tpot_heatmap, delta_bars, tradeoff_scatter)),
    ]


@pytest.mark.parametrize("number", range(6))
def test_names_from_records_cannot_inject_markup(number: int) -> None:
    fig = hostile_figures()[number]
    plain = json.dumps(fig.to_plotly_json(), default=lambda v: np.asarray(v).tolist())
    assert "onerror" in plain
    assert "<img" not in plain
    assert all("onerror" not in str(getattr(t, "hovertemplate", "")) for t in fig.data)


def test_the_page_is_self_contained_and_escapes() -> None:
    page = pictures_page("a <title>", [Text("<p>hello</p>"), Picture(hostile_figures()[0], "caption <&>")])
    assert "<h1>a &lt;title&gt;</h1>" in page
    assert "caption &lt;&amp;&gt;" in page
    assert "<img src=x" not in page
    body = page[page.rindex("<h1>") :]
    assert not re.findall(r"(?:src|href)=[\"']https?:", body)
    templates = re.search(r"const DSV4_TEMPLATES = (\{.*?\});\n", page)
    assert templates is not None
    assert set(json.loads(templates[1])) == {"light", "dark"}


def test_kernel_colours_ignore_template_arguments() -> None:
    assert theme.kernel_color("gemm<float, tile<64>>") == theme.kernel_color("gemm<half>") == theme.kernel_color("gemm")
    assert len({theme.kernel_color(f"k{i}") for i in range(100)}) > 8


def test_stream_colours_are_fixed_and_apart() -> None:
    roles = [theme.stream_color(s) for s in ("main", "side0", "side1", "side2")]
    assert len(set(roles)) == 4
    assert theme.stream_color("0x7f", 3) in theme.CYCLE


def _luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("name", theme.THEMES)
def test_text_and_marks_stand_out_from_the_paper(name: str) -> None:
    def contrast(color: str) -> float:
        light, dark = sorted((_luminance(color), _luminance(theme.paper_color(name))), reverse=True)
        return (light + 0.05) / (dark + 0.05)

    layout = theme.template(name).layout
    assert contrast(layout.font.color) > 7
    assert contrast(layout.xaxis.tickfont.color) > 4.5
    assert contrast(theme.QUIET) > 3
    assert min(contrast(c) for c in theme.CYCLE) > 2


def test_text_is_shortened_and_escaped() -> None:
    assert theme.text("a<b>&", 10) == "a&lt;b&gt;&amp;"
    assert theme.text("x" * 50, 5) == "xxxx…"
