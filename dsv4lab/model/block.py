"""One decoder block: mHC, attention, mHC, experts (dsv4-spec 2.15)."""

from __future__ import annotations

from dsv4lab.model import attention, moe
from dsv4lab.model.builder import OpListBuilder
from dsv4lab.model.compressor import INPUT as ATTENTION_INPUT
from dsv4lab.model.hyper_connection import list_post, list_pre
from dsv4lab.model.weights import LayerWeights


def list_block(b: OpListBuilder, layer: int, w: LayerWeights) -> None:
    """All ops of ``layer``; its last ``mhc_post`` is left pending, to be fused with what follows or flushed."""
    with b.layer(layer):
        list_pre(b, w.hc_attn, w.attention.norm, ATTENTION_INPUT)
        attention.list_attention(b, layer, w.attention)
        list_post(b, attention.OUTPUT)
        list_pre(b, w.hc_ffn, w.moe.norm, moe.INPUT)
        moe.list_moe(b, w.moe)
        list_post(b, moe.OUTPUT)
