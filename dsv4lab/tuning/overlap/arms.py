"""What is compared: plans, and the serial programs that a gain has to be over. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsv4lab.errors import UsageError
from dsv4lab.overlap.plan import OFF, is_auto, is_part, resolve_plan

SERIAL = (OFF.name, "unfused")
"""The controls: ``off``, where the compressors' and the indexer's products on the same input are one, and ``unfused``,
where they are apart."""

PLANS = (
    "hip", "cuda", "side", "side+query", "moe", "cuda+moe", "hip+moe", "side+moe", "side+query+moe",
    "side+query+moe+high", "side+query+route", "keys+moe+high",
)  # fmt: skip


def known(plan: str) -> bool:
    """Whether every preset of ``plan`` is one of this version's."""
    return all(is_part(part) for part in plan.split("+"))


def plans_of(asked: Sequence[str]) -> tuple[str, ...]:
    """The plans to measure: the controls, then ``asked``.

    Raises:
        PlanError: an unknown plan.
        UsageError: ``auto``, which is no plan but takes one of them.

    """
    for name in asked:
        if is_auto(resolve_plan(name)):
            raise UsageError("plans: auto is asked at every level anyway; name presets, such as cuda or hip+moe")
    return tuple(dict.fromkeys((*(name for name in SERIAL if known(name)), *asked)))


def default_plans() -> tuple[str, ...]:
    """What is measured where nothing is named."""
    return tuple(name for name in PLANS if known(name))


def alike(labels: Sequence[str], serial: Mapping[str, Sequence[str]]) -> str:
    """Which of the ``serial`` programs, by name, has most ops in common with ``labels``; the first of equals."""
    mine = set(labels)
    return max(serial, key=lambda name: len(mine & set(serial[name])))
