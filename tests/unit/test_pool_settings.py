"""Formats of the pool from API, command line and environment, up to the engine's configuration."""

from __future__ import annotations

import pytest

from dsv4lab.engine.api import engine_config
from dsv4lab.engine.settings import changed_by
from dsv4lab.errors import ConfigError

BACKEND = "SGLANG_HACK_FLASHMLA_BACKEND"
UNIFIED_FP8 = "SGLANG_DSV4_UNIFIED_KV_FP8"


def test_environment_then_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (BACKEND, UNIFIED_FP8):
        monkeypatch.delenv(variable, raising=False)
    plain = engine_config()
    assert (plain.kv_layout, plain.kv_cache_dtype, plain.index_cache_dtype) == ("unified", "auto", "auto")
    monkeypatch.setenv(BACKEND, "tilelang")
    assert engine_config().kv_layout == "three_pool"
    assert engine_config(kv_layout="unified").kv_layout == "unified"
    monkeypatch.setenv(BACKEND, "unified_kv_triton")
    monkeypatch.setenv(UNIFIED_FP8, "1")
    config = engine_config(index_cache_dtype="fp4")
    assert (config.kv_layout, config.kv_cache_dtype, config.index_cache_dtype) == ("unified", "fp8", "fp4")
    assert engine_config(kv_cache_dtype="float32").kv_cache_dtype == "float32"
    with pytest.raises(ConfigError, match="kv_cache_dtype: got 'fp9'"):
        engine_config(kv_cache_dtype="fp9")


def test_set_env_changes_the_pool_of_the_next_worker() -> None:
    config = engine_config(kv_layout="unified", kv_cache_dtype="bf16")
    former = changed_by({BACKEND: "triton"}, config)
    assert (former.kv_layout, former.kv_cache_dtype) == ("three_pool", "auto")
    packed = changed_by({BACKEND: None, UNIFIED_FP8: "1"}, former)
    assert (packed.kv_layout, packed.kv_cache_dtype) == ("unified", "fp8")
    assert changed_by({"GPU_MAX_HW_QUEUES": "3"}, former).kv_layout == "three_pool"
