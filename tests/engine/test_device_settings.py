"""The table of overlap defaults, from the environment to an engine's configuration."""

from __future__ import annotations

from typing import Any

import pytest

from dsv4lab.config.engine import EngineConfig
from dsv4lab.engine import settings
from dsv4lab.engine.api import engine_config
from dsv4lab.engine.settings import changed_by
from dsv4lab.env import VARIABLES

OVERLAP, MOE = VARIABLES["multi_stream_overlap"], VARIABLES["rocm_multi_stream"]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuda:0 is no Blackwell, cuda:1 is one; nothing is set."""
    for variable in VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)
    found = [{"kind": "cpu", "blackwell": False}] + [{"kind": "cuda", "blackwell": b} for b in (False, True)]
    monkeypatch.setattr(settings, "find_devices", lambda: (found, []))


def tops(plan: Any) -> set[int | None]:
    return {rule["max_tokens"] for rule in plan["rules"]}


@pytest.mark.usefixtures("gpus")
def test_cuda_measures_up_to_its_gate_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    config = engine_config("tiny", device="cuda")
    assert (config.plan, config.token_gate, config.dtype, config.hw_queues) == ("auto", 64, "bfloat16", 8)
    assert engine_config("tiny", device="cuda:1").token_gate == 128
    named = engine_config("tiny", device="cuda", plan="hip")
    assert (named.plan, named.token_gate) == ("hip", None)
    assert tops(engine_config("tiny", device="cuda", plan="moe", token_gate=16).plan) == {16}
    for fields in ({"graphs": False}, {"tp_size": 2}):
        assert engine_config("tiny", device="cuda", **fields).plan == "off"
    monkeypatch.setenv(MOE, "1")
    assert engine_config("tiny", device="cuda").plan == "auto"
    monkeypatch.setenv(OVERLAP, "1")
    both = engine_config("tiny", device="cuda").plan
    assert both["name"] == "cuda+moe"  # type: ignore[index]
    assert tops(both) == {64}
    monkeypatch.delenv(MOE)
    assert engine_config("tiny", device="cuda").plan == "cuda"
    assert tops(engine_config("tiny", device="cuda:1").plan) == {128}
    monkeypatch.setenv(OVERLAP, "0")
    assert engine_config("tiny", device="cuda").plan == "off"


@pytest.mark.usefixtures("gpus")
def test_hip_and_cpu_stay_off_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for device, dtype in (("hip", "bfloat16"), ("cpu", "float32")):
        config = engine_config("tiny", device=device)
        assert (config.plan, config.token_gate, config.dtype) == ("off", None, dtype)
    monkeypatch.setenv(OVERLAP, "1")
    for device in ("hip", "cpu"):
        assert engine_config("tiny", device=device).plan == "hip"


@pytest.mark.usefixtures("gpus")
def test_a_changed_environment_changes_plan_and_gate_together() -> None:
    config = EngineConfig("tiny", device="cuda:1", dtype="bfloat16", plan="auto", token_gate=128)
    assert changed_by({OVERLAP: "0"}, config).plan == "off"
    back = changed_by({OVERLAP: None}, changed_by({OVERLAP: "0"}, config))
    assert (back.plan, back.token_gate) == ("auto", 128)
