"""Packets moving through hardware queues, step by step: the front end of a simulated run."""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from dsv4lab.queues.simulate import Simulated
from dsv4lab.viz import theme as themes
from dsv4lab.widgets import front

MOST_PACKETS = 400


class PacketPlayer(anywidget.AnyWidget):
    """Plays a run: what every queue holds, runs and waits for at each moment, with play, step and back.

    All that it does happens in the page, so it works in a page without Python too.
    """

    _esm = front.module("packets.js")
    _css = front.style("packets.css")
    run: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    palettes: traitlets.Dict[str, Any] = traitlets.Dict(front.palettes()).tag(sync=True)
    theme = traitlets.Unicode("auto").tag(sync=True)

    def __init__(self, theme: str = "auto") -> None:
        super().__init__(theme=theme)

    def show(self, run: Simulated, title: str) -> None:
        """Play ``run``, its first 400 packets."""
        self.run = film(run, title)

    def __repr__(self) -> str:
        return f"<PacketPlayer of {len(self.run.get('packets', ()))} packets>"


def film(run: Simulated, title: str, most: int = MOST_PACKETS) -> dict[str, Any]:
    """What the player needs of ``run``: its first ``most`` packets in order of submission; times in nanoseconds.

    A packet is ``[name, stream, queue, ready, head, wake, start, end, waits, bit]``: numbers of stream and queue, then
    when the host had written it, when it came to the head of its ring, when the signals it waits for were seen, and
    when it ran; ``waits`` are packets, ``bit`` says that it waits for all before it in its ring.
    """
    work, packets, times = run.workload, run.packets, run.times
    kept = range(min(most, len(work)))
    queues = sorted({packets.queue[i] for i in kept})
    place = {queue: n for n, queue in enumerate(queues)}
    streams = [s for s in work.lanes if s in {work.streams[i] for i in kept}]
    gap = run.machine["gap_us"] * 1e3
    rows = []
    for i in kept:
        start, head = times.start[i], min(times.head[i], times.start[i])
        waits = [w for w in packets.waits[i] if w < len(kept)]
        wake = max(head, start - gap - packets.extra_ns[i]) if waits else head
        named = work.names[i] if work.layers[i] < 0 else f"L{work.layers[i]}.{work.names[i]}"
        numbers = [round(n) for n in (packets.ready_ns[i], head, wake, start, times.end[i])]
        bit = bool(packets.barrier_bit[i])
        rows.append([named, streams.index(work.streams[i]), place[packets.queue[i]], *numbers, waits, bit])
    return {
        "title": title,
        "packets": rows,
        "streams": [[s, themes.stream_color(s, n)] for n, s in enumerate(streams)],
        "queues": [f"q{queue}" for queue in queues],
        "left_out": len(work) - len(kept),
        "signal_ns": round(run.machine.signal_us * 1e3),
        "gap_ns": round(gap),
        "tax_ns": round(run.machine.poll_tax_us * 1e3),
        "device_signals": run.machine.runtime.device_signals,
        "notes": list(run.layout.notes),
    }
