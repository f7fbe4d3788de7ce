"""``lab.open``: from a few words to a running engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsv4lab.config.engine import EngineConfig, OverlapSetting
from dsv4lab.config.presets import PRESETS
from dsv4lab.config.resolve import Choices
from dsv4lab.engine.client import EngineClient
from dsv4lab.engine.devices import dtype_of
from dsv4lab.engine.link import OnProgress, Patience
from dsv4lab.engine.settings import POOL_FIELDS, plan_of, settings_for
from dsv4lab.env import read_env
from dsv4lab.errors import UsageError
from dsv4lab.overlap.plan import OverlapPlan

_FIELDS = tuple(name for name in EngineConfig.__slots__ if name not in ("model", "device", "plan", "hw_queues"))


def engine_config(
    model: str | Path = "tiny",
    *,
    device: str = "cpu",
    plan: OverlapSetting | OverlapPlan | None = None,
    hw_queues: int | None = None,
    **fields: Any,
) -> EngineConfig:
    """The configuration for these wishes, where the environment, then defaults, fill in what is None.

    ``model`` is a preset's name or a checkpoint directory; ``fields`` are the other fields of
    :class:`~dsv4lab.config.engine.EngineConfig`. Raises ``LabError`` on values that do not fit.
    """
    unknown = sorted(set(fields) - set(_FIELDS))
    if unknown:
        raise UsageError(
            f"open: unknown argument {unknown[0]!r}; it takes model, device, plan, hw_queues, {', '.join(_FIELDS)}"
        )
    asked = plan.to_json() if isinstance(plan, OverlapPlan) else plan
    name = str(model)
    if name not in PRESETS and Path(name).is_dir():
        name = str(Path(name).resolve())  # the worker may be restarted from another directory
    if fields.get("dtype") is None:
        fields["dtype"] = dtype_of(device)
    checked = EngineConfig(name, device=device, **fields)
    given = {field: fields.get(field) for field in (*POOL_FIELDS, "token_gate")}
    settings = settings_for(checked.device, read_env(), Choices(plan=asked, hw_queues=hw_queues, **given))
    fields |= {field: getattr(settings, field).value for field in given}
    chosen = plan_of(settings, checked)
    return EngineConfig(name, device=device, plan=chosen, hw_queues=settings.hw_queues.value, **fields)


def open(  # noqa: A001 - `lab.open(...)`
    model: str | Path = "tiny",
    *,
    device: str = "cpu",
    plan: OverlapSetting | OverlapPlan | None = None,
    hw_queues: int | None = None,
    progress: OnProgress | None = None,
    patience: Patience | None = None,
    **fields: Any,
) -> EngineClient:
    """Start an engine; arguments as for :func:`engine_config`. ``progress(fraction, stage)`` follows the start."""
    config = engine_config(model, device=device, plan=plan, hw_queues=hw_queues, **fields)
    return EngineClient(config, patience=patience, progress=progress)
