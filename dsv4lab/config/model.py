"""The model configuration: frozen, complete, checked."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class LayerKind(IntEnum):
    """Attention kind of a layer, by compression ratio (dsv4-spec 0.3)."""

    SWA = 0
    CSA = 4
    HCA = 128

    @property
    def label(self) -> str:
        """``swa``, ``csa`` or ``hca``."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN of the compress rope table (dsv4-spec 2.6); never an attention factor."""

    factor: float = 16.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    original_max_position: int = 65536


@dataclass(frozen=True, slots=True)
class DsparkConfig:
    """The block drafter of the 0731 and 0813 releases (dsv4-spec 7.3)."""

    target_layer_ids: tuple[int, ...]  # main layers whose output feeds the drafter
    stages: int = 3
    block_size: int = 5
    markov_rank: int = 256
    noise_token_id: int = 128799


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and constants of a DeepSeek-V4 model. Field names follow the released ``config.json``."""

    name: str
    vocab_size: int
    hidden_size: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    sliding_window: int
    compress_ratios: tuple[int, ...]  # one of 0, 4, 128 per main layer
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    n_routed_experts: int
    num_experts_per_tok: int
    n_shared_experts: int
    moe_intermediate_size: int
    num_hash_layers: int
    routed_scaling_factor: float = 1.5
    scoring_func: str = "sqrtsoftplus"
    norm_topk_prob: bool = True
    swiglu_limit: float = 10.0
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    hc_eps: float = 1e-6
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    compress_rope_theta: float = 160000.0
    yarn: YarnScaling | None = None
    max_position_embeddings: int = 1048576
    bos_token_id: int = 0
    eos_token_id: int = 1
    mtp_layers: int = 0
    """Serial draft layers (preview releases: 1)."""
    dspark: DsparkConfig | None = None

    @property
    def num_hidden_layers(self) -> int:
        """Main layers, drafts excluded."""
        return len(self.compress_ratios)

    def kind(self, layer: int) -> LayerKind:
        """Attention kind of ``layer``."""
        return LayerKind(self.compress_ratios[layer])

    def is_hash_layer(self, layer: int) -> bool:
        """Whether ``layer`` routes by token id."""
        return layer < self.num_hash_layers

    @property
    def softmax_scale(self) -> float:
        """``head_dim ** -0.5``, in every layer (dsv4-spec 2.6)."""
        return float(self.head_dim**-0.5)
