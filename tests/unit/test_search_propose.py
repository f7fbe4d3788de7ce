"""What workers see of each other's work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dsv4lab.tuning.knobs import LIVE, LOAD, Knob, KnobSpace, Setting
from dsv4lab.tuning.search.forecast import Forecast, Order
from dsv4lab.tuning.search.log import Decision
from dsv4lab.tuning.search.plan import GRID, PARETO, TPE, SearchPlan
from dsv4lab.tuning.search.propose import Proposal, Proposer
from dsv4lab.tuning.search.shared import Sharing, shared_by
from dsv4lab.tuning.search.study import Study

SPACE = KnobSpace(
    (Knob("plan", ("off", "hip", "cuda", "moe"), LIVE), Knob("concurrency", (1, 8), LOAD)), Setting.of(plan="off")
)


class Workers:
    """Proposers on one database."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._sharing = Sharing(f"sqlite:///{folder / 'shared.db'}", "s", 3600.0)

    def one(self, name: str, plan: SearchPlan, forecasts: list[Forecast] | None = None) -> Proposer:
        made = self._stack.enter_context(shared_by(plan, {"name": "x"}, self._folder, name, self._sharing))
        return Proposer(plan, made.studies, made.claims, Order(plan.space, forecasts or []), name)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with ExitStack() as stack:
        yield Workers(tmp_path, stack)


def decided(proposal: Proposal, delta: float = -0.01) -> Decision:
    return Decision(
        0, "explore", proposal.setting, verdict="undecided", delta=delta, pairs=4, tpot_ms=1.0, tokens_per_s=9.0
    )


def test_what_is_done_is_known_at_that_very_moment(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever confirms when no claim is open must know all decisions, however slow the study is told."""
    plan = SearchPlan(SPACE, GRID)
    a, b = workers.one("a", plan), workers.one("b", plan)
    proposal = a.next()
    assert proposal is not None
    assert b.exploring_elsewhere() == 1
    monkeypatch.setattr(Study, "end", lambda *args: None)
    a.finish(proposal, decided(proposal))
    assert b.exploring_elsewhere() == 0
    assert [d.setting for d in b.decisions()] == [proposal.setting]


def test_loads_take_turns_and_the_promising_come_first(workers: Workers) -> None:
    plan = SearchPlan(SPACE, GRID)
    forecasts = [Forecast(s, {"cuda": -0.2, "moe": -0.1}.get(str(s.get("plan")), 0.0)) for s in SPACE.grid()]
    proposer = workers.one("a", plan, forecasts)
    order = []
    while (proposal := proposer.next()) is not None:
        order.append(proposal.setting.label)
        proposer.finish(proposal, decided(proposal))
    assert order == [f"{name}, concurrency {level}" for name in ("cuda", "moe", "hip") for level in (1, 8)]


@pytest.mark.parametrize("method", [TPE, PARETO])
def test_every_setting_is_proposed_once_and_never_the_baseline(workers: Workers, method: str) -> None:
    plan = SearchPlan(SPACE, method, trials=100)
    pair = [workers.one("a", plan), workers.one("b", plan)]
    seen: list[Setting] = []
    sources = set()
    for turn in range(plan.choices):
        proposal = pair[turn % 2].next()
        assert proposal is not None
        seen.append(proposal.setting)
        sources.add(proposal.source)
        pair[turn % 2].finish(proposal, decided(proposal, delta=-0.01 * turn))
    assert pair[0].next() is None
    assert len(set(seen)) == plan.choices
    assert not any(setting == SPACE.baseline_for(setting) for setting in seen)
    assert "prior" in sources


def test_a_worker_that_was_slow_is_not_heard(workers: Workers) -> None:
    plan = SearchPlan(SPACE, GRID)
    a, b = workers.one("a", plan), workers.one("b", plan)
    proposal = a.next()
    assert proposal is not None
    held = b._claims.all()[0]
    assert b._claims.take_over(held)
    again = b._again(held)
    assert (again.setting, again.source) == (proposal.setting, "reclaimed")
    assert not a.finish(proposal, decided(proposal, delta=-0.5))
    assert b.finish(again, decided(again, delta=-0.02))
    assert [d.delta for d in a.decisions()] == [-0.02]
