"""What there is to test, compile, time and check: one :class:`KernelSpec` per kernel, found in ``<op>/cases.py``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import dsv4_kernels
from dsv4_kernels.launch import LaunchTable
from dsv4_kernels.testing.inputs import Inputs

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Cost:
    """The two floors of one call: ``bytes`` that must move (inputs once, outputs once) and ``flops`` to be done."""

    bytes: int
    flops: int

    def floor_us(self, copy_gbps: float, tflops: float) -> float:
        """The larger of the two floors in microseconds."""
        return max(self.bytes / copy_gbps / 1e3, self.flops / tflops / 1e6)


@dataclass(frozen=True)
class Case:
    """One set of arguments.

    ``build(inputs)`` gives the keyword arguments of reference and kernel on ``inputs.device``, which may be ``meta``:
    then there are shapes and no values. ``small`` cases also run under the interpreter; ``compiled`` ones are what
    the compile check compiles each config for; ``bench`` ones are timed, and need not be checked by the test walk
    (they are checked before they are timed).
    """

    name: str
    build: Callable[[Inputs], Arguments]
    small: bool = True
    compiled: bool = False
    bench: bool = False


@dataclass(frozen=True)
class Tolerance:
    """The error that a kernel may have against the float64 truth, in the root mean square over an output.

    ``factor`` times the error of the reference itself in the dtypes given, but at least ``floor`` (relative): two
    sums in another order differ by a few units of float32's last place, whatever the reference happens to hit.
    Outputs in ``exact`` must be equal bit for bit to the reference's.
    """

    factor: float = 2.0
    floor: float = 2.0**-20
    exact: frozenset[str] = frozenset()


@dataclass(frozen=True)
class KernelSpec:
    """One kernel.

    ``reference`` is the plain torch truth, ``triton`` names the wrapper as ``module:function``: both take the same
    keyword arguments. ``outputs`` are the arguments that it writes in full (poisoned before each run), ``updates``
    those that it changes in place or writes in part; if it ``returns`` tensors, these are compared too. ``tables``
    are the launch tables that it chooses from. ``verify``, where given, replaces the comparison for outputs with
    more than one right answer: it takes the arguments after the kernel ran and raises AssertionError. ``variants``
    maps names to wrappers for one arch alone (Hopper siblings), which every case runs too where they apply;
    ``untried`` are those that have never run and that no default chooses: they are compiled, and run where asked for.
    """

    name: str
    reference: Callable[..., Any]
    triton: str
    cases: tuple[Case, ...]
    cost: Callable[[Arguments], Cost]
    tables: tuple[LaunchTable, ...]
    outputs: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    returns: bool = False
    tolerance: Tolerance = Tolerance()
    verify: Callable[[Arguments], None] | None = None
    variants: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    untried: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def wrapper(self, variant: str = "triton") -> Callable[..., Any]:
        """The wrapper, imported now, and Triton with it."""
        where = self.triton if variant == "triton" else {**self.variants, **self.untried}[variant][0]
        module, _, name = where.partition(":")
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return found

    def wrappers(self, arch: str, untried: bool = False) -> dict[str, Callable[..., Any]]:
        """The wrappers that run on ``arch``: the portable one, then that arch's variants, ``untried`` or not."""
        variants = {**self.variants, **self.untried} if untried else self.variants
        names = ["triton", *(name for name, (_, only) in variants.items() if only == arch)]
        return {name: self.wrapper(name) for name in names}


@cache
def specs() -> Mapping[str, KernelSpec]:
    """Every kernel by name. Reads the ``cases`` module of each op; imports torch, never triton."""
    found: dict[str, KernelSpec] = {}
    for op in sorted(m.name for m in pkgutil.iter_modules(dsv4_kernels.__path__) if m.ispkg):
        package = importlib.import_module(f"dsv4_kernels.{op}")
        if not any(m.name == "cases" for m in pkgutil.iter_modules(package.__path__)):
            continue
        for spec in importlib.import_module(f"dsv4_kernels.{op}.cases").SPECS:
            if spec.name in found:
                raise ValueError(f"two kernels are called {spec.name}")
            found[spec.name] = spec
    return found


def spec(name: str) -> KernelSpec:
    """The kernel called ``name``; :class:`ValueError` lists those that there are."""
    if name not in specs():
        raise ValueError(f"there is no kernel {name!r}: there are {', '.join(specs())}")
    return specs()[name]
