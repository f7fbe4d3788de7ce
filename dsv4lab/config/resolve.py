"""Which settings are in force, and where each came from: API, then command line, then environment, then default.

Pure: the environment comes in as :class:`~dsv4lab.env.EnvSettings`, the device as facts, and nothing is looked up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Generic, TypeVar

from dsv4lab.config.engine import THREE_POOL, UNIFIED, OverlapSetting
from dsv4lab.env import MAX_QUEUES, VARIABLES, EnvSettings
from dsv4lab.errors import UsageError

T = TypeVar("T")

API, CLI, DEFAULT = "api", "cli", "default"
TOKEN_GATE, TOKEN_GATE_BLACKWELL = 64, 128
HW_QUEUES, CUDA_CONNECTIONS = 4, 8
UNIFIED_BACKEND = "unified_kv_triton"
AUTO = "auto"


class DeviceKind(StrEnum):
    """The three kinds of device that defaults differ by."""

    CPU = "cpu"
    CUDA = "cuda"
    HIP = "hip"


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What of a device the defaults depend on."""

    kind: DeviceKind = DeviceKind.CPU
    blackwell: bool = False


@dataclass(frozen=True, slots=True)
class Choices:
    """What one caller asked for; None is no opinion."""

    plan: OverlapSetting | None = None
    token_gate: int | None = None
    moe_overlap: bool | None = None
    eager_fork: bool | None = None
    hw_queues: int | None = None
    attention_backend: str | None = None
    use_aiter: bool | None = None
    unified_kv_fp8: bool | None = None
    kv_layout: str | None = None
    kv_cache_dtype: str | None = None
    index_cache_dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Resolved(Generic[T]):
    """A value in force and its origin: ``api``, ``cli``, ``env VARIABLE`` or ``default``."""

    value: T
    origin: str


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """Every setting, decided."""

    plan: Resolved[OverlapSetting]
    token_gate: Resolved[int | None]
    """Most tokens of a forward that overlaps; None is no limit."""
    moe_overlap: Resolved[bool]
    """Whether the shared expert runs beside the routed ones, on top of the plan."""
    eager_fork: Resolved[bool]
    """Whether streams fork outside graph capture; on HIP an event wait there has been seen to hang."""
    hw_queues: Resolved[int]
    attention_backend: Resolved[str | None]
    use_aiter: Resolved[bool]
    unified_kv_fp8: Resolved[bool]
    kv_layout: Resolved[str]
    """``unified``, unless the seeds' switch names another backend than ``unified_kv_triton``: then ``three_pool``."""
    kv_cache_dtype: Resolved[str]
    """Format of KV rows; ``auto`` leaves it to layout and model."""
    index_cache_dtype: Resolved[str]

    def to_json(self) -> dict[str, dict[str, Any]]:
        """``{setting: {"value", "origin"}}``."""
        resolved = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: {"value": setting.value, "origin": setting.origin} for name, setting in resolved}


def resolve(
    device: DeviceFacts, env: EnvSettings, *, cli: Choices | None = None, api: Choices | None = None
) -> ResolvedSettings:
    """Decide every setting for ``device``. Raises :class:`UsageError` naming a choice out of range."""
    asked = _Asked(api or Choices(), cli or Choices(), env)
    plan = _plan(device, asked)
    layout = _kv_layout(asked)
    return ResolvedSettings(
        plan=plan,
        token_gate=_token_gate(device, asked, plan),
        moe_overlap=_moe_overlap(asked, plan),
        eager_fork=asked.pick("eager_fork", device.kind is not DeviceKind.HIP),
        hw_queues=_hw_queues(device, asked),
        attention_backend=asked.pick("attention_backend", None, "flashmla_backend"),
        use_aiter=asked.pick("use_aiter", False, "use_aiter"),
        unified_kv_fp8=asked.pick("unified_kv_fp8", False, "unified_kv_fp8"),
        kv_layout=layout,
        kv_cache_dtype=_kv_cache_dtype(asked, layout),
        index_cache_dtype=asked.pick("index_cache_dtype", "auto"),
    )


