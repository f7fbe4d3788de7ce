"""What a kernel is compiled for: vendor, arch, compute units, wave size, LDS, fp8. Alone in asking the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache

import torch

KIB = 1024


@dataclass(frozen=True)
class Target:
    """One GPU architecture.

    ``units``: SMs or CUs. ``wave``: lanes of a warp or wavefront. ``lds_bytes``: shared memory that one program may
    take, ``lds_unit_bytes`` that of a whole unit, ``lds_reserved`` what the runtime takes of it per program.
    ``registers``: 32-bit registers of a unit, ``registers_lane`` the most that one lane may hold, ``waves`` the most
    waves that a unit holds. ``fp8``: ``ocp`` (e4m3fn, largest 448) or ``fnuz`` (e4m3fnuz, largest 240) in the matrix
    units. ``copy_gbps`` and ``bf16_tflops`` are the rates that the bound of a cost model is taken against: measured
    for sm_90 (an H200), the vendors' data sheets for the others.
    """

    arch: str
    vendor: str
    units: int
    wave: int
    lds_bytes: int
    lds_unit_bytes: int
    lds_reserved: int
    registers: int
    registers_lane: int
    waves: int
    fp8: str
    copy_gbps: float
    bf16_tflops: float

    @property
    def fp8_max(self) -> float:
        """The largest number that the fp8 of the matrix units holds."""
        return 448.0 if self.fp8 == "ocp" else 240.0


TARGETS = {
    target.arch: target
    for target in (
        Target("gfx942", "amd", 304, 64, 64 * KIB, 64 * KIB, 0, 4 * 512 * 64, 512, 32, "fnuz", 4300.0, 1307.0),
        Target("gfx950", "amd", 256, 64, 160 * KIB, 160 * KIB, 0, 4 * 512 * 64, 512, 32, "ocp", 6500.0, 2300.0),
        Target("sm_90", "nvidia", 132, 32, 227 * KIB, 228 * KIB, KIB, 65536, 255, 64, "ocp", 4240.0, 790.0),
        Target("sm_100", "nvidia", 148, 32, 227 * KIB, 228 * KIB, KIB, 65536, 255, 64, "ocp", 7000.0, 2250.0),
    )
}
"""Targets that the launch tables know, by arch."""

_forced: ContextVar[Target | None] = ContextVar("forced_target", default=None)


def target(arch: str) -> Target:
    """The target called ``arch``; :class:`ValueError` lists those that there are."""
    if arch not in TARGETS:
        raise ValueError(f"target {arch!r} is not one of {', '.join(TARGETS)}")
    return TARGETS[arch]


def target_of(device: torch.device) -> Target:
    """The target of ``device``: the forced one if there is one, else what the device says.

    The CPU (where kernels only run under Triton's interpreter) counts as sm_90.
    """
    forced = _forced.get()
    if forced is not None:
        return forced
    return TARGETS["sm_90"] if device.type in ("cpu", "meta") else _device_target(device.index or 0)


@contextmanager
def forced_target(arch: str) -> Iterator[Target]:
    """Within the block every device counts as ``arch``: launch tables are consulted as they would be there."""
    token = _forced.set(target(arch))
    try:
        yield target(arch)
    finally:
        _forced.reset(token)


@cache
def _device_target(index: int) -> Target:
    facts = torch.cuda.get_device_properties(index)
    arch = facts.gcnArchName.partition(":")[0] if torch.version.hip else f"sm_{facts.major}{facts.minor}"
    if arch not in TARGETS:
        raise ValueError(f"{facts.name} is {arch}; the launch tables know {', '.join(TARGETS)}")
    return replace(TARGETS[arch], units=facts.multi_processor_count)  # a slice of a GPU has fewer
