"""config.json: both layouts, and damage that must be told apart by file, field, got and expected."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.config.from_json import load_model_config, model_config_from_json
from dsv4lab.config.model import YarnScaling
from dsv4lab.config.presets import preset
from dsv4lab.config.to_json import released_config, transformers_config
from dsv4lab.errors import ConfigError

TINY = preset("tiny")
HF = transformers_config(TINY, "float32")
RELEASED = released_config(TINY, "bfloat16")
SOURCE = "tiny/config.json"


def changed(base: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A copy with fields set; ... removes one."""
    data = copy.deepcopy(base)
    for name, value in fields.items():
        if value is ...:
            data.pop(name, None)
        else:
            data[name] = value
    return data


def refusal(data: object) -> str:
    with pytest.raises(ConfigError) as caught:
        model_config_from_json(data, SOURCE)
    text = str(caught.value)
    assert text.startswith(f"{SOURCE}: ")
    assert "\n" not in text
    return text.removeprefix(f"{SOURCE}: ")


@pytest.mark.parametrize("extra", [1, 3])
def test_further_entries_of_compress_ratios_are_draft_stages(extra: int) -> None:
    data = changed(RELEASED, compress_ratios=[*TINY.compress_ratios, *[0] * extra])
    config = model_config_from_json(data, SOURCE)
    assert config.compress_ratios == TINY.compress_ratios
    assert config.dspark is not None
    assert config.dspark.stages == extra


def test_compress_ratios_may_stand_in_for_layer_types() -> None:
    data = changed(HF, layer_types=..., compress_ratios=list(TINY.compress_ratios))
    assert model_config_from_json(data, SOURCE) == TINY


def test_neither_schedule_is_an_error() -> None:
    text = refusal(changed(HF, layer_types=...))
    assert text == "layer_types: missing, expected it or compress_ratios, with an entry for each of 4 layers"
    text = refusal(changed(HF, mlp_layer_types=...))
    assert text.startswith("mlp_layer_types: missing, expected it or num_hash_layers")


def test_without_yarn() -> None:
    plain = replace(TINY, yarn=None)
    assert model_config_from_json(transformers_config(plain, "float32"), SOURCE) == plain
    assert model_config_from_json(released_config(plain, "float32"), SOURCE) == plain


def test_yarn_spellings() -> None:
    yarn = {"factor": 16, "original_max_position_embeddings": 1024, "beta_fast": 32, "beta_slow": 1}
    for scaling in (
        {"type": "yarn", **yarn},
        {"rope_type": "yarn", **yarn},
        {"type": "yarn", "rope_type": "yarn", **yarn},
    ):
        assert model_config_from_json(changed(RELEASED, rope_scaling=scaling), SOURCE) == TINY
        flat = changed(HF, rope_parameters={**scaling, "attention_factor": 1.0})
        assert model_config_from_json(flat, SOURCE) == TINY
    short = {"type": "yarn", "factor": 2, "original_max_position_embeddings": 4096}
    assert model_config_from_json(changed(RELEASED, rope_scaling=short), SOURCE).yarn == YarnScaling(
        2.0, 32.0, 1.0, 4096
    )


def test_nested_tables_replace_the_outer_thetas() -> None:
    data = changed(HF, rope_theta=..., compress_rope_theta=..., qk_rope_head_dim=...)
    assert model_config_from_json(data, SOURCE) == TINY
    assert model_config_from_json(changed(HF, partial_rotary_factor=...), SOURCE) == TINY


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"factor": 0.5}, "factor: got 0.5, expected a number of at least 1"),
        ({"factor": None}, "factor: missing"),
        ({"original_max_position_embeddings": None}, "original_max_position_embeddings: missing"),
        ({"beta_slow": 32}, "beta_slow: got 32, expected beta_slow below beta_fast"),
        ({"attention_factor": 1.277}, "attention_factor: got 1.277, expected 1.0 (the model applies no attention"),
        ({"attention_factor": None}, "attention_factor: missing, expected 1.0"),
        ({"truncate": False}, "truncate: got False, expected True"),
        ({"rope_type": "longrope"}, "rope_type: got 'longrope', expected default or yarn"),
        ({"rope_theta": 1.0}, "rope_theta: got 1.0, expected the same as compress_rope_theta = 160000"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: got 0.5, expected 16/64"),
    ],
)
def test_bad_yarn(change: dict[str, Any], text: str) -> None:
    data = copy.deepcopy(HF)
    data["rope_parameters"]["compress"].update(change)
    assert refusal(data).startswith(f"rope_parameters.compress.{text}")


