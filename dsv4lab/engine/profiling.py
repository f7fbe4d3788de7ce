"""Recording forwards through the client."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from dsv4lab.engine import messages as m
from dsv4lab.engine.link import Link
from dsv4lab.engine.load import check_room
from dsv4lab.engine.payloads import unpack_timeline
from dsv4lab.engine.prompts import positive, synthetic
from dsv4lab.engine.results import Profile
from dsv4lab.errors import EngineError

if TYPE_CHECKING:
    from dsv4lab.engine.client import EngineClient

T = TypeVar("T")

MAX_STEPS = 4096


def record(link: Link, run: Callable[[], T], steps: int = MAX_STEPS, decoding: int = 0) -> tuple[T, m.Recorded]:
    """What ``run()`` gave, and the first ``steps`` forwards meanwhile, from a decode of ``decoding`` requests on."""
    pending = link.begin(lambda call: m.Record(call, steps, decoding))
    try:
        result = run()
    finally:
        link.call(m.EndRecord, m.Done)
    return result, pending.wait(m.Recorded, link.patience.call_s)


def own_load_profile(
    client: EngineClient, link: Link, steps: int, concurrency: int, prompt_tokens: int, timeout_s: float
) -> Profile:
    """``steps`` decode forwards of ``concurrency`` synthetic requests that live little longer than that."""
    prefills = -(-concurrency * positive(prompt_tokens, "prompt_tokens") // client.config.chunked_prefill_size)
    new = steps + prefills + 1  # those prefilled first decode while the others are
    check_room(client.limits, concurrency, prompt_tokens + new)
    rows = synthetic(client.limits.vocab_size, concurrency, prompt_tokens, 0)
    run = partial(client.generate, rows, max_new_tokens=new, timeout_s=timeout_s)
    _, recorded = record(link, run, steps, concurrency)
    if recorded.program is None:
        raise EngineError(f"no decode forward of {concurrency} requests came about")
    return Profile(unpack_timeline(recorded.timeline), recorded.program, recorded.steps)
