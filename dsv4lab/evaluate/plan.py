"""What an accuracy comparison is: questions, the way they are asked, two arms, and what is to be shown."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dsv4lab._version import __version__
from dsv4lab.errors import UsageError
from dsv4lab.evaluate.arms import ArmSpec
from dsv4lab.evaluate.counts import ALPHA, POWER
from dsv4lab.evaluate.questions import PromptStyle, Question, digest_of
from dsv4lab.host import cpu_name

LEAST = 0.01
COMPLETION = PromptStyle()


@dataclass(frozen=True, slots=True)
class Plan:
    """A comparison. Checked when made; raises :class:`UsageError`.

    The first ``gate_prompts`` questions are asked one after the other for ``gate_tokens`` tokens, to compare tokens;
    then all are, ``concurrency`` at a time, greedily, for ``max_new_tokens`` at most. ``alpha`` is the level of the
    test; ``least`` the difference of accuracies (a fraction) that matters, to be shown with a chance of ``power``. No
    byte in ``silence_s`` is a failed request. ``body`` is added to what whole answers are asked with.
    """

    source: str
    questions: tuple[Question, ...]
    arms: tuple[ArmSpec, ArmSpec]
    style: PromptStyle = COMPLETION
    max_new_tokens: int = 512
    concurrency: int = 8
    gate_prompts: int = 4
    gate_tokens: int = 32
    silence_s: float = 600.0
    body: Mapping[str, Any] = field(default_factory=dict)
    alpha: float = ALPHA
    power: float = POWER
    least: float = LEAST

    def __post_init__(self) -> None:
        if not self.questions:
            raise UsageError(f"{self.source}: no question is left to ask")
        for name in ("alpha", "power", "least"):
            if not 0 < getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)!r}: it takes a number between 0 and 1")
        for name, least in (("max_new_tokens", 1), ("concurrency", 1), ("gate_prompts", 0), ("gate_tokens", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} is {getattr(self, name)!r}: it takes an integer, {least} or more")
        if not 0 < self.silence_s < float("inf"):
            raise UsageError(f"silence_s is {self.silence_s!r}: it takes seconds, more than 0")

    def manifest(self) -> dict[str, Any]:
        """What answers depend on, and what is to be shown: a session is resumed with the same only."""
        return {
            "kind": "eval ab",
            "dsv4lab": __version__,
            "platform": platform.platform(),
            "cpu": cpu_name(),
            "source": self.source,
            "questions": len(self.questions),
            "digest": digest_of(self.questions),
            "shots_digest": digest_of(self.style.shots),
            "style": self.style.to_json(),
            "arms": [arm.to_json() for arm in self.arms],
            "max_new_tokens": self.max_new_tokens,
            "body": dict(self.body),
            "gate": {"prompts": self.gate_prompts, "tokens": self.gate_tokens},
            "alpha": self.alpha,
            "power": self.power,
            "least": self.least,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }
