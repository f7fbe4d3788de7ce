from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dsv4lab.errors import PlanError
from dsv4lab.overlap.plan import HIP, OFF, OverlapPlan, Rule
from dsv4lab.timeline.timeline import Timeline
from dsv4lab.tuning.look import look_at


class Client:
    """Gives other tokens under ``odd``, and refuses ``bad``."""

    alive = True

    def __init__(self) -> None:
        self.plan = HIP
        self.calls: list[Any] = []

    def set_plan(self, plan: OverlapPlan) -> None:
        if plan.name == "bad":
            raise PlanError("no such op")
        self.plan = plan

    def load(self, concurrency: int, prompt_tokens: int, new_tokens: int) -> Any:
        self.calls.append((self.plan.name, concurrency, prompt_tokens, new_tokens))
        return SimpleNamespace(tokens=[[1, 2]] if self.plan.name != "odd" else [[1, 3]])

    def profile(self, steps: int, **_: int) -> Any:
        one = Timeline.build(
            start_ns=[0], dur_ns=[steps], names=(self.plan.name,), name=[0], streams=("main",), stream=[0]
        )
        return SimpleNamespace(timeline=one)


def test_every_plan_is_held_against_off_and_the_clients_own_comes_back() -> None:
    client: Any = Client()
    odd = OverlapPlan("odd", (Rule("a", "side0"),))
    looks = look_at(client, ["hip", odd, "off"], concurrency=2, prompt_tokens=7, new_tokens=3, steps=5)
    assert {name: look.identical for name, look in looks.items()} == {"off": True, "hip": True, "odd": False}
    assert client.calls == [("off", 2, 7, 3), ("hip", 2, 7, 3), ("odd", 2, 7, 3)]
    assert looks["hip"].timeline.names == ("hip",)
    assert looks["hip"].busy.union_busy_ns == 5
    assert client.plan == HIP


def test_a_refused_plan_leaves_the_client_as_it_was() -> None:
    client: Any = Client()
    with pytest.raises(PlanError):
        look_at(client, [OFF, OverlapPlan("bad", (Rule("a", "side0"),))])
    assert client.plan == HIP
