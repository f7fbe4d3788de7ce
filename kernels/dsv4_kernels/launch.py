"""Launch choices as data, and the one function that launches.

A :class:`LaunchTable` is a list of rows per arch or vendor; a row's limits say up to which sizes it holds. The choice
is a function of the table, the target and sizes that are known on the host, so it is the same whenever a graph is
captured; where batches must not differ, sizes of a batch count as fixed ones (``dsv4_kernels.invariant``). Rows that
the tuner of ``kernels/bench`` wrote to ``tuned/<arch>.json`` come before the table's own, and :func:`pinned` comes
before both.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import torch

from dsv4_kernels.invariant import counted, counted_sizes
from dsv4_kernels.target import Target, target_of

_NO_LIMITS: Mapping[str, int] = {}
PDL: Mapping[str, int] = {"launch_pdl": 1}
"""Option of NVIDIA rows for kernels that wait for their predecessor themselves (their constant ``PDL``): they are
launched before it ends, which hides most of a launch."""

CARVEOUT = "carveout"
"""Option of NVIDIA rows: percent of an SM's memory that the kernel prefers as shared memory, the rest being its first
cache. An SM keeps what the kernel that first came to it asked for, until it is empty: a kernel that needs little
leaves too little for others beside it, and one whose loads land in that cache suffers from a large share."""

BESIDE = 25
"""The share for routed experts whose loads land in the first cache: from 50 on those are 11 to 16 % slower, and
without one a shared expert's programs wait for an empty SM, at the end of the experts (H200)."""

HALF = 50
"""The share for fp8 products of few tokens whose loads land in the first cache, so that what comes beside them or
behind them, launched early, finds shared memory without waiting for an empty SM."""

WHOLE = 100
"""The share for products of few tokens that go through shared memory. They follow each other closely and lie side by
side: with different shares each waits for SMs that the one before has left."""

_PREFERRED_CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
_AMD_ONLY = ("waves_per_eu", "matrix_instr_nonkdim", "kpack", "schedule_hint")


