"""EngineConfig: every field checked, and its JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.config.engine import EngineConfig
from dsv4lab.errors import ConfigError

BAD = [
    ("model", ""),
    ("model", None),
    ("device", "tpu"),
    ("device", "cuda:x"),
    ("device", 0),
    ("dtype", "float16"),
    ("seed", -1),
    ("seed", 2**63),
    ("seed", True),
    ("plan", ""),
    ("plan", 3),
    ("plan", None),
    ("hw_queues", 0),
    ("hw_queues", 33),
    ("hw_queues", "4"),
    ("queue_policy", "random"),
    ("side_streams", -1),
    ("side_streams", 1.0),
    ("max_running_requests", 0),
    ("max_total_tokens", 300),
    ("max_total_tokens", 0),
    ("chunked_prefill_size", 0),
    ("streams", "parallel"),
    ("intra_op_threads", 0),
    ("debug_poison", 1),
]


@pytest.mark.parametrize(("field", "value"), BAD)
def test_bad_value_names_the_field_and_the_value(field: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(**{"model": "tiny", field: value})  # type: ignore[arg-type]
    text = str(caught.value)
    assert text.startswith(f"engine config: {field}: got {value!r}, expected ")
    assert "\n" not in text


def test_defaults() -> None:
    config = EngineConfig("tiny")
    assert (config.device, config.dtype, config.plan, config.hw_queues) == ("cpu", "float32", "off", 4)
    assert (config.max_total_tokens, config.chunked_prefill_size, config.side_streams) == (16384, 512, None)


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:3", "hip", "hip:0"])
def test_devices(device: str) -> None:
    assert EngineConfig("tiny", device=device).device == device


@given(
    plan=st.one_of(st.sampled_from(["off", "hip", "cuda"]), st.just({"name": "mine", "rules": []})),
    hw_queues=st.integers(1, 32),
    side_streams=st.one_of(st.none(), st.integers(0, 4)),
    pages=st.integers(1, 1000),
    debug_poison=st.booleans(),
)
def test_json_round_trip(plan, hw_queues, side_streams, pages, debug_poison) -> None:
    config = EngineConfig(
        "tiny",
        plan=plan,
        hw_queues=hw_queues,
        side_streams=side_streams,
        max_total_tokens=pages * 256,
        debug_poison=debug_poison,
    )
    assert EngineConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_from_json_takes_defaults_and_refuses_the_unknown() -> None:
    assert EngineConfig.from_json({"model": "tiny"}) == EngineConfig("tiny")
    with pytest.raises(ConfigError, match=r"hw_queue: got 4, expected no such field; known are model, device, "):
        EngineConfig.from_json({"model": "tiny", "hw_queue": 4})
    with pytest.raises(ConfigError, match="model: got None"):
        EngineConfig.from_json({})
    with pytest.raises(ConfigError, match="an object of fields"):
        EngineConfig.from_json([])  # type: ignore[arg-type]


def test_batch_invariance_is_refused_where_it_cannot_be_promised() -> None:
    config = EngineConfig("tiny", batch_invariant=True)
    assert config.to_json()["batch_invariant"] is True
    assert config.reserves_full, "nobody is stopped and prefilled again"
    assert not EngineConfig("tiny").reserves_full
    for field, text in (("tp_size", "several ranks"), ("enable_mixed_chunk", "that of a prefill or of a decode")):
        with pytest.raises(ConfigError, match=f"batch_invariant: got True, expected false .*{text}"):
            EngineConfig("tiny", batch_invariant=True, **{field: 2 if field == "tp_size" else True})
    with pytest.raises(ConfigError, match="batch_invariant: got 1"):
        EngineConfig("tiny", batch_invariant=1)  # type: ignore[arg-type]
