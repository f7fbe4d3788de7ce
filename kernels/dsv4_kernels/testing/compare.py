"""A kernel against its reference: the kernel may be at most twice as far from the float64 truth as the reference is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dsv4_kernels.registry import Arguments, Case, KernelSpec
from dsv4_kernels.testing.inputs import Inputs, poison

Results = dict[str, torch.Tensor]

_EXACT_IN_FP64 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e8m0fnu)


class Float64(TorchFunctionMode):
    """Within the block, code that asks for float32 gets float64: a reference computes its own truth."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call ``func`` with every float32 replaced."""
        if func is torch.Tensor.view:  # with a dtype it reinterprets bytes
            return func(*args, **(kwargs or {}))
        kwargs = {k: _wide(v) for k, v in (kwargs or {}).items()}
        if func is torch.Tensor.float:
            return args[0].to(torch.float64)
        return func(*(_wide(a) for a in args), **kwargs)


def _wide(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


@dataclass(frozen=True)
class OutputError:
    """How far one output is from the truth: kernel and reference, relative, and the most that the kernel may be."""

    name: str
    kernel: float
    reference: float
    allowed: float

    @property
    def passes(self) -> bool:
        """Whether the kernel is near enough; never with a NaN."""
        return self.kernel <= self.allowed


@dataclass(frozen=True)
class Verdict:
    """The outcome of one case."""

    kernel: str
    case: str
    errors: tuple[OutputError, ...]
    trouble: str = ""

    @property
    def passes(self) -> bool:
        """Whether every output is near enough and nothing went wrong."""
        return not self.trouble and all(error.passes for error in self.errors)

    @property
    def text(self) -> str:
        """One line: what is wrong, or how near the worst output came to what it may be off."""
        if self.trouble:
            return self.trouble
        failed = [e for e in self.errors if not e.passes] or list(self.errors)
        worst = max(failed, key=lambda e: e.kernel / e.allowed if e.allowed else e.kernel, default=None)
        if worst is None:
            return "checked"
        return f"{worst.name}: error {worst.kernel:.2e}, reference {worst.reference:.2e}, allowed {worst.allowed:.2e}"


def clone(arguments: Arguments) -> Arguments:
    """The same arguments in fresh memory with the same strides."""
    return {name: _copy(value) for name, value in arguments.items()}


def run(spec: KernelSpec, call: Callable[..., Any], arguments: Arguments) -> dict[str, torch.Tensor]:
    """Call with poisoned outputs; everything that was written, by name (``return``, ``return.1``, ...)."""
    for name in spec.outputs:
        if arguments[name] is not None:
            poison(arguments[name])
    given = call(**arguments)
    written = {name: arguments[name] for name in spec.outputs + spec.updates if arguments[name] is not None}
    if spec.returns:
        values = given if isinstance(given, tuple) else (given,)
        written |= {"return" if i == 0 else f"return.{i}": value for i, value in enumerate(values)}
    return written


def reference_results(
    spec: KernelSpec, arguments: Arguments
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What the reference gives in the dtypes of ``arguments``, and in float64."""
    device = next(v.device for v in arguments.values() if isinstance(v, torch.Tensor))
    with torch.device(device):
        own = run(spec, spec.reference, clone(arguments))
        if set(own) <= spec.tolerance.exact:
            return own, own
        with Float64():
            truth = run(spec, spec.reference, {name: _upcast(value) for name, value in arguments.items()})
    return own, truth


def check(spec: KernelSpec, case: Case, inputs: Inputs, call: Callable[..., Any]) -> Verdict:
    """Run ``call`` and the reference on fresh arguments of ``case``."""
    return check_arguments(spec, case.name, case.build(inputs), call)


def check_arguments(spec: KernelSpec, case: str, arguments: Arguments, call: Callable[..., Any]) -> Verdict:
    """Run ``call`` and the reference on ``arguments``, which stay as they are."""
    mine = clone(arguments)
    got = run(spec, call, mine)
    if spec.verify is not None:
        try:
            spec.verify({**mine, **{k: v for k, v in got.items() if k.startswith("return")}})
        except AssertionError as error:
            return Verdict(spec.name, case, (), " ".join(str(error).split()) or "verify failed")
        return Verdict(spec.name, case, ())
    own, truth = reference_results(spec, arguments)
    errors = tuple(_error(spec, name, got[name], own[name], truth[name]) for name in own)
    untouched = set(mine) - set(spec.outputs) - set(spec.updates)
    changed = [n for n in sorted(untouched) if isinstance(mine[n], torch.Tensor) and not _same(mine[n], arguments[n])]
    return Verdict(spec.name, case, errors, f"changed its input {', '.join(changed)}" if changed else "")


def _error(spec: KernelSpec, name: str, got: torch.Tensor, own: torch.Tensor, truth: torch.Tensor) -> OutputError:
    if got.shape != own.shape or got.dtype != own.dtype:
        return OutputError(name, math.inf, 0.0, 0.0)
    if name in spec.tolerance.exact or not (own.is_floating_point() or own.dtype in _EXACT_IN_FP64):
        return OutputError(name, 0.0 if _same(got, own) else math.inf, 0.0, 0.0)
    reference = distance(own, truth)
    return OutputError(
        name, distance(got, truth), reference, max(spec.tolerance.factor * reference, spec.tolerance.floor)
    )


def distance(value: torch.Tensor, truth: torch.Tensor) -> float:
    """``|value - truth| / |truth|`` over all elements, in float64; infinite where only one of them is finite."""
    a, b = value.double().flatten(), truth.double().flatten()
    odd = ~(a.isfinite() & b.isfinite())
    if bool(odd.any()):
        alike = (a == b) | (a.isnan() & b.isnan())
        if not bool(alike[odd].all()):
            return math.inf
        a, b = a[~odd], b[~odd]
    size = float(b.norm())
    off = float((a - b).norm())
    return off / size if size else off


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit, so that NaN equals NaN."""
    if a.is_floating_point() or a.dtype in _EXACT_IN_FP64:
        width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
        return torch.equal(a.contiguous().view(width), b.contiguous().view(width))
    return torch.equal(a, b)


def _copy(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    fresh = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return _fill(fresh, value)


def _fill(fresh: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    if value.dtype in _EXACT_IN_FP64:
        fresh.view(torch.uint8).copy_(value.view(torch.uint8))
        return fresh
    return fresh.copy_(value)


def _upcast(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_floating_point() and value.dtype not in _EXACT_IN_FP64:
        return value.to(torch.float64)
    return _copy(value)
