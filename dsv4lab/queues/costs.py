"""The numbers that one simulation runs with: a device's values and a runtime's rules, resolved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dsv4lab.errors import UsageError
from dsv4lab.queues.devices import Device, device
from dsv4lab.queues.policies import ALL_POLICIES
from dsv4lab.queues.runtimes import Runtime, runtime
from dsv4lab.queues.values import SWITCH, Value, Values, override, with_costs

MAX_QUEUES = 128


@dataclass(frozen=True, slots=True)
class Machine:
    """A device under a runtime with ``hw_queues`` queues per priority; ``values`` are the device's, with overrides."""

    device: Device
    runtime: Runtime
    hw_queues: int
    values: Mapping[str, Value] = field(repr=False)

    def __getitem__(self, name: str) -> float:
        return self.values[name].value

    @property
    def signal_us(self) -> float:
        """From the end of a producer to its signal's being seen by a command processor that waits for it."""
        return self["signal_device_us"] if self.runtime.device_signals else self["signal_host_us"]

    @property
    def poll_tax_us(self) -> float:
        """What a dispatch costs more while another queue is blocked on a signal."""
        return 0.0 if self.runtime.device_signals else self["poll_tax_us"]


def machine(
    device_name: str,
    runtime_name: str | None = None,
    hw_queues: int | None = None,
    changes: Mapping[str, float] | None = None,
    *,
    policy: str | None = None,
    barrier_elision: bool | None = None,
    graph_shared: bool | None = None,
    costs: Values | None = None,
) -> Machine:
    """Resolve names to a :class:`Machine`. ``costs`` (a calibration), then ``changes`` replace values of the device;
    ``policy``, ``barrier_elision`` and ``graph_shared`` what the runtime does by default.

    Raises:
        UsageError: unknown names, a queue count outside 1 to 128, or a runtime that is not the device's.

    """
    dev = device(device_name)
    rt = runtime(runtime_name or dev.runtime)
    if rt.family != runtime(dev.runtime).family:
        raise UsageError(f"device {dev.name} does not run {rt.name}")
    if policy is not None and policy not in ALL_POLICIES:
        raise UsageError(f"queue policy {policy!r} is not one of {', '.join(ALL_POLICIES)}")
    rt = replace(
        rt,
        policy=rt.policy if policy is None else policy,
        barrier_elision=rt.barrier_elision if barrier_elision is None else barrier_elision,
        graph_shared=rt.graph_shared if graph_shared is None else graph_shared,
    )
    queues = rt.default_queues if hw_queues is None else hw_queues
    if not 1 <= queues <= MAX_QUEUES:
        raise UsageError(f"hardware queues must be 1 to {MAX_QUEUES}, got {queues}")
    return Machine(dev, rt, queues, override(with_costs(dev.values, costs or {}), changes or {}))


def with_values(on: Machine, changes: Mapping[str, float]) -> Machine:
    """``on`` with some of its values replaced. ``RUNTIME.FIELD`` is a switch of its runtime, 0 or 1."""
    prefix = f"{on.runtime.name}."
    switches: dict[str, Any] = {k.removeprefix(prefix): bool(v) for k, v in changes.items() if k.startswith(prefix)}
    numbers = {k: v for k, v in changes.items() if not k.startswith(prefix)}
    return replace(on, values=override(on.values, numbers), runtime=replace(on.runtime, **switches))


def doubtful(on: Machine) -> dict[str, Value]:
    """What of ``on`` is assumed: values of the device, and switches of the runtime as values of 0 or 1."""
    rows = {
        f"{on.runtime.name}.{name}": Value(float(getattr(on.runtime, name)), SWITCH, status, source)
        for name, (status, source) in on.runtime.sources.items()
        if status == "assumed" and isinstance(getattr(on.runtime, name), bool)
    }
    return {name: v for name, v in (*on.values.items(), *rows.items()) if v.status == "assumed"}
