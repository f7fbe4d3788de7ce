"""The environment reader: unset is not 0, and a malformed value names its variable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.env import MAX_QUEUES, VARIABLES, EnvSettings, child_environ, read_env
from dsv4lab.errors import EnvError


def test_an_empty_environment_sets_nothing() -> None:
    assert read_env({}) == EnvSettings()
    assert read_env({}).in_force() == {}


def test_values_are_read_and_listed_by_variable() -> None:
    environ = {
        "GPU_MAX_HW_QUEUES": " 8 ",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": "0",
        "SGLANG_ROCM_USE_MULTI_STREAM": "TRUE",
        "SGLANG_HACK_FLASHMLA_BACKEND": "unified_kv_triton",
        "SGLANG_USE_AITER": "off",
        "SGLANG_DSV4_UNIFIED_KV_FP8": "1",
        "PATH": "/bin",
    }
    settings = read_env(environ)
    assert settings == EnvSettings(8, 1, False, True, "unified_kv_triton", False, True)
    assert settings.in_force()["SGLANG_OPT_USE_MULTI_STREAM_OVERLAP"] is False
    assert list(settings.in_force()) == list(VARIABLES.values())


@pytest.mark.parametrize(
    ("variable", "text", "takes"),
    [
        ("GPU_MAX_HW_QUEUES", "abc", "an integer from 1 to 32"),
        ("GPU_MAX_HW_QUEUES", "", "an integer from 1 to 32"),
        ("GPU_MAX_HW_QUEUES", "0", "an integer from 1 to 32"),
        ("GPU_MAX_HW_QUEUES", "4.0", "an integer from 1 to 32"),
        ("GPU_MAX_HW_QUEUES", "٤", "an integer from 1 to 32"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "9" * 40, "an integer from 1 to 32"),
        ("SGLANG_OPT_USE_MULTI_STREAM_OVERLAP", "2", "0 or 1"),
        ("SGLANG_USE_AITER", "", "0 or 1"),
        ("SGLANG_HACK_FLASHMLA_BACKEND", "unified", "unified_kv_triton"),
    ],
)
def test_malformed_values_are_errors_that_name_the_variable(variable: str, text: str, takes: str) -> None:
    with pytest.raises(EnvError) as caught:
        read_env({variable: text})
    assert variable in str(caught.value)
    assert takes in str(caught.value)
    assert caught.value.exit_code == 2


@given(st.text())
def test_an_integer_variable_takes_its_range_and_nothing_else(text: str) -> None:
    try:
        value = read_env({"GPU_MAX_HW_QUEUES": text}).gpu_max_hw_queues
    except EnvError:
        assert text.strip() not in {str(n) for n in range(1, MAX_QUEUES + 1)}
    else:
        assert value is not None
        assert int(text) == value
        assert 1 <= value <= MAX_QUEUES


def test_a_child_gets_the_parents_environment_with_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("DROPPED", "1")
    child = child_environ({"DROPPED": None, "GPU_MAX_HW_QUEUES": "2"})
    assert child["KEPT"] == "1"
    assert child["GPU_MAX_HW_QUEUES"] == "2"
    assert "DROPPED" not in child
