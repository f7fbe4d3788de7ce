"""One of the traces in the trace explorer, and the parts that its messages are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dsv4lab.errors import UsageError
from dsv4lab.trace.analyse.categories import CATEGORIES
from dsv4lab.trace.analyse.idle import CAUSES, Gap
from dsv4lab.viz import flows
from dsv4lab.viz import theme as themes
from dsv4lab.viz import trace_facts as facts
from dsv4lab.viz.trace_index import TraceIndex
from dsv4lab.viz.trace_window import Marks
from dsv4lab.widgets.trace_wire import short

Json = dict[str, Any]
MOST_GAPS = 60
CAUSE_TEXTS = {
    "launch-bound": "the next row's launch began inside the gap or was still on its way, and the host was launching",
    "host gap": "the host launched nothing for a while before the next row's launch",
    "other stream": "the next row was queued before the gap and follows a row of another stream: it waited for it",
    "kernel gap": "the next row was queued before the gap, behind a row of its own stream",
    "inside graph": "the rows on both sides belong to one graph replay",
    "unknown": "the trace does not say when the next row was launched",
}


@dataclass(slots=True)
class Side:
    """One of the traces shown. ``shift_ns`` is added to its times since its first row to get those of the page."""

    label: str
    index: TraceIndex
    pairs: flows.Pairs
    waits_known: bool = False  # `pairs` was given or recorded: nothing to infer
    shift_ns: int = 0
    found: Marks | None = None
    path: Marks | None = None
    steps: list[facts.StepMark] = field(default_factory=list)

    @property
    def origin_ns(self) -> int:
        """The moment of the trace's clock that is 0 on the page."""
        return self.index.span_ns[0] - self.shift_ns


def side_table(side: Side, start: int, end: int, labelled: Callable[[str], str]) -> Json:
    """Busy table, longest names and idle gaps of one side in a window of the page's clock."""
    begin, stop = start + side.origin_ns, end + side.origin_ns
    busy = facts.window_busy(side.index, begin, stop)
    gaps = facts.window_gaps(side.index, begin, stop, MOST_GAPS)
    names = facts.window_names(side.index, begin, stop)
    return {
        "union_ns": busy.union_busy_ns,
        "sum_ns": busy.sum_busy_ns,
        "concurrency": busy.concurrency,
        "tracks": [{**asdict(track), "label": labelled(track.label)} for track in busy.tracks],
        "names": [{**asdict(name), "name": short(name.name, 160)} for name in names],
        "gaps": gaps_json(side, gaps),
        "idle": facts.window_idle(side.index, begin, stop),
    }


def gaps_json(side: Side, gaps: Sequence[Gap]) -> list[list[Any]]:
    """Gaps as ``[start, duration, cause, name before it, name after it, rank]``."""
    origin = side.origin_ns
    return [[g.start_ns - origin, g.dur_ns, g.cause, short(g.after, 80), short(g.before, 80), g.rank] for g in gaps]


def tones() -> list[Json]:
    """Name and colour of every tone, in order of its number."""
    named = [{"label": name, "color": themes.CATEGORY_COLORS[name]} for name in CATEGORIES]
    named += [{"label": label, "color": themes.GREY} for label in ("waiting for another stream", "host call", "range")]
    return named + [{"label": "", "color": color} for color in themes.KERNEL_TONES]


def moments(message: Json) -> tuple[int, int]:
    """``start`` and ``end`` of a question in whole nanoseconds, at least one apart. Raises :class:`UsageError`."""
    try:
        start, end = round(float(message["start"])), round(float(message["end"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        raise UsageError("a window takes start and end in nanoseconds") from None
    return start, max(end, start + 1)


def whole(message: Json, key: str, low: int, high: int) -> int:
    """A whole number of a question in ``low..high``. Raises :class:`UsageError`."""
    value = message.get(key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise UsageError(f"{key} = {value!r}: takes a whole number in {low}..{high}")
    return value


def causes() -> list[Json]:
    """Name, colour and meaning of every cause of idle time."""
    return [{"label": cause, "color": themes.CAUSE_COLORS[cause], "help": CAUSE_TEXTS[cause]} for cause in CAUSES]
