"""What a change of environment variables means for an engine's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import NoneType

from dsv4lab.config.engine import EngineConfig, OverlapSetting
from dsv4lab.config.resolve import DEFAULT, Choices, DeviceFacts, DeviceKind, ResolvedSettings, resolve
from dsv4lab.engine.devices import find_devices
from dsv4lab.engine.plans import with_moe
from dsv4lab.env import VARIABLES, EnvSettings, read_env
from dsv4lab.errors import EnvError
from dsv4lab.overlap.plan import OFF, is_auto, resolve_plan

_PLAN_FIELDS = ("multi_stream_overlap", "rocm_multi_stream")
_QUEUE_FIELDS = ("gpu_max_hw_queues", "cuda_device_max_connections")
_POOL_SWITCHES = ("flashmla_backend", "unified_kv_fp8")
POOL_FIELDS = ("kv_layout", "kv_cache_dtype", "index_cache_dtype")
"""Fields of the engine's configuration that say how the pool keeps its rows."""


def device_facts(device: str) -> DeviceFacts:
    """What the defaults of ``device`` depend on; of a CUDA device torch is asked."""
    kind, _, number = device.partition(":")
    if kind != DeviceKind.CUDA:
        return DeviceFacts(DeviceKind(kind))
    gpus = [found for found in find_devices()[0] if found["kind"] == kind]
    at = int(number or 0)
    return DeviceFacts(DeviceKind.CUDA, at < len(gpus) and bool(gpus[at]["blackwell"]))


def settings_for(device: str, env: EnvSettings, api: Choices | None = None) -> ResolvedSettings:
    """The settings of an engine on ``device``."""
    return resolve(device_facts(device), env, api=api)


def plan_of(settings: ResolvedSettings, config: EngineConfig) -> OverlapSetting:
    """The plan that the settings ask for, kept to the token gate if there is one.

    ``auto`` that nobody named is ``off`` where ``config`` leaves nothing to measure: without graphs, with several
    attention groups; nor is it taken unasked with several ranks.
    """
    asked = plan = resolve_plan(settings.plan.value)
    unasked = is_auto(asked) and settings.plan.origin == DEFAULT
    if unasked and (config.world_size > 1 or not config.times_plans):
        return OFF.name
    if settings.moe_overlap.value:
        plan = with_moe(plan)
    if settings.token_gate.value is not None:
        plan = plan.gated(settings.token_gate.value)
    return settings.plan.value if plan == asked else plan.to_json()


def changed_by(changes: Mapping[str, str | None], config: EngineConfig) -> EngineConfig:
    """``config`` with what ``changes`` say about plan, queues and pool. Raises ``EnvError`` on a malformed variable."""
    for name, value in changes.items():
        if not name or {"=", "\0"} & set(name) or "\0" in str(value) or type(value) not in (str, NoneType):
            raise EnvError(f"environment variable {name!r}={value!r}: it takes a name without '=' and a text or None")
    settings = settings_for(config.device, read_env({k: v for k, v in changes.items() if v is not None}))
    touched = {field for field, variable in VARIABLES.items() if variable in changes}
    if touched & set(_PLAN_FIELDS):
        config = replace(config, plan=plan_of(settings, config), token_gate=settings.token_gate.value)
    if touched & set(_QUEUE_FIELDS):
        config = replace(config, hw_queues=settings.hw_queues.value)
    if touched & set(_POOL_SWITCHES):
        config = replace(config, kv_layout=settings.kv_layout.value, kv_cache_dtype=settings.kv_cache_dtype.value)
    return config
