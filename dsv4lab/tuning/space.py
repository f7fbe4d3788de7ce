"""What a tuning session measures, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from dsv4lab.config import checks
from dsv4lab.config.engine import MAX_HW_QUEUES, OverlapSetting
from dsv4lab.errors import UsageError

BASELINE = "off"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """A plan of the sweep: the name shown, and what :meth:`EngineClient.set_plan` takes."""

    name: str
    setting: OverlapSetting


@dataclass(frozen=True, slots=True)
class Load:
    """The synthetic load of one trial: ``concurrency`` requests at once, greedy, with prompts drawn from ``seed``."""

    prompt_tokens: int = 32
    max_new_tokens: int = 8
    seed: int = 0


@dataclass(frozen=True, order=True, slots=True)
class Cell:
    """One point of the sweep. A control cell is ``off`` on serial streams with every core inside the op."""

    plan: str
    hw_queues: int
    concurrency_level: int
    control: bool = False

    @property
    def label(self) -> str:
        """``hip, 2 queues, concurrency 4``."""
        where = "all cores in the op" if self.control else f"{self.hw_queues} queue{'s' * (self.hw_queues != 1)}"
        return f"{self.plan}, {where}, concurrency {self.concurrency_level}"


@dataclass(frozen=True, slots=True)
class Turn:
    """One trial in the order of a visit: which repeat it belongs to, and what is measured."""

    repeat: int
    cell: Cell


@dataclass(frozen=True, slots=True)
class Visit:
    """The life of one worker process: a queue count (or the control), and the trials taken in it, in order."""

    round: int
    hw_queues: int
    control: bool
    turns: tuple[Turn, ...]

    @property
    def loads(self) -> int:
        """Loads that it makes: one to wake the process (not for the control), one to check each cell, the trials."""
        return (not self.control) + len(self.cells) + len(self.turns)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells of this visit, each once, in order of first use."""
        return tuple(dict.fromkeys(turn.cell for turn in self.turns))


@dataclass(frozen=True, slots=True)
class SweepSpace:
    """The sweep: every plan × queue count × concurrency level, ``rounds`` processes of ``repeats`` trials each.

    ``confirm`` is the number of paired trials (candidate and ``off`` side by side, in a fresh process) that decide
    whether the candidate which won the sweep is recommended; from 9 on, one wild pair cannot hide a
    difference. Raises :class:`UsageError` on anything out of range.
    """

    plans: tuple[PlanChoice, ...]
    hw_queues: tuple[int, ...]
    concurrency: tuple[int, ...]
    load: Load = Load()
    rounds: int = 1
    repeats: int = 2
    confirm: int = 9
    control: bool = True

    def __post_init__(self) -> None:
        _check_list("--plans", [choice.name for choice in self.plans])
        _check_list("--hw-queues", self.hw_queues)
        _check_list("--concurrency", self.concurrency)
        if BASELINE not in self.plan_names:
            raise UsageError(f"--plans: got {','.join(self.plan_names)}, the baseline {BASELINE} must be among them")
        if self.setting(BASELINE) != BASELINE:
            raise UsageError(f"--plans: the name {BASELINE} is the baseline's; give a plan of your own another name")
        _check_bounds("--hw-queues", self.hw_queues, MAX_HW_QUEUES)
        _check_bounds("--concurrency", self.concurrency, 65536)
        for name in ("rounds", "repeats", "confirm"):
            _check_bounds(f"--{name}", (getattr(self, name),), 1000)
        _check_bounds("--prompt-tokens", (self.load.prompt_tokens,), 2**20)
        if self.load.max_new_tokens < 2:
            raise UsageError(f"--max-new-tokens: got {self.load.max_new_tokens}, a time per token needs at least 2")

    @property
    def plan_names(self) -> tuple[str, ...]:
        """Names of the plans, in the order given."""
        return tuple(choice.name for choice in self.plans)

    def setting(self, name: str) -> OverlapSetting:
        """What the engine takes for the plan called ``name``."""
        return next(choice.setting for choice in self.plans if choice.name == name)

    def cells(self) -> tuple[Cell, ...]:
        """Every cell in table order: concurrency level, then queue count, then plan; the control ends its level."""
        out: list[Cell] = []
        for level in self.concurrency:
            out += [Cell(plan, queues, level) for queues in self.hw_queues for plan in self.plan_names]
            if self.control:
                out.append(Cell(BASELINE, 1, level, control=True))
        return tuple(out)

    def visits(self) -> tuple[Visit, ...]:
        """Visits in the order they are made.

        Queue counts are rotated and reversed from round to round, and inside a visit the plans of one repeat stand next
        to each other in an order that is rotated and reversed from repeat to repeat, so that a drift of the machine
        falls on every plan alike. The control comes last and once: it is slow where cores are shared, and decides
        nothing.
        """
        visits = [
            Visit(number, queues, False, self._turns(number, queues))
            for number in range(self.rounds)
            for queues in balanced(self.hw_queues, number)
        ]
        if self.control:
            turns = tuple(Turn(0, Cell(BASELINE, 1, level, control=True)) for level in self.concurrency)
            visits.append(Visit(0, 1, True, turns))
        return tuple(visits)

    def _turns(self, number: int, queues: int) -> tuple[Turn, ...]:
        blocks = [(repeat, number * self.repeats + repeat) for repeat in range(self.repeats)]
        return tuple(
            Turn(repeat, Cell(plan, queues, level))
            for repeat, block in blocks
            for level in balanced(self.concurrency, block)
            for plan in balanced(self.plan_names, block)
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data; two sessions with equal data measure the same thing."""
        data = asdict(self)
        data["plans"] = [{"name": c.name, "setting": c.setting} for c in self.plans]
        return {key: list(value) if isinstance(value, tuple) else value for key, value in data.items()}


def balanced(items: Sequence[T], block: int) -> tuple[T, ...]:
    """``items`` in the order of ``block``: rotated by one every second block, reversed in every odd one."""
    shift = (block // 2) % len(items)
    rotated = (*items[shift:], *items[:shift])
    return rotated[::-1] if block % 2 else rotated


def _check_list(option: str, values: Sequence[object]) -> None:
    if not values:
        raise UsageError(f"{option}: got nothing, it takes at least one value")
    repeated = [value for value in dict.fromkeys(values) if list(values).count(value) > 1]
    if repeated:
        raise UsageError(f"{option}: got {checks.one_of(repeated)} more than once, every value can be given once")


def _check_bounds(option: str, values: Sequence[int], high: int) -> None:
    for value in values:
        if not 1 <= value <= high:
            raise UsageError(f"{option}: got {value}, it takes integers from 1 to {high}")
