"""One decoder block: mHC, attention, mHC, experts (dsv4-spec 2.15)."""

from __future__ import annotations

from dsv4lab.model import attention, moe
from dsv4lab.model.activations import twin
from dsv4lab.model.builder import OpListBuilder
from dsv4lab.model.compressor import INPUT as ATTENTION_INPUT
from dsv4lab.model.hyper_connection import list_post, list_pre
from dsv4lab.model.weights import LayerWeights


def list_block(b: OpListBuilder, layer: int, w: LayerWeights) -> None:
    """All ops of ``layer``; its last ``mhc_post`` is left pending, to be fused with what follows or flushed."""
    with b.layer(layer):
        width = b.config.hidden_size
        x = twin(b, ATTENTION_INPUT, width, w.attention.qkv_a)
        list_pre(b, w.hc_attn, w.attention.norm, ATTENTION_INPUT, x)
        attention.list_attention(b, layer, w.attention, x)
        list_post(b, attention.OUTPUT)
        y = twin(b, moe.INPUT, width, w.moe.shared_w13 if b.parallel.dp is None else None)
        list_pre(b, w.hc_ffn, w.moe.norm, moe.INPUT, y)
        moe.list_moe(b, w.moe, y)
        list_post(b, moe.OUTPUT)
