"""Canonical names: every spelling leads to them, and the inventory has the shapes of the specification."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.checkpoint.names import Role, canonical_name, expected_tensors
from dsv4lab.checkpoint.spelling import is_draft, module_name, saved_name
from dsv4lab.config.presets import preset


@pytest.mark.parametrize("name", ["tiny", "demo"])
@pytest.mark.parametrize("spell", [str, saved_name, module_name, lambda name: f"model.{name}"])
def test_every_spelling_leads_back(name: str, spell) -> None:
    names = list(expected_tensors(preset(name)))
    spelt = [spell(canonical) for canonical in names]
    assert len(set(spelt)) == len(names)
    assert [canonical_name(raw) for raw in spelt] == names


@pytest.mark.parametrize(
    ("raw", "canonical"),
    [
        ("model.layers.3.attn.norm.weight", "layers.3.attn.kv_norm.weight"),
        ("model.layers.3.self_attn.kv_norm.weight", "layers.3.attn.kv_norm.weight"),
        ("model.layers.3.self_attn.compressor.kv_norm.weight", "layers.3.attn.compressor.norm.weight"),
        ("model.layers.3.self_attn.compressor.gate_proj.weight", "layers.3.attn.compressor.wgate.weight"),
        ("layers.3.mlp.shared_experts.gate_proj.weight", "layers.3.ffn.shared_experts.w1.weight"),
        ("model.layers.3.self_attn.compressor.indexer.position_bias", "layers.3.attn.indexer.compressor.ape"),
        ("model.layers.3.self_attn.compressor.indexer.q_b_proj.weight", "layers.3.attn.indexer.wq_b.weight"),
        ("layers.3.self_attn.wq_a.weight_scale_inv", "layers.3.attn.wq_a.scale"),
        ("layers.3.ffn.experts.17.w2.scale", "layers.3.ffn.experts.17.w2.scale"),
        ("model.layers.3.mlp.experts.gate_up_proj", "layers.3.ffn.experts.gate_up_proj"),
        ("layers.3.mlp.gate.e_score_correction_bias", "layers.3.ffn.gate.bias"),
        ("model.layers.3.attn_hc.scale", "layers.3.hc_attn_scale"),
        ("model.hc_head.hc_scale", "hc_head_scale"),
        ("hc_head.fn", "hc_head_fn"),
        ("model.embed_tokens.weight", "embed.weight"),
        ("mtp.0.self_attn.q_a_proj.weight", "mtp.0.attn.wq_a.weight"),
        ("something.else", "something.else"),
        ("model.something", "something"),
    ],
)
def test_known_spellings(raw: str, canonical: str) -> None:
    assert canonical_name(raw) == canonical


def test_drafts() -> None:
    assert is_draft(canonical_name("model.mtp.2.norm.weight"))
    assert not is_draft("layers.0.attn_norm.weight")


@given(st.text(max_size=40))
def test_any_name_has_a_canonical_form_that_is_stable(raw: str) -> None:
    once = canonical_name(raw)
    assert canonical_name(once) == once or raw.startswith("model.")


def test_inventory_of_flash() -> None:
    tensors = expected_tensors(preset("flash"))
    shapes = {name: spec.shape for name, spec in tensors.items()}
    assert shapes["layers.2.attn.compressor.wkv.weight"] == (1024, 4096)
    assert shapes["layers.3.attn.compressor.wkv.weight"] == (512, 4096)
    assert shapes["layers.2.attn.indexer.compressor.ape"] == (4, 256)
    assert shapes["layers.3.attn.compressor.ape"] == (128, 512)
    assert shapes["layers.0.attn.wo_a.weight"] == (8192, 4096)
    assert shapes["layers.0.ffn.gate.tid2eid"] == (129280, 6)
    assert shapes["layers.3.ffn.gate.bias"] == (256,)
    assert shapes["layers.7.hc_ffn_fn"] == (24, 16384)
    assert "layers.0.attn.compressor.ape" not in shapes
    assert "layers.3.attn.indexer.wq_b.weight" not in shapes
    assert "layers.3.ffn.gate.tid2eid" not in shapes
    assert "layers.2.ffn.gate.bias" not in shapes
    assert {name for name, spec in tensors.items() if spec.role is Role.HASH_TABLE} == {
        f"layers.{layer}.ffn.gate.tid2eid" for layer in range(3)
    }
