"""A sequential test of one setting against another on paired log ratios, and what it decides."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from dsv4lab.errors import UsageError
from dsv4lab.tuning.design import MAX_PAIRS, pairs_needed, power_of
from dsv4lab.tuning.evidence import confidence_sequence, log_evidence
from dsv4lab.tuning.ranks import EFFICIENCY, Array, centre, scale
from dsv4lab.tuning.stats import Difference

MIN_LOOK = 6
"""Pairs before the outlook is judged: with fewer there is no telling the noise."""

_HOPE = 1.28
"""How far, in standard errors, the true difference may lie on the favourable side when the outlook is judged."""


class Verdict(StrEnum):
    """Of a setting against the baseline. ``NO_GAIN`` is given only to those who asked to stop there."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference"
    NO_GAIN = "no gain"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Decision:
    """What the pairs say so far. ``done`` says that no further pair is wanted; ``why`` tells it in words."""

    verdict: Verdict
    done: bool
    pairs: int
    why: str

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Evidence:
    """The largest so far, as logarithms: of a gain, of a loss, against a gain and against a loss of ``least``."""

    gain: float
    loss: float
    against_gain: float
    against_loss: float


class SequentialTest:
    """Paired log ratios (setting over baseline: negative is faster), judged after every pair.

    - ``faster`` or ``slower``: zero is ruled out, and the centre is at least ``least`` (a fraction) away from it. Of
      settings that are alike, at most ``alpha`` ever get one of the two, however often one looks.
    - ``no difference``: a gain and a loss of ``least`` are both ruled out. A setting that is faster by ``least`` gets
      this with a probability of ``beta`` at most. With ``stop_without_gain`` the gain alone is enough, which is called
      ``no gain``: for a search, which has no use for the difference between equal and slower.
    - ``undecided``: after ``max_pairs``, or before it where no other answer is to be expected by then at this noise.

    A pair must have its two blocks side by side, in random order; the evidence then holds whatever the distribution,
    drift or autocorrelation of the noise (see :mod:`dsv4lab.tuning.evidence`). Where setting and baseline need
    processes of their own, one value is one pair of fresh processes: several blocks in the same two are not
    independent, and their median is one value.
    """

    def __init__(
        self, alpha: float, least: float, max_pairs: int, *, beta: float = 0.1, stop_without_gain: bool = False
    ) -> None:
        for name, value in (("alpha", alpha), ("beta", beta), ("least", least)):
            if not 0 < value < 1:
                raise UsageError(f"{name} is {value!r}: it takes a number between 0 and 1")
        if max_pairs < 1:
            raise UsageError(f"max_pairs is {max_pairs!r}: it takes an integer, 1 or more")
        self.alpha, self.beta, self.least, self.max_pairs = alpha, beta, least, max_pairs
        self._stop_without_gain = stop_without_gain
        self._logs: list[float] = []
        self._decision = Decision(Verdict.UNDECIDED, False, 0, "no pair yet")

    @property
    def logs(self) -> tuple[float, ...]:
        """The log ratios so far, in order."""
        return tuple(self._logs)

    @property
    def decision(self) -> Decision:
        """After the latest pair; once ``done`` it stays, and later pairs change :meth:`difference` only."""
        return self._decision

    def add(self, log_ratio: float) -> Decision:
        """Take one more pair. Raises ``ValueError`` for a ratio that is not finite."""
        if not math.isfinite(log_ratio):
            raise ValueError(f"a log ratio is {log_ratio}")
        self._logs.append(float(log_ratio))
        if not self._decision.done:
            self._decision = self._decide()
        return self._decision

    def extend(self, logs: Iterable[float]) -> Decision:
        """Take the pairs of a session that is resumed, in their order."""
        for log_ratio in logs:
            self.add(log_ratio)
        return self._decision

    def difference(self) -> Difference:
        """The centre as a relative difference, with bounds that hold at every look at once, at ``1 - alpha``.

        A side is None as long as no value on it is ruled out: an early answer has one bound, on the side of zero.
        """
        bounds = confidence_sequence(self._logs, self.alpha)
        low, high = (None if bound is None else math.expm1(bound) for bound in bounds)
        return Difference(math.expm1(centre(self._logs)), low, high, len(self._logs))

    @property
    def _gain(self) -> float:
        return math.log1p(-self.least)

    @property
    def _loss(self) -> float:
        return math.log1p(self.least)

    def _decide(self) -> Decision:
        values = np.asarray(self._logs)
        n = len(values)
        seen, middle = self._evidence(values), centre(values)
        sure, enough = math.log(2 / self.alpha), math.log(1 / self.beta)
        percent = f"{100 * self.least:g} %"
        if seen.gain >= sure and middle <= self._gain:
            return Decision(Verdict.FASTER, True, n, "a gain is shown")
        if seen.loss >= sure and middle >= self._loss:
            return Decision(Verdict.SLOWER, True, n, "a loss is shown")
        if min(seen.against_gain, seen.against_loss) >= enough:
            return Decision(Verdict.NO_DIFFERENCE, True, n, f"a difference of {percent} is ruled out")
        if self._stop_without_gain and seen.against_gain >= enough:
            return Decision(Verdict.NO_GAIN, True, n, f"a gain of {percent} is ruled out")
        if n >= self.max_pairs:
            return Decision(Verdict.UNDECIDED, True, n, f"{n} pairs are too few{self._takes(values)}")
        if n >= MIN_LOOK and not self._within_reach(values, seen, middle):
            return Decision(Verdict.UNDECIDED, True, n, f"{self.max_pairs} pairs would be too few{self._takes(values)}")
        return Decision(Verdict.UNDECIDED, False, n, "more pairs are wanted")

    def _evidence(self, values: Array) -> _Evidence:
        found = log_evidence(np.stack([-values, values, values - self._gain, self._loss - values])).max(axis=-1)
        return _Evidence(*map(float, found))

    def _within_reach(self, values: Array, seen: _Evidence, middle: float) -> bool:
        """Whether some answer may still come by ``max_pairs``, if the true difference is a little kinder than it looks.

        Stopping here can only lose answers, so it costs nothing of ``alpha``.
        """
        left = self.max_pairs - len(values)
        spread = scale(values)
        hope = _HOPE * spread / math.sqrt(EFFICIENCY * len(values))

        def reaches(now: float, level: float, distance: float) -> bool:
            return now + left * _growth(distance, spread) >= math.log(1 / level)

        kind = math.copysign(max(0.0, abs(middle) - hope), middle)
        no_gain = reaches(seen.against_gain, self.beta, kind - self._gain)
        no_loss = reaches(seen.against_loss, self.beta, self._loss - kind)
        return (
            reaches(seen.gain, self.alpha / 2, hope - middle)
            or reaches(seen.loss, self.alpha / 2, hope + middle)
            or (no_gain and no_loss)
            or (self._stop_without_gain and reaches(seen.against_gain, self.beta, middle + hope - self._gain))
        )

    def _takes(self, values: Array) -> str:
        spread = scale(values)
        if not spread > 0 or power_of(spread, self.least, MAX_PAIRS, self.alpha) < 1 - self.beta:
            return ""
        needed = pairs_needed(spread, self.least, self.alpha, 1 - self.beta)
        return f": at this noise a difference of {100 * self.least:g} % takes about {needed}"


def _growth(distance: float, spread: float) -> float:
    """Expected growth of the log evidence per pair for a centre ``distance`` away on the right side.

    For small effects half of the squared effect, as of a likelihood ratio, times the efficiency; at most log 2, when
    every coin is won. Checked by simulation.
    """
    if distance <= 0:
        return 0.0
    if spread == 0:
        return math.log(2)
    effect = distance / spread
    return math.log(2) * -math.expm1(-EFFICIENCY * effect**2 / (2 * math.log(2)))