class _Asked:
    """The three callers, in order of precedence."""

    def __init__(self, api: Choices, cli: Choices, env: EnvSettings) -> None:
        self._callers = ((API, api), (CLI, cli))
        self.env = env

    def explicit(self, name: str) -> Resolved[Any] | None:
        """The choice of the API, else of the command line."""
        for origin, choices in self._callers:
            value = getattr(choices, name)
            if value is not None:
                return Resolved(value, origin)
        return None

    def from_env(self, field: str) -> Resolved[Any] | None:
        """What the environment says, None when the variable is unset."""
        value = getattr(self.env, field)
        return None if value is None else Resolved(value, f"env {VARIABLES[field]}")

    def pick(self, name: str, default: object, env_field: str | None = None) -> Resolved[Any]:
        """The first that has an opinion."""
        from_env = self.from_env(env_field) if env_field is not None else None
        return self.explicit(name) or from_env or Resolved(default, DEFAULT)


def _plan(device: DeviceFacts, asked: _Asked) -> Resolved[OverlapSetting]:
    """The table of overlap defaults: unset is not 0, and an explicit plan wins over the environment."""
    explicit = asked.explicit("plan")
    if explicit is not None:
        if not (isinstance(explicit.value, Mapping) or (isinstance(explicit.value, str) and explicit.value)):
            raise UsageError(f"plan: got {explicit.value!r} ({explicit.origin}), expected a name or an object")
        return explicit
    switch = asked.from_env("multi_stream_overlap")
    on_cuda = device.kind is DeviceKind.CUDA
    if switch is None:
        return Resolved("auto" if on_cuda else "off", DEFAULT)
    if not switch.value:
        return Resolved("off", switch.origin)
    return Resolved("cuda" if on_cuda else "hip", switch.origin)


def _token_gate(device: DeviceFacts, asked: _Asked, plan: Resolved[OverlapSetting]) -> Resolved[int | None]:
    """Only a plan that nobody named is gated, and only on CUDA (dsv4-spec 6.2)."""
    explicit = asked.explicit("token_gate")
    if explicit is not None:
        return _in_range("token_gate", explicit, 1, None)
    named = plan.origin in (API, CLI)
    if named or plan.value not in ("auto", "cuda") or device.kind is not DeviceKind.CUDA:
        return Resolved(None, DEFAULT)
    return Resolved(TOKEN_GATE_BLACKWELL if device.blackwell else TOKEN_GATE, DEFAULT)


def _moe_overlap(asked: _Asked, plan: Resolved[OverlapSetting]) -> Resolved[bool]:
    """The environment adds it to a plan that the environment or a default chose; a named plan is taken as it is."""
    explicit = asked.explicit("moe_overlap")
    if explicit is not None:
        return explicit
    from_env = asked.from_env("rocm_multi_stream")
    if from_env is None or plan.origin in (API, CLI):
        return Resolved(False, DEFAULT)
    return from_env


def _hw_queues(device: DeviceFacts, asked: _Asked) -> Resolved[int]:
    """The CPU device reads the HIP variable: its queues behave like HIP's."""
    on_cuda = device.kind is DeviceKind.CUDA
    variable = "cuda_device_max_connections" if on_cuda else "gpu_max_hw_queues"
    picked = asked.pick("hw_queues", CUDA_CONNECTIONS if on_cuda else HW_QUEUES, variable)
    return _in_range("hw_queues", picked, 1, MAX_QUEUES)


def _kv_layout(asked: _Asked) -> Resolved[str]:
    """An explicit layout, else the one that belongs to the attention backend."""
    explicit = asked.explicit("kv_layout")
    if explicit is not None:
        return explicit
    backend = asked.pick("attention_backend", None, "flashmla_backend")
    if backend.value is None:
        return Resolved(UNIFIED, DEFAULT)
    return Resolved(UNIFIED if backend.value == UNIFIED_BACKEND else THREE_POOL, backend.origin)


def _kv_cache_dtype(asked: _Asked, layout: Resolved[str]) -> Resolved[str]:
    """An explicit format; else fp8 rows in a unified pool where the seeds' flag asks for them."""
    explicit = asked.explicit("kv_cache_dtype")
    if explicit is not None and explicit.value != AUTO:
        return explicit
    packed = asked.pick("unified_kv_fp8", False, "unified_kv_fp8")
    if layout.value == UNIFIED and packed.value:
        return Resolved("fp8", packed.origin)
    return explicit or Resolved(AUTO, DEFAULT)


def _in_range(name: str, setting: Resolved[Any], low: int, high: int | None) -> Resolved[Any]:
    value = setting.value
    inside = isinstance(value, int) and not isinstance(value, bool) and value >= low
    if not inside or (high is not None and value > high):
        takes = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
        raise UsageError(f"{name}: got {value!r} ({setting.origin}), expected {takes}")
    return setting
