"""A target made of noise with planted effects: for tests of the search and of its statistics. It takes no time.

Nothing here says anything about a machine; what a device would do is the queue model's to say (:mod:`dsv4lab.predict`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

from dsv4lab.errors import EngineError, TimeoutExceededError, UsageError, WorkerDiedError
from dsv4lab.tuning.arm_target import Outputs
from dsv4lab.tuning.block import CRASHED, DIED_AT_START, FAILED, HUNG, START_TIMED_OUT, Measured
from dsv4lab.tuning.knobs import CONCURRENCY, MAX_NEW_TOKENS, PROMPT_TOKENS, KnobSpace, KnobValue, Setting

Effect = Callable[[Setting], float]
"""The planted effect of a setting: the logarithm of its TPOT over the base's."""

_PROMPTS, _ROW = 2, 8
_PROCESS, _LOAD = 1, 2


@dataclass(frozen=True, slots=True)
class SimulatedNoise:
    """What lies between a setting and its figures. All sizes are of logarithms: nearly fractions.

    ``sd`` is that of a block; with ``tail``, the degrees of freedom of Student's t, of its middle half (3 is heavy,
    1 has no mean). ``autocorrelation`` is between neighbouring blocks, ``drift`` adds up per block, ``process_sd`` is
    one draw per process life, ``warm_up`` what the first block of a life is slower by, fading over ``warm_up_blocks``.
    ``prompt_sd`` is one draw per seed of a load, the same for both blocks of a pair. A block is a spike, slower by
    ``spike``, with a probability of ``spike_rate``. ``request_sd`` is between the requests of a block.
    """

    sd: float = 0.01
    tail: float = math.inf
    autocorrelation: float = 0.0
    drift: float = 0.0
    process_sd: float = 0.0
    warm_up: float = 0.0
    warm_up_blocks: float = 2.0
    prompt_sd: float = 0.0
    spike: float = 0.5
    spike_rate: float = 0.0
    request_sd: float = 0.005

    def __post_init__(self) -> None:
        if not -1 < self.autocorrelation < 1:
            raise UsageError(f"autocorrelation is {self.autocorrelation!r}: it takes a number between -1 and 1")
        if not self.tail > 0:
            raise UsageError(f"tail is {self.tail!r}: it takes degrees of freedom, above 0")


QUIET = SimulatedNoise(sd=0.0, request_sd=0.0)


