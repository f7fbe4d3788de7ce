"""Which setting comes next: claimed for this worker, with a trial in the study, from the source whose turn it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dsv4lab.tuning.block import CONFIRM, EXPLORE
from dsv4lab.tuning.knobs import Setting
from dsv4lab.tuning.search.claims import Claims, Held, Taken
from dsv4lab.tuning.search.forecast import Order, distance
from dsv4lab.tuning.search.log import Decision
from dsv4lab.tuning.search.plan import GRID, SearchPlan
from dsv4lab.tuning.search.study import Study

PRIOR, TPE, NEIGHBOUR, RECLAIMED = "prior", "tpe", "neighbour", "reclaimed"
SEEDS = 4
"""Settings that each study begins with: the most promising by the model, which the sampler learns from."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A setting that is this worker's to measure. ``number``: its trial in the study of its stratum."""

    setting: Setting
    source: str
    number: int


class Proposer:
    """Takes settings for one worker out of what all workers share.

    A grid goes through the order of the forecasts. The other methods take the most promising few, then what the sampler
    proposes. Where it proposes only what is taken already, the settings next to the best so far follow.
    """

    def __init__(self, plan: SearchPlan, studies: Sequence[Study], claims: Claims, order: Order, worker: str) -> None:
        self._plan, self._studies, self._claims, self._order, self._worker = plan, studies, claims, order, worker

    def next(self) -> Proposal | None:
        """The next proposal; None if there is no setting left, or no claim left in the budget."""
        held = [one for one in self._claims.all() if one.phase == EXPLORE]
        for one in held:
            if self._claims.stale(one) and self._claims.take_over(one):
                return self._again(one)
        if len(held) >= self._plan.budget:
            return None
        taken = {one.setting for one in held}
        for study in self._by_turn(held):
            for setting, source in self._wanted(study, taken):
                if setting in taken:
                    continue
                got = self._claims.take(EXPLORE, setting)
                if got is Taken.NONE_LEFT:
                    return None
                if got is Taken.MINE:
                    return self._begun(study, setting, source)
                taken.add(setting)
        return None

    def resume(self, setting: Setting) -> Proposal | None:
        """A setting that an earlier life of this worker had begun with; None if another worker has taken it over."""
        held = next((one for one in self._claims.all() if one.phase == EXPLORE and one.setting == setting), None)
        if held is None:
            got = self._claims.take(EXPLORE, setting)
            return self._begun(self._study_of(setting), setting, RECLAIMED) if got is Taken.MINE else None
        return self._again(held) if self._claims.stale(held) and self._claims.take_over(held) else None

    def exploring_elsewhere(self) -> int:
        """Settings that other workers have not finished, and that are not to be taken over yet."""
        held = [one for one in self._claims.all() if one.phase == EXPLORE]
        return sum(not one.done and not self._claims.stale(one) for one in held)

    def finish(self, proposal: Proposal, decision: Decision) -> bool:
        """Tell everybody what came of a proposal; False if another worker had taken the setting over.

        The claim holds the decision, so whoever sees that it is done sees what came of it too.
        """
        if not self._claims.finish(EXPLORE, proposal.setting, decision.to_json()):
            return False
        self._study_of(proposal.setting).end(proposal.number, decision)
        return True

    def decisions(self) -> list[Decision]:
        """What all workers have found so far."""
        found = [one.result for one in self._claims.all() if one.phase == EXPLORE and one.done]
        return [Decision.from_json(data) for data in found if data is not None]

    def restore(self, decisions: Sequence[Decision]) -> None:
        """Bring what the session's records say into the study, if it does not know it."""
        held = {one.setting: one for one in self._claims.all() if one.phase == EXPLORE}
        for decision in decisions:
            one = held.get(decision.setting)
            if one is None:
                if self._claims.take(EXPLORE, decision.setting) is Taken.MINE:
                    self._study_of(decision.setting).put(decision, self._worker)
                    self._claims.finish(EXPLORE, decision.setting, decision.to_json())
            elif one.done and one.worker == self._worker and one.number is not None:
                self._study_of(decision.setting).settle(one.number, decision)
            elif self._claims.stale(one) and self._claims.take_over(one):
                self.finish(self._again(one), decision)

    def take_confirmation(self, load: Setting) -> Held | None:
        """None if the confirmation of a load's best is this worker's to measure; else who has it, or had."""
        held = self._confirmation(load)
        if held is None:
            if self._claims.take(CONFIRM, load, counted=False) is Taken.MINE:
                return None
            held = self._confirmation(load)
            assert held is not None
        return None if self._claims.stale(held) and self._claims.take_over(held) else held

    def confirmed(self, load: Setting, decision: Decision | None) -> None:
        """Tell everybody what came of the confirmation that this worker took."""
        self._claims.finish(CONFIRM, load, None if decision is None else decision.to_json())

    def _confirmation(self, load: Setting) -> Held | None:
        return next((one for one in self._claims.all() if one.phase == CONFIRM and one.setting == load), None)

    def _again(self, held: Held) -> Proposal:
        study = self._study_of(held.setting)
        if held.number is not None:
            study.drop(held.number)
        return self._begun(study, held.setting, RECLAIMED)

    def _begun(self, study: Study, setting: Setting, source: str) -> Proposal:
        number = study.begin(setting, self._worker)
        self._claims.number(EXPLORE, setting, number)
        return Proposal(setting, source, number)

    def _study_of(self, setting: Setting) -> Study:
        load = self._plan.space.load_of(setting)
        return next(study for study in self._studies if study.load in (None, load))

    def _by_turn(self, held: Sequence[Held]) -> list[Study]:
        """Strata in which the fewest settings are taken come first."""
        return sorted(self._studies, key=lambda study: sum(self._study_of(one.setting) is study for one in held))

    def _wanted(self, study: Study, taken: set[Setting]) -> Iterator[tuple[Setting, str]]:
        ranked = self._order.settings if study.load is None else self._order.of(study.load)
        left = [setting for setting in ranked if setting not in taken]
        if self._plan.method == GRID:
            yield from ((setting, GRID) for setting in left)
            return
        if len(ranked) - len(left) < SEEDS:
            yield from ((setting, PRIOR) for setting in left[:SEEDS])
        yield from ((setting, TPE) for setting in study.proposals() if setting in self._order)
        yield from ((setting, NEIGHBOUR) for setting in self._neighbours(study, left))

    def _neighbours(self, study: Study, left: Sequence[Setting]) -> list[Setting]:
        """What is left, the nearest to the best so far first; in the order of the forecasts where it is as near."""
        measured = [decision for decision in self.decisions() if decision.delta is not None]
        found = [decision for decision in measured if self._study_of(decision.setting) is study]
        if not found:
            return list(left)
        best = min(found, key=lambda decision: decision.delta or 0.0).setting
        return sorted(left, key=lambda setting: distance(setting, best))
