"""One setting against the baseline, pair by pair, until the sequential test has seen enough."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dsv4lab.tuning.block import CONFIRM, OUTPUTS_DIFFER, RUN_OFF, Block
from dsv4lab.tuning.paired import SequentialTest, Verdict
from dsv4lab.tuning.search.log import Claim, Decision, Pair
from dsv4lab.tuning.search.plan import PARETO, SearchPlan
from dsv4lab.tuning.search.stand import ArmFailure, Stand, derived_seed
from dsv4lab.tuning.stats import median

TIME_OVER = "its part of the session's time is over"
RUN_OFF_FACTOR = 2
"""A run-off takes so many times the pairs of exploring."""
BEHIND = "the best setting so far is out of reach"


@dataclass(frozen=True, slots=True)
class Limits:
    """``rival``: log ratio of the best setting so far under this load, which a new one has to beat; None for none.

    ``alpha`` is that of the test; ``over`` says that the session's time is. ``fresh``: confirming begins in a new
    process, which played no part in exploring.
    """

    alpha: float
    rival: float | None = None
    over: Callable[[], bool] = lambda: False
    fresh: bool = True


class Duel:
    """The pairs of one claim. Those on record from an earlier life of the session count."""

    def __init__(self, plan: SearchPlan, stand: Stand, claim: Claim, limits: Limits) -> None:
        self._plan, self._stand, self._claim, self._limits = plan, stand, claim, limits
        self._baseline = plan.space.baseline_for(claim.setting)
        self._confirming = claim.phase == CONFIRM
        self._tests = self._new_tests()
        alone = limits.rival is None or plan.method == PARETO  # who is behind in TPOT may be ahead in throughput
        self._rival = None if alone else self._test(stop_without_gain=True)
        self._pairs: list[Pair] = []
        self._fresh = self._confirming and limits.fresh  # whether the next block starts a process

    def run(self) -> Decision:
        """Measure pairs until an answer, the last pair allowed, or the end of the session's time.

        Raises :class:`ArmFailure` if the baseline fails; failures of the setting are the decision.
        """
        for pair in self._stand.log.pairs(self._claim.trial, self._claim.phase, self._claim.setting):
            self._take(pair)
        stopped = self._stopped()
        while stopped is None:
            try:
                self._take(self._measure())
            except ArmFailure as failure:
                if failure.setting != self._claim.setting:
                    raise
                return self._failed(failure)
            stopped = self._stopped()
        return self._decided(stopped)

    def _new_tests(self) -> tuple[SequentialTest, ...]:
        """Of TPOT, and of throughput where that counts too."""
        both = self._plan.method == PARETO and not self._confirming
        return tuple(self._test(stop_without_gain=not self._confirming) for _ in range(1 + both))

    def _test(self, *, stop_without_gain: bool) -> SequentialTest:
        effort = self._plan.effort
        longer = {RUN_OFF: RUN_OFF_FACTOR * effort.explore_pairs, CONFIRM: effort.confirm_pairs}
        most = longer.get(self._claim.phase, effort.explore_pairs)
        return SequentialTest(self._limits.alpha, effort.least, most, stop_without_gain=stop_without_gain)

    def _take(self, pair: Pair) -> None:
        self._pairs.append(pair)
        for test, value in zip(self._tests, (pair.log_tpot, -pair.log_throughput), strict=False):
            test.add(value)
        if self._rival is not None and self._limits.rival is not None:
            self._rival.add(pair.log_tpot - self._limits.rival)

    def _stopped(self) -> str | None:
        """Why no further pair is measured; None if one is."""
        most = self._tests[0].max_pairs
        first = self._tests[0].decision
        if self._confirming and first.done:
            return first.why
        if not self._confirming and self._pairs:
            if all(_no_gain(test) for test in self._tests):
                return first.why
            if self._rival is not None and _no_gain(self._rival):
                return BEHIND
        if len(self._pairs) >= most:
            return first.why
        return TIME_OVER if self._limits.over() else None

    def _measure(self) -> Pair:
        """One pair, its arms in random order, both from the same prompts."""
        claim, space = self._claim, self._plan.space
        number = self._stand.log.next_pair(claim.trial, claim.phase)
        place = (claim.trial, claim.phase, number)
        seed = derived_seed(self._plan.seed, *place)
        apart = self._confirming and space.process_of(claim.setting) != space.process_of(self._baseline)
        arms = [self._baseline, claim.setting]
        random.Random(derived_seed(self._plan.seed, "order", *place)).shuffle(arms)
        count = self._plan.effort.burst if apart else 1
        blocks: list[Block] = []
        for arm in arms:
            for at in range(count):
                fresh = (apart and at == 0) or self._fresh
                self._fresh = False
                position = len(blocks)
                block = self._stand.block(
                    arm, trial=claim.trial, phase=claim.phase, pair=number, position=position, seed=seed, fresh=fresh
                )
                blocks.append(block)
        self._compare_tokens(blocks)
        return Pair.of(blocks, claim.setting)

    def _compare_tokens(self, blocks: Sequence[Block]) -> None:
        """The gate goes on while times are taken: arms with the same prompts have the same outputs."""
        named = {block.tokens for block in blocks if block.tokens}
        if len(named) > 1 and self._plan.exact:
            why = f"the outputs of pair {blocks[0].pair} are not the baseline's"
            raise ArmFailure(self._claim.setting, OUTPUTS_DIFFER, why)

    def _decided(self, stopped: str) -> Decision:
        test, pairs = self._tests[0], self._pairs
        if not pairs:
            return replace(self._nothing, verdict=Verdict.UNDECIDED.value, stopped=stopped)
        found = test.difference()
        verdict = test.decision.verdict if test.decision.done else Verdict.UNDECIDED
        return replace(
            self._nothing,
            verdict=verdict.value,
            delta=found.delta,
            low=found.low,
            high=found.high,
            pairs=found.pairs,
            tpot_ms=median([p.tpot_ms for p in pairs]),
            baseline_tpot_ms=median([p.baseline_tpot_ms for p in pairs]),
            tokens_per_s=median([p.tokens_per_s for p in pairs]),
            baseline_tokens_per_s=median([p.baseline_tokens_per_s for p in pairs]),
            stopped=stopped,
        )

    def _failed(self, failure: ArmFailure) -> Decision:
        return replace(self._nothing, outcome=failure.outcome, why=failure.why, stopped="the setting failed")

    @property
    def _nothing(self) -> Decision:
        claim = self._claim
        return Decision(claim.trial, claim.phase, claim.setting, forecast=claim.forecast)


def _no_gain(test: SequentialTest) -> bool:
    """Whether the test rules a gain worth having out, for now or for good."""
    decision = test.decision
    return decision.done and decision.verdict not in (Verdict.FASTER, Verdict.UNDECIDED)
