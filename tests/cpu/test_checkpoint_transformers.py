"""Against transformers itself: what it saves we read, what we write it loads, tensor for tensor."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from dsv4lab.checkpoint.load import load_weights
from dsv4lab.checkpoint.names import canonical_name, expected_tensors
from dsv4lab.checkpoint.spelling import module_name
from dsv4lab.checkpoint.synthetic import random_weights, write_checkpoint
from dsv4lab.config.from_json import load_model_config
from dsv4lab.config.model import ModelConfig, YarnScaling
from dsv4lab.config.presets import preset

transformers = pytest.importorskip("transformers", minversion="5.17", reason="transformers 5.17 or newer")

TINY = preset("tiny")
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 32,
    "qk_rope_head_dim": 8, "q_lora_rank": 16, "o_lora_rank": 8, "o_groups": 2, "index_n_heads": 2, "index_head_dim": 16,
    "index_topk": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "compress_ratios": [128, 4, 0], "num_hash_layers": 1,
}  # fmt: skip
YARN = {"factor": 4.0, "original_max_position_embeddings": 512, "beta_fast": 16.0, "beta_slow": 2.0}


def saved(directory: Path, **fields: object) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    config = transformers.DeepseekV4Config(**{**SIZES, **fields})
    model = transformers.DeepseekV4ForCausalLM(config)
    model.save_pretrained(directory)
    return load_model_config(directory), model.state_dict()


@pytest.mark.parametrize(
    ("fields", "yarn"),
    [
        ({}, None),
        ({"rope_scaling": {"type": "yarn", **YARN}}, YarnScaling(4.0, 16.0, 2.0, 512)),
        ({"rope_parameters": {"rope_type": "yarn", **YARN}}, YarnScaling(4.0, 16.0, 2.0, 512)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reads_what_save_pretrained_writes(tmp_path: Path, fields, yarn, dtype: torch.dtype) -> None:
    config, state = saved(tmp_path, dtype=dtype, **fields)
    assert config.compress_ratios == (128, 4, 0)
    assert config.num_hash_layers == 1
    assert config.yarn == yarn
    assert config.qk_rope_head_dim == 8
    loaded = load_weights(tmp_path, config, dtype)
    experts = {name: tensor for name, tensor in state.items() if ".experts." in name}
    for name, tensor in loaded.items():
        if ".experts." not in name:
            assert torch.equal(tensor, state[module_name(name)].to(tensor.dtype)), name
    for layer in range(3):
        up = experts[f"model.layers.{layer}.mlp.experts.gate_up_proj"]
        for expert in range(4):
            prefix = f"layers.{layer}.ffn.experts.{expert}"
            parts = torch.cat((loaded[f"{prefix}.w1.weight"], loaded[f"{prefix}.w3.weight"]))
            assert torch.equal(parts, up[expert].to(dtype))


def test_our_names_are_those_that_transformers_saves(tmp_path: Path) -> None:
    config, _ = saved(tmp_path / "theirs")
    write_checkpoint(tmp_path / "ours", config, random_weights(config, 0), "hf")
    names = []
    for side in ("theirs", "ours"):
        with safe_open(tmp_path / side / "model.safetensors", framework="pt") as file:
            names.append(sorted(file.keys()))
    assert names[0] == names[1]
    assert {canonical_name(name) for name in names[0]} == set(expected_tensors(config))


@pytest.mark.parametrize("layout", ["hf", "deepseek", "hf-modules"])
@pytest.mark.parametrize("yarn", [None, TINY.yarn])
def test_transformers_loads_what_we_write(tmp_path: Path, layout: str, yarn: YarnScaling | None) -> None:
    config = replace(TINY, yarn=yarn)
    weights = random_weights(config, 3)
    write_checkpoint(tmp_path, config, weights, layout)
    model, report = transformers.DeepseekV4ForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    state = model.state_dict()
    for name, tensor in weights.items():
        if ".experts." not in name:
            assert torch.equal(state[module_name(name)], tensor), name
    packed = state["model.layers.2.mlp.experts.down_proj"]
    assert torch.equal(packed[5], weights["layers.2.ffn.experts.5.w2.weight"])
    assert model.config.rope_parameters["compress"]["rope_type"] == ("default" if yarn is None else "yarn")
    assert model.config.rope_parameters["compress"].get("attention_factor", 1.0) == 1.0
    assert model.config.layer_types[1] == "compressed_sparse_attention"
