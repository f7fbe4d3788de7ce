"""The loop of a search session: propose, measure, tell; then fresh pairs for the best of each load."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from dsv4lab.errors import EngineError
from dsv4lab.tuning.block import CONFIRM, EXPLORE, OK, RUN_OFF, Block
from dsv4lab.tuning.knobs import Setting
from dsv4lab.tuning.search.duel import Duel, Limits
from dsv4lab.tuning.search.forecast import Order
from dsv4lab.tuning.search.log import CANDIDATE, CLAIM, DECISION, Claim, Decision
from dsv4lab.tuning.search.outcome import contenders, pick_candidate
from dsv4lab.tuning.search.plan import SearchPlan
from dsv4lab.tuning.search.propose import Proposal, Proposer
from dsv4lab.tuning.search.stand import ArmFailure, Stand
from dsv4lab.tuning.search.timer import Span, Timer
from dsv4lab.tuning.store import SessionStore

POLL_S = 0.25
BASELINE_TRIES = 2
RUN_OFF_SHARE = 1 / 3
"""Of a load's time, where that is bounded, a run-off takes so much at most; the fresh pairs behind it decide."""
START_SHARE = 0.25
"""Of a load's time, where that is bounded: a new process for its fresh pairs may take so much of it. One that would
take more is not started, and the pairs are measured in the process that is there."""


@dataclass(frozen=True, slots=True)
class Progress:
    """``done`` of ``total`` settings have been measured, by all workers; ``text`` says what comes next.

    ``left_s``: seconds that the rest will take at this pace; None as long as nothing is known.
    """

    done: int
    total: int
    text: str
    left_s: float | None


Tell = Callable[[Progress], None]


