"""Profiles of a search session: what its recommended settings and their baselines do on the streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dsv4lab.errors import LabError
from dsv4lab.tuning.arm_target import ArmTarget
from dsv4lab.tuning.knobs import Setting
from dsv4lab.tuning.store import SessionStore

PROFILE = "profile"
"""Kind of record: ``setting`` with ``trace`` and ``busy`` (as ``trace summary``), or with ``why`` there are none."""


def record_profiles(
    target: ArmTarget, store: SessionStore, settings: Sequence[Setting], tell: Callable[[str], None]
) -> None:
    """Profile each of ``settings`` that has no profile on record. One that fails is recorded as such."""
    done = {Setting.from_json(r["setting"]) for r in store.of_kind(PROFILE) if r.get("busy")}
    for setting in dict.fromkeys(settings):
        if setting in done:
            continue
        tell(f"profiling {setting.label}")
        try:
            found = target.profile(setting, store.folder)
        except LabError as error:
            store.append(PROFILE, setting=setting.to_json(), why=str(error))
            continue
        if found is not None:
            store.append(PROFILE, setting=setting.to_json(), trace=found.trace, busy=found.busy.to_json())
