"""The JSON of ``dsv4lab run``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dsv4lab.cli import model_args
from dsv4lab.cli.rank_args import told_sizes
from dsv4lab.errors import EngineError

if TYPE_CHECKING:
    from dsv4lab.config.engine import EngineConfig
    from dsv4lab.engine.client import EngineClient
    from dsv4lab.engine.results import GenerateResult, RequestStats
    from dsv4lab.timeline.records import BusySummary


def busy_of(result: GenerateResult) -> BusySummary:
    """The busy table of a recorded load."""
    if result.timeline is None:
        raise EngineError("the load recorded no forwards")
    busy: BusySummary = result.timeline.stream_busy()
    return busy


def document(result: GenerateResult, config: EngineConfig, concurrency: int) -> dict[str, Any]:
    """``tokens``, ``ttft_ms``, ``tpot_ms``, ``concurrency_level``, ``plan``, ``hw_queues``, ``tokens_per_s``,
    ``stream_busy`` (as ``trace summary``); with several ranks ``tp_size``, ``dp_size``, ``ep_size``.
    """
    return {
        "tokens": result.tokens,
        "ttft_ms": result.ttft_ms,
        "tpot_ms": result.tpot_ms,
        "concurrency_level": concurrency,
        "plan": model_args.plan_name(config.plan),
        "hw_queues": config.hw_queues,
        "tokens_per_s": result.tokens_per_s,
        "stream_busy": busy_of(result).to_json(),
        **told_sizes(config),
    }


def extras(client: EngineClient, logprobs: int | None, requests: Sequence[RequestStats]) -> dict[str, Any]:
    """What only some runs have: ``accepted_per_step`` with a drafter, ``prefix_cache`` (as ``status()``) with that,
    ``logprobs`` where asked for.

    The last is a list per request with an object per token: ``token``, ``logprob``, ``top`` (pairs of token and
    log-probability).
    """
    status = client.status()
    found: dict[str, Any] = {}
    if (speculation := status.get("speculation")) is not None:
        found["accepted_per_step"] = float(speculation["accepted_per_step"])
    if (prefix_cache := status.get("prefix_cache")) is not None:
        found["prefix_cache"] = prefix_cache
    if logprobs is not None:
        found["logprobs"] = [[asdict(token) for token in request.logprobs] for request in requests]
    return found