class Runner:
    """Measures what :class:`Proposer` gives to this worker, everything on record before the next thing begins."""

    def __init__(
        self,
        plan: SearchPlan,
        stand: Stand,
        store: SessionStore,
        proposer: Proposer,
        order: Order,
        timer: Timer,
        tell: Tell,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._plan, self._stand, self._store, self._proposer = plan, stand, store, proposer
        self._order, self._timer, self._tell, self._wait = order, timer, tell, wait
        self._log = stand.log
        stand.on_block = self.on_block
        self._done, self._text, self._exploring = 0, "starting", True

    @property
    def choices(self) -> int:
        """How many settings there are to try."""
        return len(self._order.settings)

    def explore(self) -> None:
        """Measure settings until none is left, the budget is spent, or the time that confirming needs begins.

        Raises :class:`EngineError` if the baseline cannot be measured.
        """
        self._proposer.restore([d for d in self._log.decisions.values() if d.phase == EXPLORE])
        for claim in self._log.open_claims(EXPLORE):
            begun = self._proposer.resume(claim.setting)
            if begun is not None:
                self._try(begun, claim)
        while not self._timer.exploring_over():
            proposal = self._proposer.next()
            if proposal is not None:
                self._try(proposal, self._claimed(EXPLORE, proposal.setting, proposal.source))
                continue
            others = self._proposer.exploring_elsewhere()
            if not others:
                return
            self.say(f"waiting for {others} of other workers")
            self._wait(POLL_S)

    def confirm(self) -> dict[Setting, Decision | None]:
        """Per load what fresh pairs say of its best setting; None where no setting came out ahead.

        Each load is one worker's; the others wait for what it finds. Where time is bounded, each gets its share of it.
        """
        found: dict[Setting, Decision | None] = {}
        self._done, self._exploring = len(self._proposer.decisions()), False
        left = list(self._plan.space.strata())
        while left:
            for load in tuple(left):
                held = self._proposer.take_confirmation(load)
                if held is not None and not held.done:
                    continue
                if held is None:
                    found[load] = self._confirm(load, self._timer.share(load, left))
                    self._proposer.confirmed(load, found[load])
                else:
                    found[load] = None if held.result is None else Decision.from_json(held.result)
                left.remove(load)
                self._done += 1
                self._timer.still_to_confirm(len(left) / len(self._plan.space.strata()))
            if left:
                self.say(f"waiting for {len(left)} confirmations by other workers")
                self._wait(POLL_S)
        return found

    def on_block(self, block: Block) -> None:
        """A load has been measured: the time that the rest will take is known better."""
        load = self._plan.space.load_of(block.setting)
        self._timer.count(load, block.wall_s, confirming=block.phase in (RUN_OFF, CONFIRM))
        self.say(self._text)

    def say(self, text: str) -> None:
        """Tell how far the session is."""
        self._text = text
        trials = min(self._plan.budget, len(self._order.settings))
        total = trials + len(self._plan.space.strata())
        left = self._timer.left(trials - len(self._explored()) if self._exploring else 0)
        self._tell(Progress(self._done, total, text, left))

    def _explored(self) -> list[Decision]:
        return [d for d in self._log.decisions.values() if d.phase == EXPLORE]

    def _try(self, proposal: Proposal, claim: Claim) -> None:
        known = self._proposer.decisions()
        self._done = len(known)
        self.say(self._plan.space.short(claim.setting))
        limits = Limits(self._plan.effort.alpha, self._rival(claim.setting, known), self._timer.exploring_over)
        with self._timer.trial():
            decision = self._decide(claim, limits)
        self._proposer.finish(proposal, decision)
        self._done += 1

    def _confirm(self, load: Setting, time: Span) -> Decision | None:
        space, effort = self._plan.space, self._plan.effort
        if load not in self._log.candidates:
            candidate = self._candidate(load, time.part(RUN_OFF_SHARE))
            chosen = None if candidate is None else candidate.to_json()
            self._store.append(CANDIDATE, load=load.to_json(), setting=chosen)
            self._log.candidates[load] = candidate
        candidate = self._log.candidates[load]
        if candidate is None:
            return None
        alpha = effort.alpha / len(space.strata())
        fresh = self._stand.start_s <= START_SHARE * time.left_s()
        limits = Limits(alpha, over=time.over, fresh=fresh)
        return self._measured(CONFIRM, candidate, f"confirming {space.short(candidate)}", limits)

    def _candidate(self, load: Setting, time: Span) -> Setting | None:
        """The best setting of a load; where several are close, by pairs that only they have, more than before."""
        space, effort = self._plan.space, self._plan.effort
        found = self._proposer.decisions()
        close = contenders(space, load, found, effort.least)
        if len(close) > 1:
            found = [d for d in found if d.setting in close]
            for at, one in enumerate(close):
                limits = Limits(effort.alpha, over=time.part(1 / (len(close) - at)).over)
                met = self._measured(RUN_OFF, one, f"run-off: {space.short(one)}", limits)
                if met.pairs or met.outcome != OK:  # else there was no time for it, and its first pairs have to do
                    found = [met if d.setting == one else d for d in found]
        return pick_candidate(space, load, found, effort.least)

    def _measured(self, phase: str, setting: Setting, text: str, limits: Limits) -> Decision:
        """The decision of this phase on a setting: the one on record, or by measuring what it lacks."""
        mine = [c for c in self._log.claims.values() if (c.phase, c.setting) == (phase, setting)]
        claim = mine[0] if mine else self._claimed(phase, setting, phase)
        if claim.trial in self._log.decisions:
            return self._log.decisions[claim.trial]
        self.say(text)
        return self._decide(claim, limits)

    def _decide(self, claim: Claim, limits: Limits) -> Decision:
        """Run the pairs of ``claim``. A baseline that fails is tried again; a second time in a row ends the session."""
        for tried in range(BASELINE_TRIES):
            try:
                decision = Duel(self._plan, self._stand, claim, limits).run()
            except ArmFailure as failure:
                if tried == BASELINE_TRIES - 1:
                    raise EngineError(f"the baseline cannot be measured: {failure} ({failure.outcome})") from failure
            else:
                self._store.append(DECISION, **decision.to_json())
                self._log.decisions[claim.trial] = decision
                return decision
        raise AssertionError

    def _claimed(self, phase: str, setting: Setting, source: str) -> Claim:
        claim = Claim(self._log.next_trial, phase, setting, source, self._order.forecast(setting))
        self._store.append(CLAIM, **claim.to_json())
        self._log.claims[claim.trial] = claim
        return claim

    def _rival(self, setting: Setting, known: list[Decision]) -> float | None:
        """Log ratio of the best setting so far under the same load, if it is ahead of the baseline."""
        load = self._plan.space.load_of(setting)
        best = pick_candidate(self._plan.space, load, known, self._plan.effort.least)
        return next((_log_ratio(d) for d in known if d.setting == best and d.ok), None)


def _log_ratio(decision: Decision) -> float:
    return math.log1p(decision.delta or 0.0)
