"""Other spellings of the canonical names, both ways.

Known are DeepSeek's own, what transformers' ``save_pretrained`` writes, and transformers' module names (dsv4-spec 9.1,
9.3) with the mixtures of them that converters leave behind.
"""

from __future__ import annotations

import re

_LAYER = re.compile(r"((?:layers|mtp)\.\d+)\.(.+)")
_SHARED_COPY = re.compile(r"mtp\.\d+\.(?:emb\.tok_emb|embed|head)\.weight")
_Rules = tuple[tuple[re.Pattern[str], str], ...]


def _rules(*pairs: tuple[str, str]) -> _Rules:
    return tuple((re.compile(pattern), replacement) for pattern, replacement in pairs)


_TOP = _rules(
    (r"embed_tokens\.weight", "embed.weight"),
    (r"lm_head\.weight", "head.weight"),
    (r"hc_head\.(?:hc_)?(fn|base|scale)", r"hc_head_\1"),
)

# Applied in order to what follows `layers.N.`; each pattern is anchored where the part begins.
_INSIDE = _rules(
    (r"^self_attn\.", "attn."),
    (r"^mlp\.", "ffn."),
    (r"^input_layernorm\.", "attn_norm."),
    (r"^post_attention_layernorm\.", "ffn_norm."),
    (r"^(attn|ffn)_hc\.(fn|base|scale)$", r"hc_\1_\2"),
    (r"^attn\.compressor\.indexer\.(?:scorer\.)?weights_proj\.", "attn.indexer.weights_proj."),
    (r"^attn\.compressor\.indexer\.(?:q_b_proj|wq_b)\.", "attn.indexer.wq_b."),
    (r"^attn\.compressor\.indexer\.", "attn.indexer.compressor."),
    (r"^attn\.((?:indexer\.)?compressor)\.kv_norm\.", r"attn.\1.norm."),
    (r"^attn\.((?:indexer\.)?compressor)\.position_bias$", r"attn.\1.ape"),
    (r"^attn\.((?:indexer\.)?compressor)\.kv_proj\.", r"attn.\1.wkv."),
    (r"^attn\.((?:indexer\.)?compressor)\.gate_proj\.", r"attn.\1.wgate."),
    (r"^attn\.norm\.", "attn.kv_norm."),
    (r"^attn\.q_a_norm\.", "attn.q_norm."),
    (r"^attn\.sinks$", "attn.attn_sink"),
    (r"^attn\.q_a_proj\.", "attn.wq_a."),
    (r"^attn\.(indexer\.)?q_b_proj\.", r"attn.\1wq_b."),
    (r"^attn\.kv_proj\.", "attn.wkv."),
    (r"^attn\.o_a_proj\.", "attn.wo_a."),
    (r"^attn\.o_b_proj\.", "attn.wo_b."),
    (r"^ffn\.gate\.e_score_correction_bias$", "ffn.gate.bias"),
    (r"^ffn\.(shared_experts|experts\.\d+)\.gate_proj\.", r"ffn.\1.w1."),
    (r"^ffn\.(shared_experts|experts\.\d+)\.down_proj\.", r"ffn.\1.w2."),
    (r"^ffn\.(shared_experts|experts\.\d+)\.up_proj\.", r"ffn.\1.w3."),
    (r"\.(?:weight_scale_inv|weight_scale)$", ".scale"),
)

_TO_MODULES = _rules(
    (r"^attn\.indexer\.compressor\.", "self_attn.compressor.indexer."),
    (r"^attn\.indexer\.weights_proj\.", "self_attn.compressor.indexer.scorer.weights_proj."),
    (r"^attn\.indexer\.wq_b\.", "self_attn.compressor.indexer.q_b_proj."),
    (r"^attn\.", "self_attn."),
    (r"^ffn\.", "mlp."),
    (r"^attn_norm\.", "input_layernorm."),
    (r"^ffn_norm\.", "post_attention_layernorm."),
    (r"^hc_(attn|ffn)_(fn|base|scale)$", r"\1_hc.\2"),
    (r"^(self_attn\.compressor(?:\.indexer)?)\.norm\.", r"\1.kv_norm."),
    (r"^self_attn\.q_norm\.", "self_attn.q_a_norm."),
    (r"\.attn_sink$", ".sinks"),
    (r"\.ape$", ".position_bias"),
    (r"\.wq_a\.", ".q_a_proj."),
    (r"\.wq_b\.", ".q_b_proj."),
    (r"\.wkv\.", ".kv_proj."),
    (r"\.wgate\.", ".gate_proj."),
    (r"\.wo_a\.", ".o_a_proj."),
    (r"\.wo_b\.", ".o_b_proj."),
    (r"^mlp\.gate\.bias$", "mlp.gate.e_score_correction_bias"),
    (r"^mlp\.(shared_experts|experts\.\d+)\.w1\.", r"mlp.\1.gate_proj."),
    (r"^mlp\.(shared_experts|experts\.\d+)\.w2\.", r"mlp.\1.down_proj."),
    (r"^mlp\.(shared_experts|experts\.\d+)\.w3\.", r"mlp.\1.up_proj."),
)


def canonical_name(raw: str) -> str:
    """The canonical form of ``raw``; a name that no rule knows comes back without its ``model.`` prefix.

    Experts packed into one tensor keep transformers' last part: ``layers.N.ffn.experts.gate_up_proj`` (or
    ``down_proj``). Block scales of quantised weights end in ``.scale``.
    """
    name = raw.removeprefix("model.")
    inside = _LAYER.fullmatch(name)
    if inside is None:
        return next((rule.sub(new, name) for rule, new in _TOP if rule.fullmatch(name)), name)
    return f"{inside[1]}.{_rewrite(inside[2], _INSIDE)}"


def is_draft(canonical: str) -> bool:
    """Whether the tensor belongs to a draft layer, which the main model does without."""
    return canonical.startswith("mtp.")


def is_shared_copy(canonical: str) -> bool:
    """Whether a draft layer repeats the model's embedding or head, which it shares (dsv4-spec 9.1)."""
    return _SHARED_COPY.fullmatch(canonical) is not None


def saved_name(canonical: str) -> str:
    """The name that transformers' ``save_pretrained`` gives: its own outside the layers, DeepSeek's inside them."""
    outside = {"embed.weight": "model.embed_tokens.weight", "head.weight": "head.weight"}
    if canonical in outside:
        return outside[canonical]
    name = re.sub(r"^hc_head_(fn|base|scale)$", r"hc_head.hc_\1", canonical)
    return "model." + re.sub(r"^(layers\.\d+\.attn)\.kv_norm\.", r"\1.norm.", name)


def module_name(canonical: str) -> str:
    """The parameter's name inside transformers' ``DeepseekV4ForCausalLM``, experts one by one."""
    outside = {"embed.weight": "model.embed_tokens.weight", "head.weight": "lm_head.weight"}
    if canonical in outside:
        return outside[canonical]
    inside = _LAYER.fullmatch(canonical)
    if inside is None:
        return "model." + re.sub(r"^hc_head_(fn|base|scale)$", r"hc_head.hc_\1", canonical)
    return f"model.{inside[1]}.{_rewrite(inside[2], _TO_MODULES)}"


def _rewrite(name: str, rules: _Rules) -> str:
    for pattern, replacement in rules:
        name = pattern.sub(replacement, name)
    return name
