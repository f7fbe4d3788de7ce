"""Two bundles beside each other. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dsv4lab.tuning.overlap.reading import LevelView, read

if TYPE_CHECKING:
    from dsv4lab.tuning.bundle.bundle import Bundle

_MACHINE = ("gpu", "driver", "cuda", "hip", "torch", "triton", "python", "dsv4lab", "cpu", "cores")


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact that the two machines do not share; None where one does not tell."""

    name: str
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class CheckCounts:
    """Cases of a kernel on a backend: those that passed and all, on each side; zeros where it was not checked."""

    kernel: str
    backend: str
    a: tuple[int, int]
    b: tuple[int, int]

    @property
    def one_sided(self) -> bool:
        """Whether only one of the two checked it."""
        return not self.a[1] or not self.b[1]


@dataclass(frozen=True, slots=True)
class Cost:
    """A probe's figure on each side; None where a probe has no such figure."""

    name: str
    a: float | None
    b: float | None

    @property
    def ratio(self) -> float | None:
        """``b`` over ``a``."""
        return self.b / self.a if self.a and self.b is not None else None


@dataclass(frozen=True, slots=True)
class LevelPair:
    """A concurrency level that both measured: microseconds of the faster serial program, the best plan, and its change
    with the interval.
    """

    concurrency: int
    a: LevelSide
    b: LevelSide


@dataclass(frozen=True, slots=True)
class LevelSide:
    """One machine at a level."""

    control: str
    control_us: float
    best: str
    best_us: float
    delta: float
    low: float | None
    high: float | None
    hidden: float | None


@dataclass(frozen=True, slots=True)
class BundleComparison:
    """``same_load`` is false where the two did not run the same shape and lengths: then times say less."""

    devices: tuple[str, str]
    facts: tuple[Fact, ...]
    checks: tuple[CheckCounts, ...]
    costs: tuple[Cost, ...]
    levels: tuple[LevelPair, ...]
    same_load: bool

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def compare(a: Bundle, b: Bundle) -> BundleComparison:
    """What differs between two machines, and what each makes of the levels that both measured."""
    return BundleComparison(
        devices=(a.manifest.device, b.manifest.device),
        facts=_facts(a.manifest.machine, b.manifest.machine),
        checks=_checks(a, b),
        costs=_costs(a, b),
        levels=_levels(a, b),
        same_load=_load(a) == _load(b),
    )


def _facts(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Fact, ...]:
    return tuple(Fact(name, a.get(name), b.get(name)) for name in _MACHINE if a.get(name) != b.get(name))


def _checks(a: Bundle, b: Bundle) -> tuple[CheckCounts, ...]:
    """Kernels whose counts differ."""
    left, right = _counts(a), _counts(b)
    names = dict.fromkeys([*left, *right])
    return tuple(
        CheckCounts(*name, left.get(name, (0, 0)), right.get(name, (0, 0)))
        for name in names
        if left.get(name) != right.get(name)
    )


def _counts(bundle: Bundle) -> dict[tuple[str, str], tuple[int, int]]:
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for row in bundle.selfcheck or ():
        good, total = found.get((row.kernel, row.backend), (0, 0))
        found[row.kernel, row.backend] = (good + row.passes, total + 1)
    return found


def _costs(a: Bundle, b: Bundle) -> tuple[Cost, ...]:
    left, right = _figures(a), _figures(b)
    return tuple(Cost(name, left.get(name), right.get(name)) for name in dict.fromkeys([*left, *right]))


def _figures(bundle: Bundle) -> dict[str, float]:
    found = {} if bundle.probe is None else dict(bundle.probe.found)
    host = found.pop("host_us", None)
    if isinstance(host, Mapping):
        found |= {f"host {name}": value for name, value in host.items()}
    return {name: value for name, value in found.items() if type(value) in (int, float)}


def _levels(a: Bundle, b: Bundle) -> tuple[LevelPair, ...]:
    if a.overlap is None or b.overlap is None:
        return ()
    right = {view.concurrency: view for view in read(b.overlap)}
    return tuple(
        LevelPair(view.concurrency, _side(view), _side(right[view.concurrency]))
        for view in read(a.overlap)
        if view.concurrency in right
    )


def _side(view: LevelView) -> LevelSide:
    delta, best = view.best.delta, view.best
    return LevelSide(
        view.control.plan, view.control.us, best.plan, best.us, delta.delta, delta.low, delta.high, best.hidden
    )


def _load(bundle: Bundle) -> tuple[Any, ...]:
    if bundle.overlap is None:
        return ()
    s = bundle.overlap.settings
    return (s.shape, s.layers, s.isl, s.kv)
