"""What the DSpark drafter reads of the main model (dsv4-spec 7.3)."""

from __future__ import annotations

from dsv4lab.model.builder import OpListBuilder
from dsv4lab.model.hyper_connection import STREAMS

TAPS = "dspark.taps"


def list_tap(b: OpListBuilder, place: int, count: int) -> None:
    """In the main model, after layer ``target_layer_ids[place]``: the mean of its output streams, into the taps."""
    c = b.config
    x = b.buffer(STREAMS, c.hc_mult, c.hidden_size)
    taps = b.buffer(TAPS, count, c.hidden_size)

    def tap(_: object) -> None:
        taps[:, place] = x.float().mean(1)

    b.add("dspark.tap", tap, (STREAMS,), (TAPS,))
