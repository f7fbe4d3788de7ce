"""The engine's configuration: frozen, every field checked when it is made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from dsv4lab.config import checks
from dsv4lab.env import MAX_QUEUES

PAGE_TOKENS = 256
MAX_HW_QUEUES = MAX_QUEUES
DTYPES = ("float32", "bfloat16")
BACKENDS = ("auto", "torch", "triton", "aiter")
WEIGHTS = ("dense", "stored")
QUEUE_POLICIES = ("round_robin", "refcount")
STREAM_KINDS = ("queue", "serial")
KV_CACHE_DTYPES = ("auto", "float32", "bf16", "fp8")
INDEX_CACHE_DTYPES = ("auto", "float32", "bf16", "fp8", "fp4")
UNIFIED, THREE_POOL = "unified", "three_pool"
KV_LAYOUTS = (UNIFIED, THREE_POOL)
MAX_VERIFY_TOKENS = 64
MAX_RANKS = 64
SPECULATIVE = ("off", "mtp", "dspark")
VERIFICATIONS = ("chain", "block", "coupled")
PAGE_RESERVATIONS = ("on_demand", "full")
PREFIX_CACHE_BYTES = 256 << 20

OverlapSetting = str | Mapping[str, Any]
"""Name of a plan preset, or a plan as ``OverlapPlan.to_json`` writes it; the overlap package checks what is inside."""

_SOURCE = "engine config"
_DEVICE = re.compile(r"cpu|(cuda|hip)(:\d+)?")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What one engine runs, and how. Raises :class:`ConfigError` naming the field on any value it does not take."""

    model: str
    """Preset name or checkpoint directory."""
    device: str = "cpu"
    backend: str = "auto"
    """What runs the ops: torch on the CPU, triton or aiter on GPUs; auto is the best that the machine has."""
    dtype: str = "float32"
    weights: str = "dense"
    """Matrices in ``dtype``, or as stored: fp8, with the experts of a release (and of a preset) in fp4."""
    seed: int = 0
    """Seed of synthetic weights; also the default of sampling seeds."""
    plan: OverlapSetting = "off"
    hw_queues: int = 4
    queue_policy: str = "round_robin"
    side_streams: int | None = None
    """Fold the plan's side streams onto this many; None leaves them as the plan says."""
    max_running_requests: int = 8
    max_total_tokens: int = 16384
    """Capacity of the KV pool in tokens, a multiple of the page size."""
    chunked_prefill_size: int = 512
    streams: str = "queue"
    intra_op_threads: int = 1
    debug_poison: bool = False
    kv_cache_dtype: str = "auto"
    """Format of KV rows; auto is ``dtype``, and fp8 in the three_pool layout."""
    index_cache_dtype: str = "auto"
    """Format of index keys; auto is ``dtype`` on the CPU device and fp8 on GPUs."""
    kv_layout: str = UNIFIED
    """One pool of rows per layer, or the former three pools of fp8 pages."""
    verify_tokens: int = 1
    """Most tokens of one request in a decode step (the verify width of speculation); rings are sized for it."""
    speculative: str = "off"
    """The drafter: off, mtp or dspark. The engine sets ``verify_tokens`` to one more than its drafts."""
    draft_tokens: int | None = None
    """Drafts per request and step; None: 3 for mtp, the whole block for dspark."""
    draft_block: int | None = None
    """Tokens of a DSpark block; None: as the model has it."""
    draft_seed: int | None = None
    """Seed of a synthetic drafter; None: one more than ``seed``. The model's weights do not depend on it."""
    verification: str = "chain"
    """How drafts of requests that sample are accepted: chain, block or coupled."""
    batch_invariant: bool = False
    """Give every row the same bits whatever else is in its forward, so that greedy tokens depend on neither batch nor
    speculation; slower. Prefill chunks are never cut short for another request, and pages are reserved in full."""
    enable_mixed_chunk: bool = False
    """Let prefill chunks and decoding requests share a forward, of ``chunked_prefill_size`` tokens together."""
    page_reservation: str = "on_demand"
    """When a request gets its pages: as it grows, with preemption where they run out, or all of them at admission."""
    enable_prefix_cache: bool = False
    """Keep pages, with an exact snapshot of the slot at each page boundary, for later requests that begin alike."""
    prefix_cache_pages: int | None = None
    """Most pages that the prefix cache holds; None: as many as requests leave free."""
    prefix_cache_bytes: int = PREFIX_CACHE_BYTES
    """Most bytes of its snapshots."""
    num_layers: int | None = None
    """Run the first so many layers of a preset, where it does not fit whole; None: all of them."""
    tp_size: int = 1
    """Ranks that share the heads of each request's attention."""
    dp_size: int = 1
    """Groups of ``tp_size`` ranks, each with requests and a pool of its own; all ranks share the experts."""
    ep_size: int = 1
    """Parts that the experts are dealt into; the ranks of a part share each of its experts. It divides all ranks."""
    shared_expert_fusion: bool = False
    """Run the shared expert as one more routed expert of weight 1."""
    collective_timeout_s: int = 90
    """Seconds that a rank waits for the others in a collective, or while they start, before the run ends."""
    graphs: bool = True
    """On a GPU, run decode and verify steps as captured graphs; the CPU device has none."""
    graph_buckets: tuple[int, ...] | None = None
    """Batch sizes that graphs are captured for; None: 1, 2, 4, 8, 16, 24, ... up to the largest."""
    graph_max_bs: int | None = None
    """Largest batch that runs as a graph; None: ``max_running_requests``."""
    max_graphs: int = 64
    """Most graphs that are held at once."""
    graph_memory_bytes: int | None = None
    """Bytes that temporaries of graphs may grow to before all are captured anew; None: no bound."""
    eager_fork: bool | None = None
    """Let streams fork outside graph capture too; None: but on HIP, where an event wait there has been seen to hang."""
    token_gate: int | None = None
    """Most tokens of a step for which plan ``auto`` looks for overlap; None: no limit."""
    high_priority_main: bool = False
    """Give the main stream of a GPU the higher priority."""

    def __post_init__(self) -> None:
        checks.text(_SOURCE, "model", self.model, "a preset name or a checkpoint directory")
        checks.text(_SOURCE, "device", self.device, "cpu, cuda, cuda:N, hip or hip:N", _DEVICE)
        checks.choice(_SOURCE, "backend", self.backend, BACKENDS)
        checks.choice(_SOURCE, "dtype", self.dtype, DTYPES)
        checks.choice(_SOURCE, "weights", self.weights, WEIGHTS)
        checks.integer(_SOURCE, "seed", self.seed, 0, 2**63 - 1)
        _check_plan(self.plan)
        checks.integer(_SOURCE, "hw_queues", self.hw_queues, 1, MAX_HW_QUEUES)
        checks.choice(_SOURCE, "queue_policy", self.queue_policy, QUEUE_POLICIES)
        if self.side_streams is not None:
            checks.integer(_SOURCE, "side_streams", self.side_streams, 0, 64)
        checks.integer(_SOURCE, "max_running_requests", self.max_running_requests, 1, 65536)
        checks.integer(_SOURCE, "max_total_tokens", self.max_total_tokens, PAGE_TOKENS)
        if self.max_total_tokens % PAGE_TOKENS:
            raise checks.mismatch(
                _SOURCE, "max_total_tokens", self.max_total_tokens, f"a multiple of the page size, {PAGE_TOKENS}"
            )
        checks.integer(_SOURCE, "chunked_prefill_size", self.chunked_prefill_size, 1)
        checks.choice(_SOURCE, "streams", self.streams, STREAM_KINDS)
        checks.integer(_SOURCE, "intra_op_threads", self.intra_op_threads, 1, 1024)
        checks.boolean(_SOURCE, "debug_poison", self.debug_poison)
        checks.choice(_SOURCE, "kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        checks.choice(_SOURCE, "index_cache_dtype", self.index_cache_dtype, INDEX_CACHE_DTYPES)
        checks.choice(_SOURCE, "kv_layout", self.kv_layout, KV_LAYOUTS)
        checks.integer(_SOURCE, "verify_tokens", self.verify_tokens, 1, MAX_VERIFY_TOKENS)
        checks.choice(_SOURCE, "speculative", self.speculative, SPECULATIVE)
        if self.draft_tokens is not None:
            checks.integer(_SOURCE, "draft_tokens", self.draft_tokens, 1, MAX_VERIFY_TOKENS - 1)
        if self.draft_block is not None:
            checks.integer(_SOURCE, "draft_block", self.draft_block, 1, MAX_VERIFY_TOKENS - 1)
            if self.speculative != "dspark":
                raise checks.mismatch(_SOURCE, "draft_block", self.draft_block, "null unless speculative is dspark")
        if self.draft_seed is not None:
            checks.integer(_SOURCE, "draft_seed", self.draft_seed, 0, 2**63 - 1)
        checks.choice(_SOURCE, "verification", self.verification, VERIFICATIONS)
        if self.num_layers is not None:
            checks.integer(_SOURCE, "num_layers", self.num_layers, 1, 1024)
        self._check_ranks()
        self._check_scheduling()
        self._check_invariance()
        self._check_graphs()

    @property
    def world_size(self) -> int:
        """Ranks in all, each a process."""
        return self.tp_size * self.dp_size

    @property
    def reserves_full(self) -> bool:
        """Whether a request gets all of its pages at admission, so that none is stopped and prefilled again."""
        return self.page_reservation == "full" or self.batch_invariant

    @property
    def times_plans(self) -> bool:
        """Whether GPUs can time plans against each other, as plan ``auto`` does: graphs, and one attention group."""
        return self.graphs and self.dp_size == 1

    def _check_ranks(self) -> None:
        for name in ("tp_size", "dp_size", "ep_size"):
            checks.integer(_SOURCE, name, getattr(self, name), 1, MAX_RANKS)
        if self.world_size > MAX_RANKS:
            raise checks.mismatch(_SOURCE, "dp_size", self.dp_size, f"at most {MAX_RANKS} ranks, tp_size x dp_size")
        if self.world_size % self.ep_size:
            raise checks.mismatch(_SOURCE, "ep_size", self.ep_size, f"a divisor of the {self.world_size} ranks")
        checks.boolean(_SOURCE, "shared_expert_fusion", self.shared_expert_fusion)
        if self.shared_expert_fusion and self.ep_size > 1:
            raise checks.mismatch(_SOURCE, "shared_expert_fusion", True, "false where ep_size is above 1")
        checks.integer(_SOURCE, "collective_timeout_s", self.collective_timeout_s, 1, 86400)

    def _check_scheduling(self) -> None:
        checks.boolean(_SOURCE, "enable_mixed_chunk", self.enable_mixed_chunk)
        checks.choice(_SOURCE, "page_reservation", self.page_reservation, PAGE_RESERVATIONS)
        checks.boolean(_SOURCE, "enable_prefix_cache", self.enable_prefix_cache)
        if self.prefix_cache_pages is not None:
            checks.integer(_SOURCE, "prefix_cache_pages", self.prefix_cache_pages, 1)
        checks.integer(_SOURCE, "prefix_cache_bytes", self.prefix_cache_bytes, 1)

    def _check_invariance(self) -> None:
        checks.boolean(_SOURCE, "batch_invariant", self.batch_invariant)
        if not self.batch_invariant:
            return
        if self.world_size > 1:
            expected = "false where there are several ranks: a library adds up their parts in an order of its own"
            raise checks.mismatch(_SOURCE, "batch_invariant", True, expected)
        if self.enable_mixed_chunk:
            expected = "false with enable_mixed_chunk, where a step's attention is that of a prefill or of a decode"
            raise checks.mismatch(_SOURCE, "batch_invariant", True, expected)

    def _check_graphs(self) -> None:
        for name in ("graphs", "high_priority_main"):
            checks.boolean(_SOURCE, name, getattr(self, name))
        if self.eager_fork is not None:
            checks.boolean(_SOURCE, "eager_fork", self.eager_fork)
        for name in ("graph_max_bs", "graph_memory_bytes", "token_gate"):
            if getattr(self, name) is not None:
                checks.integer(_SOURCE, name, getattr(self, name), 1)
        checks.integer(_SOURCE, "max_graphs", self.max_graphs, 1, 4096)
        sizes: Any = self.graph_buckets  # JSON has lists
        if sizes is None:
            return
        if not isinstance(sizes, list | tuple) or not sizes:
            raise checks.mismatch(_SOURCE, "graph_buckets", sizes, "batch sizes, or null")
        for size in sizes:
            checks.integer(_SOURCE, "graph_buckets", size, 1, 65536)
        object.__setattr__(self, "graph_buckets", tuple(sizes))

    def to_json(self) -> dict[str, Any]:
        """All fields, as plain JSON values."""
        out = {field.name: getattr(self, field.name) for field in fields(self)}
        if isinstance(self.plan, Mapping):
            out["plan"] = dict(self.plan)
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EngineConfig:
        """The inverse of :meth:`to_json`; fields left out take their defaults, unknown ones are refused."""
        if not isinstance(data, Mapping):
            raise checks.mismatch(_SOURCE, "(whole)", data, "an object of fields")
        known = [field.name for field in fields(cls)]
        for name in data:
            if name not in known:
                raise checks.mismatch(_SOURCE, str(name), data[name], f"no such field; known are {', '.join(known)}")
        if "model" not in data:
            raise checks.mismatch(_SOURCE, "model", None, "a preset name or a checkpoint directory")
        return cls(**data)


def _check_plan(plan: object) -> None:
    if not (isinstance(plan, str) and plan) and not isinstance(plan, Mapping):
        raise checks.mismatch(_SOURCE, "plan", plan, "the name of a plan preset or a plan as an object")