def test_main_rope_is_never_scaled() -> None:
    data = copy.deepcopy(HF)
    data["rope_parameters"]["main"]["rope_type"] = "yarn"
    assert refusal(data) == "rope_parameters.main.rope_type: got 'yarn', expected default"
    del data["rope_parameters"]["main"]
    assert refusal(data) == "rope_parameters.main: missing, expected an object"


UNSUPPORTED = [
    ({"attention_bias": True}, "attention_bias: got True, expected False (projections with a bias"),
    ({"mlp_bias": True}, "mlp_bias: got True"),
    ({"tie_word_embeddings": True}, "tie_word_embeddings: got True"),
    ({"num_key_value_heads": 2}, "num_key_value_heads: got 2, expected 1"),
    ({"num_key_value_heads": True}, "num_key_value_heads: got True, expected 1"),
    ({"hidden_act": "gelu"}, "hidden_act: got 'gelu', expected 'silu'"),
    ({"norm_topk_prob": False}, "norm_topk_prob: got False"),
    ({"scoring_func": "softmax"}, "scoring_func: got 'softmax', expected sqrtsoftplus"),
    ({"topk_method": "greedy"}, "topk_method: got 'greedy'"),
    ({"n_shared_experts": 2}, "n_shared_experts: got 2, expected an integer equal to 1"),
    ({"compress_rates": {"compressed_sparse_attention": 8}}, "compress_rates.compressed_sparse_attention: got 8"),
    ({"compress_rate_csa": 2}, "compress_rate_csa: got 2, expected 4"),
    ({"compress_rate_hca": 64}, "compress_rate_hca: got 64, expected 128"),
    ({"model_type": "llama"}, "model_type: got 'llama', expected deepseek_v4"),
    ({"model_type": "deepseek_v41"}, "model_type: got 'deepseek_v41', expected deepseek_v4; V4.1 shares compressed"),
    ({"model_type": "deepseek_v41_text"}, "model_type: got 'deepseek_v41_text', expected deepseek_v4; V4.1"),
    ({"architectures": ["LlamaForCausalLM"]}, "architectures: got ['LlamaForCausalLM'], expected a list with"),
    ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config.quant_method: got 'gptq', expected fp8"),
    ({"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}}, "quantization_config.fmt: got 'e5m2'"),
    ({"expert_dtype": "int4"}, "expert_dtype: got 'int4', expected fp4 or fp8"),
]


@pytest.mark.parametrize("base", [HF, RELEASED])
@pytest.mark.parametrize(("fields", "text"), UNSUPPORTED)
def test_unsupported(base: dict[str, Any], fields: dict[str, Any], text: str) -> None:
    assert refusal(changed(base, **fields)).startswith(text)


INCONSISTENT = [
    ({"o_groups": 3}, "o_groups: got 3, expected a divisor of num_attention_heads = 4"),
    ({"num_experts_per_tok": 9}, "num_experts_per_tok: got 9, expected an integer from 1 to 8"),
    ({"qk_rope_head_dim": 15}, "qk_rope_head_dim: got 15, expected an even number"),
    ({"qk_rope_head_dim": 66}, "qk_rope_head_dim: got 66"),
    ({"index_head_dim": 8}, "index_head_dim: got 8, expected at least the rope dimensions, 16"),
    ({"eos_token_id": 512}, "eos_token_id: got 512, expected an integer from 0 to 511"),
    ({"eos_token_id": [1, 2]}, "eos_token_id: got [1, 2], expected one token"),
    ({"hidden_size": 0}, "hidden_size: got 0, expected an integer from 1 to"),
    ({"hidden_size": True}, "hidden_size: got True"),
    ({"hidden_size": 64.0}, "hidden_size: got 64.0"),
    ({"hidden_size": "64"}, "hidden_size: got '64'"),
    ({"hc_eps": float("nan")}, "hc_eps: got nan, expected a finite number above 0"),
    ({"swiglu_limit": 0}, "swiglu_limit: got 0"),
    ({"rms_norm_eps": 10**400}, "rms_norm_eps: got 1000"),
]


@pytest.mark.parametrize("base", [HF, RELEASED])
@pytest.mark.parametrize(("fields", "text"), INCONSISTENT)
def test_inconsistent_or_out_of_range(base: dict[str, Any], fields: dict[str, Any], text: str) -> None:
    assert refusal(changed(base, **fields)).startswith(text)


def test_schedules_that_disagree_or_do_not_fit() -> None:
    assert refusal(changed(HF, compress_ratios=[0, 4, 4, 4])).startswith(
        "compress_ratios: got [0, 4, 4, 4], expected the"
    )
    assert refusal(changed(HF, layer_types=HF["layer_types"][:3])).startswith("layer_types: got [")
    assert refusal(changed(HF, layer_types=["full_attention"] * 4)).startswith("layer_types[0]: got 'full_attention'")
    assert refusal(changed(HF, mlp_layer_types=["moe", "hash_moe", "moe", "moe"])).endswith(
        "expected every hash_moe before the first moe"
    )
    assert refusal(changed(HF, num_hash_layers=3)).startswith("num_hash_layers: got 3, expected 2")
    assert refusal(changed(RELEASED, compress_ratios=[0, 4])).startswith(
        "compress_ratios: got [0, 4], expected at least"
    )
    assert refusal(changed(RELEASED, compress_ratios=[0, 4, 2, 4])).startswith(
        "compress_ratios[2]: got 2, expected 0, 4 or 128"
    )
    assert refusal(changed(RELEASED, compress_ratios=[0, 4, 128, 4, 4])).startswith(
        "compress_ratios[4]: got 4, expected 0 (draft"
    )
    assert refusal(changed(RELEASED, num_hash_layers=5)).startswith(
        "num_hash_layers: got 5, expected an integer from 0 to 4"
    )


def test_a_misspelt_field_is_pointed_out() -> None:
    data = changed(HF, hidden_size=..., hiden_size=64)
    assert refusal(data) == "hidden_size: missing, expected an integer of at least 1 (there is a 'hiden_size')"


def test_end_token() -> None:
    assert model_config_from_json(changed(HF, eos_token_id=[7]), SOURCE).eos_token_id == 7
    assert model_config_from_json(changed(HF, eos_token_id=None), SOURCE).eos_token_id == -1
    assert model_config_from_json(changed(HF, eos_token_id=...), SOURCE).eos_token_id == 1


# Deleting or nulling one of these leaves a file that is still complete.
OPTIONAL = {
    "architectures", "dtype", "torch_dtype", "compress_rates", "qk_rope_head_dim", "partial_rotary_factor",
    "rope_theta", "compress_rope_theta", "max_position_embeddings", "bos_token_id", "eos_token_id",
    "num_key_value_heads", "hidden_act", "attention_bias", "attention_dropout", "tie_word_embeddings", "norm_topk_prob",
    "num_nextn_predict_layers", "topk_method", "rope_scaling", "rope_parameters", "dspark_num_stages",
}  # fmt: skip
UNREAD = {"dtype", "torch_dtype", "attention_dropout", "dspark_num_stages"}
JUNK = st.one_of(
    st.text(max_size=8),
    st.just(-1),
    st.just(10**400),
    st.just(float("nan")),
    st.just([[]]),
    st.just([None]),
    st.just({"a": 1}),
    st.just([{"": 0}]),
    st.binary(max_size=4),
)


@given(base=st.sampled_from([HF, RELEASED]), data=st.data())
def test_damaging_one_field_names_it(base: dict[str, Any], data: st.DataObject) -> None:
    field = data.draw(st.sampled_from(sorted(set(base) - UNREAD)))
    value = data.draw(JUNK)
    text = refusal(changed(base, **{field: value}))
    assert field in text


@given(base=st.sampled_from([HF, RELEASED]), data=st.data())
def test_removing_a_required_field_names_it(base: dict[str, Any], data: st.DataObject) -> None:
    field = data.draw(st.sampled_from(sorted(set(base) - OPTIONAL)))
    assert field in refusal(changed(base, **{field: data.draw(st.sampled_from([..., None]))}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(HF)), inner, max_size=3),
    max_leaves=10,
)


@given(base=st.sampled_from([HF, RELEASED, {}]), damage=st.dictionaries(st.sampled_from(sorted(HF)), JSON, max_size=4))
def test_any_damage_is_a_config_error_or_a_config(base: dict[str, Any], damage: dict[str, Any]) -> None:
    text = ""
    try:
        model_config_from_json({**base, **damage}, SOURCE)
    except ConfigError as error:
        text = str(error)
    assert "\n" not in text


@pytest.mark.parametrize("data", [None, [], "x", 3])
def test_not_an_object(data: object) -> None:
    assert refusal(data).startswith("(whole file): got ")


def test_load_names_the_directory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(HF))
    assert load_model_config(tmp_path) == replace(TINY, name=tmp_path.name)
    assert load_model_config(str(tmp_path)).name == tmp_path.name


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b'{"model_type": ', "not JSON: Expecting value at line 1, column"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b"[" * 100000, "not JSON that can be read (RecursionError"),
        (b"[]", "(whole file): got [], expected a JSON object"),
        (b"", "not JSON: Expecting value at line 1, column 1"),
    ],
)
def test_unreadable_files(tmp_path: Path, content: bytes, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_model_config(tmp_path)
    assert str(caught.value).startswith(f"{file}: {text}")


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: cannot be read \(No such file"):
        load_model_config(tmp_path)
    with pytest.raises(ConfigError, match=r"config\.json: cannot be read"):
        load_model_config("nul\0byte")