class SimulatedArms:
    """An :class:`dsv4lab.tuning.arm_target.ArmTarget`. Equal arguments and calls give equal figures.

    ``effect`` plants the truth (see :func:`additive`), ``differs`` settings whose tokens are wrong, ``fails`` settings
    that fail, by the outcome's name. One process lives at a time; a setting with other process knobs takes a new one.
    """

    name = "simulated"

    def __init__(
        self,
        space: KnobSpace,
        effect: Effect = lambda _setting: 0.0,
        noise: SimulatedNoise = QUIET,
        *,
        seed: int = 0,
        base_ms: float = 10.0,
        differs: Callable[[Setting], bool] = lambda _setting: False,
        fails: Callable[[Setting], str | None] = lambda _setting: None,
    ) -> None:
        self.space, self.effect, self.noise = space, effect, noise
        self.blocks, self.lives, self.simulated_s = 0, 0, 0.0
        self._seed, self._base_ms, self._differs, self._fails = seed, base_ms, differs, fails
        self._random = np.random.default_rng(seed)
        self._process: Setting | None = None
        self._age, self._offset, self._state = 0, 0.0, 0.0

    @property
    def facts(self) -> Mapping[str, Any]:
        """Noise and seed: what tells one simulation from another, but for the effects, which are a function."""
        noise = {name: value if math.isfinite(value) else None for name, value in asdict(self.noise).items()}
        return {"simulated": True, "noise": noise, "seed": self._seed, "base_ms": self._base_ms}

    def prepare(self, setting: Setting, *, fresh: bool = False) -> int:
        """The number of the process life; a new one where the process knobs changed, and with ``fresh``."""
        failure = self._fails(setting)
        if failure in (DIED_AT_START, START_TIMED_OUT):
            self._process = None
            error = WorkerDiedError if failure == DIED_AT_START else TimeoutExceededError
            raise error(f"{setting.label}: planted to fail: {failure}")
        wanted = self.space.process_of(setting)
        if fresh or wanted != self._process:
            self._process, self._age = wanted, 0
            self.lives += 1
            own = np.random.default_rng((self._seed, _PROCESS, self.lives))
            self._offset = float(own.normal(0.0, self.noise.process_sd))
        return self.lives

    def outputs(self, setting: Setting) -> Outputs:
        """The same rows for every setting that is not planted to differ."""
        wrong = int(self._differs(setting))
        return Outputs(tuple((*range(row, row + _ROW - 1), _ROW + wrong) for row in range(_PROMPTS)))

    def measure(self, setting: Setting, *, seed: int) -> Measured:
        """One block. A setting planted to crash takes its process with it."""
        if self._process != self.space.process_of(setting):
            raise EngineError(f"{setting.label}: is not prepared")
        log = self._log(setting, seed)
        self.blocks += 1
        self._age += 1
        failure = self._fails(setting)
        if failure in (CRASHED, HUNG, FAILED):
            self._process = None if failure == CRASHED else self._process
            return Measured(process=self.lives, outcome=failure, why=f"planted to fail: {failure}")
        return self._measured(setting, math.exp(log))

    def profile(self, setting: Setting, folder: Path) -> None:
        """There are no steps to look at."""

    def close(self) -> None:
        """Nothing was started."""
        self._process = None

    def _log(self, setting: Setting, seed: int) -> float:
        """Effect and noise of the next block."""
        noise = self.noise
        fresh = self._random.standard_normal() if math.isinf(noise.tail) else self._heavy()
        self._state = noise.autocorrelation * self._state + math.sqrt(1 - noise.autocorrelation**2) * fresh
        spike = noise.spike if self._random.random() < noise.spike_rate else 0.0
        prompts = float(np.random.default_rng((self._seed, _LOAD, seed)).normal(0.0, noise.prompt_sd))
        warm = noise.warm_up * math.exp(-self._age / noise.warm_up_blocks)
        shared = prompts + noise.drift * self.blocks + self._offset + warm
        return self.effect(setting) + noise.sd * self._state + spike + shared

    def _heavy(self) -> float:
        """Student's t, its middle half as wide as that of a standard normal."""
        return float(self._random.standard_t(self.noise.tail) * ndtri(0.75) / stdtrit(self.noise.tail, 0.75))

    def _measured(self, setting: Setting, factor: float) -> Measured:
        level = _whole(setting, CONCURRENCY, 1)
        tpot = self._base_ms * factor * (1 + 0.02 * (level - 1))
        tpots = tpot * np.exp(self._random.normal(0.0, self.noise.request_sd, max(4, level)))
        ttft = factor * (20.0 + 0.05 * _whole(setting, PROMPT_TOKENS, 256))
        wall = (ttft + tpot * (_whole(setting, MAX_NEW_TOKENS, 32) - 1)) / 1e3
        self.simulated_s += wall
        return Measured(
            process=self.lives,
            tpot_ms=tuple(map(float, tpots)),
            ttft_ms=(ttft,) * len(tpots),
            tokens_per_s=level * 1e3 / tpot,
            wall_s=wall,
            tokens="differs" if self._differs(setting) else "same",
        )


def additive(effects: Mapping[str, Mapping[KnobValue, float]]) -> Effect:
    """An effect that is the sum over knobs: ``effects[knob][value]``, 0 for what is not named."""

    def effect(setting: Setting) -> float:
        return sum(own.get(setting.get(name), 0.0) for name, own in effects.items())

    return effect


def _whole(setting: Setting, name: str, default: int) -> int:
    value = setting.get(name, default)
    return value if isinstance(value, int) else default
