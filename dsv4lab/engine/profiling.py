"""Recording forwards through the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from dsv4lab.engine import messages as m
from dsv4lab.engine import prompts as prompt_input
from dsv4lab.engine.gather import gather
from dsv4lab.engine.link import Link
from dsv4lab.engine.load import check_room
from dsv4lab.engine.payloads import unpack_timeline
from dsv4lab.engine.results import Profile
from dsv4lab.errors import EngineError

if TYPE_CHECKING:
    from dsv4lab.engine.client import EngineClient

T = TypeVar("T")

MAX_STEPS = 4096


def record(link: Link, run: Callable[[], T]) -> tuple[T, m.Recorded]:
    """What ``run()`` gave, and the forwards meanwhile, the first ``MAX_STEPS`` of them."""
    pending = link.begin(lambda call: m.Record(call, MAX_STEPS))
    try:
        result = run()
    finally:
        link.call(m.EndRecord, m.Done)
    return result, pending.wait(m.Recorded, link.patience.call_s)


def own_load_profile(
    client: EngineClient, link: Link, steps: int, concurrency: int, prompt_tokens: int, timeout_s: float
) -> Profile:
    """``steps`` decode forwards of ``concurrency`` synthetic requests that live no longer than that."""
    prefills = -(-concurrency * prompt_tokens // client.config.chunked_prefill_size)
    new = steps + prefills + 2  # those prefilled first decode while the others are
    check_room(client.limits, concurrency, prompt_tokens + new)
    rows = prompt_input.synthetic(client.limits.vocab_size, concurrency, prompt_tokens, 0)
    pending = link.begin(lambda call: m.Record(call, steps, decoding=concurrency))
    handles = [client.submit(row, max_new_tokens=new) for row in rows]
    try:
        recorded = pending.wait(m.Recorded, timeout_s)
    finally:
        for handle in handles:
            handle.abort()
    gather(handles, client.stall_s)
    if recorded.program is None:
        raise EngineError("nothing was recorded")
    return Profile(unpack_timeline(recorded.timeline), recorded.program, recorded.steps)
