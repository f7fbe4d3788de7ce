"""What a bench of overlap measures. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dsv4lab.config.model import ModelConfig
from dsv4lab.config.presets import first_layers, preset
from dsv4lab.errors import UsageError
from dsv4lab.tuning.overlap.arms import default_plans

RANKS = 8
SHARE = f"-tp{RANKS}"
SHAPES = ("flash", f"flash{SHARE}", "pro", f"pro{SHARE}", "demo", "tiny")
KV = ("bf16", "fp8")
DEVICES = ("auto", "cuda", "hip", "cpu")
PAGE = 256


@dataclass(frozen=True, slots=True)
class Settings:
    """``rounds`` in which all arms take turns, ``in_a_row`` steps of each turn; ``replays`` of the best plan compared
    bit for bit; ``minutes`` after which what is left is left out. Raises :class:`UsageError` naming the field.
    """

    shape: str = "flash-tp8"
    device: str = "auto"
    layers: int = 12
    isl: int = 8192
    concurrency: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    plans: tuple[str, ...] = field(default_factory=default_plans)
    rounds: int = 25
    in_a_row: int = 8
    replays: int = 1000
    minutes: float = 8.0
    kv: str = "bf16"
    traced: tuple[str, ...] = ()
    """Plans that are profiled at the levels of ``off``, 1, 4, 8 and 32, beside the best one."""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("shape", self.shape, SHAPES),
            ("kv", self.kv, KV),
            ("device", self.device, DEVICES),
        ):
            if value not in known:
                raise UsageError(f"{name} is {value!r}: it takes {', '.join(known)}")
        for name in ("layers", "isl", "rounds", "in_a_row", "replays"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}: it takes an integer, 1 or more")
        if not self.concurrency or min(self.concurrency) < 1 or len(set(self.concurrency)) < len(self.concurrency):
            raise UsageError(f"concurrency is {list(self.concurrency)}: it takes different integers, 1 or more")
        if not self.minutes > 0:
            raise UsageError(f"minutes is {self.minutes}: it takes a number above 0")

    @property
    def gpus(self) -> int:
        """GPUs that serve the requests: a shard stands for one of eight."""
        return RANKS if self.shape.endswith(SHARE) else 1

    @property
    def pages(self) -> int:
        """Pages of one request."""
        return -(-(self.isl + 64) // PAGE)


def model_of(shape: str, layers: int) -> ModelConfig:
    """The first ``layers`` layers of a model, or of one rank's share of it, without drafters."""
    whole = preset(shape.removesuffix(SHARE))
    cut = first_layers(whole, min(layers, whole.num_hidden_layers))
    cut = replace(cut, name=shape, mtp_layers=0, dspark=None)
    if not shape.endswith(SHARE):
        return cut
    return replace(
        cut,
        vocab_size=whole.vocab_size // RANKS,
        num_attention_heads=whole.num_attention_heads // RANKS,
        o_groups=max(1, whole.o_groups // RANKS),
        moe_intermediate_size=whole.moe_intermediate_size // RANKS,
    )
