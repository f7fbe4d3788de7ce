"""From a plan setting to the plan in force."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dsv4lab.overlap.plan import OverlapPlan, Rule, is_auto, resolve_plan


def effective_plan(setting: str | Mapping[str, Any] | OverlapPlan, side_streams: int | None) -> OverlapPlan:
    """The plan that ``setting`` names, folded onto ``side_streams`` side streams unless None. Raises ``PlanError``."""
    plan = resolve_plan(setting)
    return plan if side_streams is None else plan.fold(side_streams)


def with_moe(plan: OverlapPlan) -> OverlapPlan:
    """``plan`` with the shared expert on a side stream of its own; ``auto`` tries that anyway."""
    if is_auto(plan):
        return plan
    used = [int(stream.removeprefix("side")) for stream in plan.side_streams]
    rule = Rule("moe.shared", f"side{max(used, default=-1) + 1}")
    return replace(plan, name=f"{plan.name}+moe", rules=(*plan.rules, rule))
