"""An accuracy comparison from start to report, in a folder that it can be resumed from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from pathlib import Path

from dsv4lab.evaluate.arms import ArmSpec, serving
from dsv4lab.evaluate.plan import Plan
from dsv4lab.evaluate.report import markdown
from dsv4lab.evaluate.result import ANSWER, ARM, FAILURE, OUTPUTS, AccuracyResult, result_of
from dsv4lab.load.client import Endpoint, run_load
from dsv4lab.load.outputs import greedy_outputs
from dsv4lab.load.report import RequestRecord
from dsv4lab.load.spec import LoadSpec
from dsv4lab.tuning.store import RESULT, SessionStore, write_json, write_text

REPORT = "report.md"

Tell = Callable[[int, str], object]
"""Told how many more requests are done, and what is going on."""


def run_ab(plan: Plan, folder: Path, tell: Tell, *, resume: bool = False) -> AccuracyResult:
    """Ask both arms everything (with ``resume``, what is left of it), and write ``result.json`` and ``report.md``.

    Every answer is on disk before the next is waited for. Raises :class:`dsv4lab.errors.UsageError` if ``folder`` holds
    another session, and what starting and finding the servers raises.
    """
    asyncio.run(_find_running(plan.arms))
    opened = SessionStore.resume if resume else SessionStore.create
    with opened(folder, plan.manifest()) as store:
        for arm in plan.arms:
            asyncio.run(_ask(plan, arm, store, tell))
        result = result_of(plan, store.records)
        store.append("result", verdict=result.verdict, **asdict(result.counts))
    write_json(folder / RESULT, result.to_json())
    write_text(folder / REPORT, markdown(result))
    return result


async def _find_running(arms: Iterable[ArmSpec]) -> None:
    """See that servers that are said to run do, before hours are spent on the other arm."""
    async with AsyncExitStack() as stack:
        for arm in arms:
            if arm.server is None:
                await stack.enter_async_context(serving(arm, Path(), 60.0))


async def _ask(plan: Plan, arm: ArmSpec, store: SessionStore, tell: Tell) -> None:
    """All of one arm that is not on record yet."""
    answered = {record["line"] for record in store.of_kind(ANSWER) if record["arm"] == arm.name}
    left = [question for question in plan.questions if question.line not in answered]
    compared = any(record["arm"] == arm.name for record in store.of_kind(OUTPUTS)) or not plan.gate_prompts
    tell(len(answered), f"arm {arm.name}")
    if compared and not left:
        return
    tell(0, f"arm {arm.name}: starting" if arm.server else f"arm {arm.name}")
    async with serving(arm, store.folder / f"arm-{arm.name}.log", plan.silence_s) as endpoint:
        store.append(ARM, arm=arm.name, model=endpoint.model)
        if not compared:
            tell(0, f"arm {arm.name}: comparing tokens")
            prompts = [plan.style.prompt(question) for question in plan.questions[: plan.gate_prompts]]
            outputs = await greedy_outputs(endpoint, prompts, plan.gate_tokens)
            store.append(OUTPUTS, arm=arm.name, outputs=[asdict(output) for output in outputs])
        if left:
            load = LoadSpec(len(left), max_new_tokens=plan.max_new_tokens, concurrency=plan.concurrency)
            lines = [question.line for question in left]

            def keep(record: RequestRecord) -> None:
                _keep(store, arm, lines[record.index], record)
                tell(1, f"arm {arm.name}")

            asked = [plan.style.prompt(question) for question in left]
            await run_load(_asking(endpoint, plan), load, asked, keep)


def _asking(endpoint: Endpoint, plan: Plan) -> Endpoint:
    """The endpoint for whole answers: they end where the model ends them."""
    stop = {"stop": list(plan.style.stop)} if plan.style.stop else {}
    body = {"ignore_eos": False, "return_token_ids": True, **stop, **plan.body}
    return replace(endpoint, chat=plan.style.chat, body=body)


def _keep(store: SessionStore, arm: ArmSpec, line: int, record: RequestRecord) -> None:
    if record.error is not None:
        store.append(FAILURE, arm=arm.name, line=line, error=record.error)
        return
    store.append(
        ANSWER,
        arm=arm.name,
        line=line,
        text=record.text,
        token_ids=list(record.token_ids),
        new_tokens=record.tokens,
        finish_reason=record.finish_reason,
        latency_ms=record.latency_ms,
    )
