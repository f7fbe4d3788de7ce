"""What a search session measures on: an engine, a server of the user, or a simulation of one with known effects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dsv4lab.timeline.records import BusySummary
from dsv4lab.tuning.block import Measured
from dsv4lab.tuning.knobs import KnobSpace, Setting

Token = int | str


@dataclass(frozen=True, slots=True)
class Outputs:
    """Greedy answers, one row per prompt. ``tokens`` are ids where the target tells them, else their texts.

    ``fingerprints`` (one of the logits behind each token) and ``logprobs`` are empty where the target has none.
    """

    tokens: tuple[tuple[Token, ...], ...]
    fingerprints: tuple[tuple[int, ...], ...] = ()
    logprobs: tuple[tuple[float, ...], ...] = ()

    def difference(self, other: Outputs) -> str | None:
        """Where ``other`` first differs from this, as a text; None if tokens and fingerprints are the same.

        Where both have log-probabilities, the text has the gap between theirs of that token, and the largest before it.
        """
        found = _first_difference(self.tokens, other.tokens)
        if found is not None:
            prompt, at, expected, got = found
            text = f"prompt {prompt}, new token {at}: {_shown(got)} where the baseline gave {_shown(expected)}"
            return text + _gap(self.logprobs, other.logprobs, prompt, at)
        if self.fingerprints and other.fingerprints:
            found = _first_difference(self.fingerprints, other.fingerprints)
            if found is not None:
                return f"prompt {found[0]}, new token {found[1]}: the logits are not the baseline's, bit for bit"
        return None


@dataclass(frozen=True, slots=True)
class ArmProfile:
    """A close look at one setting: the name of its trace in the session's folder, and its busy times by stream."""

    trace: str
    busy: BusySummary


class ArmTarget(Protocol):
    """Something that can be set, asked and loaded. One thread uses it, one call at a time."""

    @property
    def name(self) -> str:
        """``engine``, ``server`` or ``simulated``."""
        ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """What it is, for the manifest, as plain data: sessions are comparable if theirs are equal."""
        ...

    def prepare(self, setting: Setting, *, fresh: bool = False) -> int:
        """Have a process that runs ``setting``, healthy, and tell which: the number of its life in this target.

        With ``fresh`` it is a new one even if one that fits is running, which is ended first.
        A number never seen before is a fresh process, which the session warms up. Raises a :class:`LabError`:
        ``WorkerDiedError`` if the process does not start, ``TimeoutExceededError`` if it does not become healthy,
        ``UsageError`` and ``UnavailableError`` for what no setting is to blame for (they end the session).
        """
        ...

    def outputs(self, setting: Setting) -> Outputs:
        """Greedy answers to a few fixed prompts under ``setting``, which is prepared. Raises a :class:`LabError`."""
        ...

    def measure(self, setting: Setting, *, seed: int) -> Measured:
        """One load of ``setting``, which is prepared, its prompts drawn from ``seed``.

        What goes wrong is in ``outcome`` and ``why``, or raised as a :class:`LabError` (``WorkerDiedError``: crashed,
        ``TimeoutExceededError``: hung, another: failed). The same seed means the same prompts under every setting, and
        no block may profit from what an earlier one left behind, a prefix cache for instance.
        """
        ...

    def profile(self, setting: Setting, folder: Path) -> ArmProfile | None:
        """Record some steps of ``setting`` to a trace in ``folder``; None where the target cannot.

        It prepares the setting itself, and nothing is timed in that process afterwards. Raises a :class:`LabError`.
        """
        ...

    def close(self) -> None:
        """End what was started. No call follows."""
        ...


OpenArms = Callable[[KnobSpace], ArmTarget]
"""Makes the target for a space: whoever makes it knows what its knobs mean. It starts nothing before ``prepare``."""


def _first_difference(
    a: Sequence[Sequence[Token]], b: Sequence[Sequence[Token]]
) -> tuple[int, int, Token | None, Token | None] | None:
    if len(a) != len(b):
        return min(len(a), len(b)), 0, None, None
    for prompt, (x, y) in enumerate(zip(a, b, strict=True)):
        for at in range(max(len(x), len(y))):
            left, right = (row[at] if at < len(row) else None for row in (x, y))
            if left != right:
                return prompt, at, left, right
    return None


def _gap(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], prompt: int, at: int) -> str:
    """How far the log-probabilities of a prompt lie apart, up to the token at ``at``; empty where there are none."""
    if prompt >= min(len(ours), len(theirs)) or not ours[prompt] or not theirs[prompt]:
        return ""
    gaps = [abs(a - b) for a, b in zip(ours[prompt][: at + 1], theirs[prompt][: at + 1], strict=False)]
    before = max(gaps[:at], default=0.0)
    own = f"{gaps[at]:.3g} there, " if at < len(gaps) else ""
    return f" (log-probabilities differ by {own}{before:.3g} at most before)"


def _shown(token: Token | None) -> str:
    return "its end" if token is None else repr(token)
