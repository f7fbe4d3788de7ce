"""Calibration from a trace pair: a baseline, and the same work under a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from dsv4lab.overlap.plan import OverlapPlan
from dsv4lab.predict.calibrate import Fit, Residual
from dsv4lab.predict.golden import minimise
from dsv4lab.predict.whatif import Baseline, ask, baseline_of
from dsv4lab.queues.costs import Machine, with_values
from dsv4lab.timeline.timeline import Timeline

BLIND = 0.002
SPAN, ROUNDS = 4.0, 3


@dataclass(frozen=True, slots=True)
class _Seen:
    """``wall``: wall under the plan over the baseline's; ``busy``: summed kernel time over the baseline's."""

    wall: float
    busy: float


def fit_pair(baseline: Timeline, overlapped: Timeline, plan: OverlapPlan, on: Machine, tokens: int = 1) -> Fit:
    """Fit what a pair can tell: the latency of a signal (from the wall) and the loss of co-running kernels (from how
    much longer kernels got).

    Two numbers are seen and two are fitted: residuals show whether the mechanisms can explain the pair, not that they
    are right.
    """
    base = baseline_of(baseline)
    measured = baseline_of(overlapped)
    seen = _Seen(measured.wall_us / base.wall_us, _busy_us(measured) / _busy_us(base))
    signal = "signal_device_us" if on.runtime.device_signals else "signal_host_us"
    values = {name: on.values[name].value for name in (signal, "corun_loss") if on.values[name].value > 0}

    def model(changes: Mapping[str, float]) -> _Seen:
        answer = ask(base, plan, with_values(on, changes), tokens=tokens)
        times = answer.run.times
        busy = sum(times.end) - sum(times.start)
        return _Seen(answer.predicted_us / base.wall_us, busy / 1e3 / _busy_us(base))

    def loss(changes: Mapping[str, float]) -> float:
        found = model(changes)
        return (found.wall - seen.wall) ** 2 + (found.busy - seen.busy) ** 2

    blind = tuple(name for name in values if _is_blind(model, values, name))
    for _ in range(ROUNDS):
        for name in (n for n in values if n not in blind):
            values[name] = minimise(partial(_along, loss, values, name), values[name], SPAN)
    found = model(values)
    scale = base.wall_us, _busy_us(base)
    residuals = (
        Residual("wall", seen.wall * scale[0], found.wall * scale[0], False),
        Residual("kernel time", seen.busy * scale[1], found.busy * scale[1], False),
    )
    return Fit({n: v for n, v in values.items() if n not in blind}, residuals, blind)


def _along(loss: Callable[[Mapping[str, float]], float], values: Mapping[str, float], name: str, value: float) -> float:
    return loss({**values, name: value})


def _is_blind(model: Callable[[Mapping[str, float]], _Seen], values: Mapping[str, float], name: str) -> bool:
    low, high = model({**values, name: values[name] / 2}), model({**values, name: values[name] * 2})
    return max(abs(low.wall - high.wall), abs(low.busy - high.busy)) < BLIND


def _busy_us(base: Baseline) -> float:
    return sum(cost.us for cost in base.workload.costs)
