"""One answer from those of several groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsv4lab.engine import messages as m
from dsv4lab.engine.payloads import pack_timeline, unpack_timeline
from dsv4lab.timeline.busy import wall
from dsv4lab.timeline.ranks import side_by_side

_SUMMED = ("waiting", "running", "free_slots", "free_pages")


def merged(replies: Sequence[m.Reply]) -> m.Reply:
    """The answer to a call that every group has answered; an error of one is the answer of all."""
    failed = next((reply for reply in replies if isinstance(reply, m.Failed)), None)
    if failed is not None:
        return failed
    recorded = [reply for reply in replies if isinstance(reply, m.Recorded)]
    if recorded:
        return _recorded(recorded)
    infos = [reply for reply in replies if isinstance(reply, m.Info)]
    return _status(infos) if infos else replies[0]


def _recorded(parts: Sequence[m.Recorded]) -> m.Recorded:
    """All ranks side by side, from the first forward with tokens to the last; the program is that of a group that ran.

    Of a group that had none meanwhile, what it did for the others.
    """
    ran = [part for part in parts if part.program is not None] or parts[:1]
    timeline = side_by_side([unpack_timeline(part.timeline) for part in parts])
    windows = [wall(unpack_timeline(part.timeline)) for part in ran]
    inside = (timeline.start_ns >= min(w[0] for w in windows)) & (timeline.end_ns <= max(w[1] for w in windows))
    timeline = timeline.select(inside)
    steps = sorted((step for part in parts for step in part.steps), key=lambda step: step.start_ns)
    return m.Recorded(parts[0].call, pack_timeline(timeline), ran[0].program, tuple(steps))


def _status(parts: Sequence[m.Info]) -> m.Info:
    """Counts of all groups together, and each group's own under ``groups``."""
    values = [part.value for part in parts]
    total: dict[str, Any] = {**values[0], "steps": max(v["steps"] for v in values), "groups": values}
    total |= {key: sum(v[key] for v in values) for key in _SUMMED}
    if "prefix_cache" in total:
        caches = [v["prefix_cache"] for v in values]
        total["prefix_cache"] = {key: sum(cache[key] for cache in caches) for key in caches[0]}
    if "speculation" in total:
        total["speculation"] = _speculation([v["speculation"] for v in values])
    return m.Info(parts[0].call, total)


def _speculation(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    steps = sum(p["steps"] for p in parts)

    def mean(values: Sequence[float]) -> float:
        return sum(v * p["steps"] for v, p in zip(values, parts, strict=True)) / steps if steps else 0.0

    return {
        **parts[0],
        "steps": steps,
        "accepted_per_step": mean([p["accepted_per_step"] for p in parts]),
        "rate_by_place": [mean(place) for place in zip(*(p["rate_by_place"] for p in parts), strict=True)],
    }
