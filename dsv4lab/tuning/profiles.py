"""Profiles of a search session: what its recommended settings and their baselines do on the streams."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from dsv4lab.errors import LabError
from dsv4lab.tuning.arm_target import ArmTarget
from dsv4lab.tuning.knobs import Setting
from dsv4lab.tuning.store import SessionStore

PROFILE = "profile"
"""Kind of record: ``setting`` with ``trace`` and ``busy`` (as ``trace summary``), or with ``why`` there are none."""


def record_profiles(
    target: ArmTarget,
    store: SessionStore,
    settings: Sequence[Setting],
    tell: Callable[[str], None],
    left_s: Callable[[], float] = lambda: math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Profile each of ``settings`` that has no profile on record. One that fails is recorded as such.

    None begins without time: ``left_s()`` has to be above zero, and no less than the longest so far took.
    """
    done = {Setting.from_json(r["setting"]) for r in store.of_kind(PROFILE) if r.get("busy")}
    longest = 0.0
    for setting in dict.fromkeys(settings):
        if setting in done:
            continue
        if left_s() <= longest:
            return
        tell(f"profiling {setting.label}")
        begun = clock()
        _record(target, store, setting)
        longest = max(longest, clock() - begun)


def _record(target: ArmTarget, store: SessionStore, setting: Setting) -> None:
    try:
        found = target.profile(setting, store.folder)
    except LabError as error:
        store.append(PROFILE, setting=setting.to_json(), why=str(error))
        return
    if found is not None:
        store.append(PROFILE, setting=setting.to_json(), trace=found.trace, busy=found.busy.to_json())