@dataclass(frozen=True)
class Config:
    """Compile-time choices of one launch: ``constants`` of the kernel, warps, pipeline stages, backend ``options``."""

    constants: tuple[tuple[str, int], ...]
    num_warps: int
    num_stages: int = 1
    options: tuple[tuple[str, int], ...] = ()

    def __getitem__(self, constant: str) -> int:
        """The value of ``constant``."""
        return dict(self.constants)[constant]

    def __str__(self) -> str:
        parts = [f"{name.lower()}={value}" for name, value in self.constants + self.options]
        return " ".join([*parts, f"warps={self.num_warps}", f"stages={self.num_stages}"])

    def to_json(self) -> dict[str, Any]:
        """As :meth:`from_json` reads it."""
        return {
            "constants": dict(self.constants),
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "options": dict(self.options),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Config:
        """The config that ``to_json`` gave ``data`` for."""
        constants, options = tuple(data["constants"].items()), tuple(data.get("options", {}).items())
        return cls(constants, data["num_warps"], data.get("num_stages", 1), options)


def config(num_warps: int, num_stages: int = 1, options: Mapping[str, int] = _NO_LIMITS, **constants: int) -> Config:
    """A :class:`Config` in short: ``config(4, 2, BLOCK_N=64)``."""
    return Config(tuple(constants.items()), num_warps, num_stages, tuple(options.items()))


@dataclass(frozen=True)
class Row:
    """``config`` holds where no size of ``limits`` is exceeded."""

    config: Config
    limits: tuple[tuple[str, int], ...] = ()

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether this row may be chosen for ``sizes``; a limit on a size that is not given is an error."""
        return all(sizes[name] <= most for name, most in self.limits)


def row(config: Config, **limits: int) -> Row:
    """A :class:`Row` in short: ``row(config(...), tokens=16)``."""
    return Row(config, tuple(limits.items()))


@dataclass(frozen=True)
class LaunchTable:
    """Rows by arch (``sm_90``) or vendor (``nvidia``, ``amd``), arch first; the first row that holds is chosen.

    The last row of each list has no limits. ``candidates`` are further configs for the tuner to try. ``constants`` are
    the names that every config gives.
    """

    name: str
    rows: Mapping[str, tuple[Row, ...]]
    candidates: tuple[Config, ...] = ()
    constants: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        configs = [r.config for rows in self.rows.values() for r in rows] + list(self.candidates)
        names = {frozenset(dict(c.constants)) for c in configs}
        if len(names) != 1:
            raise ValueError(f"launch table {self.name}: rows differ in their constants: {sorted(map(sorted, names))}")
        if not all(rows and not rows[-1].limits for rows in self.rows.values()):
            raise ValueError(f"launch table {self.name}: the last row of each target must have no limits")
        object.__setattr__(self, "constants", next(iter(names)))

    def choose(self, target: Target, **sizes: int) -> Config:
        """The config for ``sizes`` on ``target``."""
        asked = _asked.get()
        if asked is not None:
            asked[self.name] = dict(sizes)
        pin = _pins.get().get(self.name)
        if pin is not None:
            return self._checked(pin, "pinned")
        counted = counted_sizes(sizes)
        return next(r.config for r in self._rows(target) if r.holds(counted))

    def serves(self, target: Target) -> bool:
        """Whether there are rows for ``target``: tables of siblings have them for one vendor or arch alone."""
        return target.arch in self.rows or target.vendor in self.rows

    def configs(self, target: Target) -> tuple[Config, ...]:
        """Every config that :meth:`choose` can give for ``target``, without pins; no two are equal."""
        return tuple(dict.fromkeys(r.config for r in self._rows(target)))

    def _rows(self, target: Target) -> tuple[Row, ...]:
        own = self.rows.get(target.arch) or self.rows.get(target.vendor)
        if own is None:
            raise ValueError(f"launch table {self.name} has no rows for {target.arch}: it has {', '.join(self.rows)}")
        return tuple(Row(self._checked(r.config, "tuned"), r.limits) for r in _tuned(target.arch, self.name)) + own

    def _checked(self, config: Config, origin: str) -> Config:
        given = frozenset(dict(config.constants))
        if given != self.constants:
            wanted = ", ".join(sorted(self.constants))
            raise ValueError(f"{origin} config of {self.name} gives {', '.join(sorted(given))}; it takes {wanted}")
        return config


_asked: ContextVar[dict[str, dict[str, int]] | None] = ContextVar("asked", default=None)


@contextmanager
def asked_sizes() -> Iterator[dict[str, dict[str, int]]]:
    """Within the block, the sizes that each launch table was last asked for, by its name."""
    sizes: dict[str, dict[str, int]] = {}
    token = _asked.set(sizes)
    try:
        yield sizes
    finally:
        _asked.reset(token)


_NO_PINS: Mapping[str, Config] = {}
_pins: ContextVar[Mapping[str, Config]] = ContextVar("pins", default=_NO_PINS)


@contextmanager
def pinned(configs: Mapping[str, Config]) -> Iterator[None]:
    """Within the block, launch table ``name`` chooses ``configs[name]`` whatever the sizes."""
    token = _pins.set({**_pins.get(), **configs})
    try:
        yield
    finally:
        _pins.reset(token)


@cache
def _tuned(arch: str, table: str) -> tuple[Row, ...]:
    file = resources.files("dsv4_kernels") / "tuned" / f"{arch}.json"
    rows = json.loads(file.read_text(encoding="utf-8")).get(table, []) if file.is_file() else []
    return tuple(Row(Config.from_json(r["config"]), tuple(r["limits"].items())) for r in rows)


@dataclass(frozen=True)
class Launch:
    """A recorded launch: the jit function, its arguments by name, and every compile-time choice."""

    kernel: Any
    arguments: Mapping[str, Any]
    constants: Mapping[str, Any]
    config: Config


_recorder: ContextVar[list[Launch] | None] = ContextVar("recorder", default=None)


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Within the block :func:`launch` launches nothing and notes what it would have; for tensors on ``meta``."""
    launches: list[Launch] = []
    token = _recorder.set(launches)
    try:
        yield launches
    finally:
        _recorder.reset(token)


def overlaps(tensor: torch.Tensor) -> bool:
    """Whether launches on the device of ``tensor`` can overlap: the constant ``PDL`` of kernels that wait."""
    return tensor.device.type != "cpu" and target_of(tensor.device).vendor == "nvidia"


EARLY_TOKENS = 8


def pdl_of(tensor: torch.Tensor, tokens: int) -> int:
    """The constant ``PDL`` of kernels that begin with ``jit.follow``: 0 where launches do not overlap, 2 where the next
    kernel takes its places before this one has waited, else 1.

    That is for up to ``EARLY_TOKENS`` tokens, whose products take next to no shared memory. Tiles do: an SM divides its
    memory anew only when it is empty, and with kernels that wait on it it seldom is (docs/kernels.md).
    """
    if not overlaps(tensor):
        return 0
    return 2 if counted("tokens", tokens) <= EARLY_TOKENS else 1


def launch(
    kernel: Any, grid: Sequence[int], arguments: Mapping[str, Any], constants: Mapping[str, Any], config: Config
) -> None:
    """Launch ``kernel`` (a ``triton.jit`` function) over ``grid`` on the device of its first tensor argument.

    ``arguments`` are its run-time arguments by name, ``constants`` those of its compile-time arguments that the
    wrapper derives from shapes; ``config`` gives the others. An empty grid launches nothing.
    """
    launches = _recorder.get()
    if launches is not None:
        launches.append(Launch(kernel, dict(arguments), {**constants, **_own(kernel, config)}, config))
        return
    if 0 in grid:
        return
    device = next(value.device for value in arguments.values() if isinstance(value, torch.Tensor))
    run: Callable[..., Any] = kernel[tuple(grid)]
    values = {**arguments, **constants, **_own(kernel, config)}
    if device.type == "cpu":  # the interpreter: no warps, no backend options
        run(**values)
        return
    options = {name: value for name, value in config.options if name not in _AMD_ONLY or torch.version.hip}
    percent = options.pop(CARVEOUT, None)
    with torch.cuda.device(device):
        built = run(**values, num_warps=config.num_warps, num_stages=config.num_stages, **options)
    if percent is not None:
        _carve(int(built.function), percent)
        _carved.setdefault(str(kernel.__name__), {})[str(built.metadata.shared)] = percent


_carved: dict[str, dict[str, int]] = {}


def carveouts() -> dict[str, dict[str, int]]:
    """Percent of an SM's memory that kernels launched in this process prefer as shared memory, by name and by the bytes
    of it that a program has. No profiler tells it.
    """
    return {name: dict(shares) for name, shares in _carved.items()}


@cache
def _carve(function: int, percent: int) -> None:
    """Have the CUDA function prefer ``percent`` shared memory from its next launch on: once a function."""
    driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    code = driver.cuFuncSetAttribute(ctypes.c_void_p(function), _PREFERRED_CARVEOUT, percent)
    if code:
        raise RuntimeError(f"cuFuncSetAttribute(preferred shared memory carve-out, {percent}) gave CUDA error {code}")


def _own(kernel: Any, config: Config) -> dict[str, int]:
    """The constants of ``config`` that are parameters of ``kernel``; others shape the grid alone."""
    return {name: value for name, value in config.constants if name in kernel.arg_names}
