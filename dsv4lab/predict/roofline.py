"""A decode step of a preset as an op list with roofline costs: no weights, no torch, any GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dsv4lab.config.model import LayerKind, ModelConfig
from dsv4lab.errors import UsageError
from dsv4lab.overlap.plan import OverlapPlan
from dsv4lab.predict.layer_ops import StepShape, kind_ops, layers_ops, linear, small
from dsv4lab.predict.oplist import Kernel, ListedOp, workload_of
from dsv4lab.queues.costs import Machine
from dsv4lab.queues.workload import Workload

SPECULATIVE = ("none", "mtp", "dspark")
MTP_TOKENS = 2
DRAFT_REUSE = 0.0
"""Share of a request's draft tokens' experts that its first token uses already: nobody has published it, so they count
as independent draws.
"""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is served: ``concurrency`` requests of ``isl`` tokens on ``tp`` ranks, with or without speculation.

    Raises:
        UsageError: a number below 1, a degree that does not divide the heads, or speculation that the model lacks.

    """

    model: ModelConfig
    tp: int = 1
    isl: int = 8192
    concurrency: int = 1
    speculative: str = "none"
    reuse: float = DRAFT_REUSE

    def __post_init__(self) -> None:
        for name in ("tp", "isl", "concurrency"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if self.model.num_attention_heads % self.tp:
            raise UsageError(
                f"tp {self.tp} does not divide the {self.model.num_attention_heads} heads of {self.model.name}"
            )
        if self.speculative not in SPECULATIVE:
            raise UsageError(f"speculative {self.speculative!r} is not one of {', '.join(SPECULATIVE)}")
        if self.speculative == "dspark" and self.model.dspark is None:
            raise UsageError(f"{self.model.name} has no DSpark drafter")
        if self.speculative == "mtp" and not self.model.mtp_layers:
            raise UsageError(f"{self.model.name} has no serial draft layer")

    @property
    def tokens_per_request(self) -> int:
        """Flat tokens of a request in one forward: the verify width, or one."""
        if self.speculative == "dspark":
            assert self.model.dspark is not None
            return self.model.dspark.block_size + 1
        return MTP_TOKENS if self.speculative == "mtp" else 1

    @property
    def tokens(self) -> int:
        """Flat tokens of one forward."""
        return self.concurrency * self.tokens_per_request

    @property
    def shape(self) -> StepShape:
        """The shape of the target's forward."""
        return StepShape(self.concurrency, self.tokens, self.isl, self.tp, self.reuse)


def step_ops(scenario: Scenario) -> list[ListedOp]:
    """Ops of one decode step: the target's forward (its verify), then the draft."""
    c, shape = scenario.model, scenario.shape
    ops = [ListedOp("embed", (small(shape, c.hc_mult * c.hidden_size),), (), ("x",))]
    ops += layers_ops(c, shape)
    ops += _head(c, shape, "")
    ops += _draft(scenario)
    return ops


def _head(c: ModelConfig, shape: StepShape, prefix: str) -> Iterator[ListedOp]:
    yield ListedOp(f"{prefix}mhc_head", (small(shape, c.hc_mult * c.hidden_size),), ("x", "ffn"), ("head.in",))
    project = linear(shape, c.hidden_size, c.vocab_size / shape.tp, 2, "bf16")
    yield ListedOp(f"{prefix}lm_head", (project,), ("head.in",), ("logits",))
    pick = Kernel(shape.tokens * c.vocab_size / shape.tp * 4, 0.0, shape.tokens * 8)
    yield ListedOp(f"{prefix}sample", (pick, small(shape, 64)), ("logits",), ("x", "tokens"))


def _draft(scenario: Scenario) -> Iterator[ListedOp]:
    c = scenario.model
    if scenario.speculative == "none":
        return
    stages = c.dspark.stages if scenario.speculative == "dspark" and c.dspark else c.mtp_layers
    width = scenario.tokens_per_request - 1
    shape = replace(scenario.shape, tokens=scenario.concurrency * width)
    inject = linear(shape, c.hidden_size * (3 if scenario.speculative == "dspark" else 2), c.hidden_size, 1, "fp8")
    yield ListedOp("draft.main", (inject, small(shape, c.hidden_size)), ("tokens",), ("x",))
    stage_ops = kind_ops(c, LayerKind.SWA, shape)
    for _ in range(stages):
        for op in stage_ops:
            yield replace(op, name=f"draft.{op.name}", parts=())
    yield from _head(c, shape, "draft.")
    if scenario.speculative == "dspark":
        assert c.dspark is not None
        row = replace(shape, tokens=scenario.concurrency)
        markov = linear(row, c.dspark.markov_rank, c.vocab_size / shape.tp, 2, "bf16")
        for _ in range(width):
            yield ListedOp("draft.markov", (markov, small(row, 64)), ("logits", "tokens"), ("tokens",))


def decode_step(scenario: Scenario, plan: OverlapPlan, machine: Machine) -> Workload:
    """One decode step of ``scenario`` under ``plan`` with roofline costs on ``machine``."""
    return workload_of(step_ops(scenario), plan, scenario.tokens, machine)
