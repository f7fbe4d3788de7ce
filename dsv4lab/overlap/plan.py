"""Overlap plans: which op goes to which stream, as data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from dsv4lab.errors import PlanError
from dsv4lab.timeline.program import MAIN

LAYER_KINDS = ("any", "swa", "csa", "hca")
_STREAM = re.compile(r"main|side(0|[1-9]\d?)")


@dataclass(frozen=True, slots=True)
class Rule:
    """Ops whose name matches ``ops`` (shell pattern) go to ``stream`` in layers of kind ``layers`` while the forward
    has ``min_tokens`` to ``max_tokens`` tokens (``None``: no upper bound).

    Raises:
        PlanError: an unknown stream or layer kind, or an empty token range.

    """

    ops: str
    stream: str
    layers: str = "any"
    min_tokens: int = 1
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if not _STREAM.fullmatch(self.stream):
            raise PlanError(f"rule for {self.ops!r}: stream {self.stream!r} is not main, side0, side1, ... side99")
        if self.layers not in LAYER_KINDS:
            raise PlanError(f"rule for {self.ops!r}: layers {self.layers!r} is not one of {', '.join(LAYER_KINDS)}")
        if self.min_tokens < 1 or (self.max_tokens is not None and self.max_tokens < self.min_tokens):
            raise PlanError(f"rule for {self.ops!r}: token range {self.min_tokens}..{self.max_tokens} is empty")

    def matches(self, names: Iterable[str], kind: str, tokens: int) -> bool:
        """Whether the rule applies to an op known by any of ``names``."""
        if self.layers != "any" and self.layers != kind:
            return False
        if tokens < self.min_tokens or (self.max_tokens is not None and tokens > self.max_tokens):
            return False
        return any(fnmatchcase(name, self.ops) for name in names)


@dataclass(frozen=True, slots=True)
class OverlapPlan:
    """Rules in order; the first that matches an op decides its stream, and an op without a rule stays on ``main``.

    Fused ops stay whole where all their parts are on one stream, unless a pattern of ``split`` matches their name.
    Side streams in ``high`` have the higher priority on a GPU: their programs that can begin go before those of others.

    Raises:
        PlanError: something in ``high`` is no side stream.

    """

    name: str
    rules: tuple[Rule, ...] = ()
    split: tuple[str, ...] = ()
    high: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for stream in self.high:
            if stream == MAIN or not _STREAM.fullmatch(stream):
                raise PlanError(
                    f"plan {self.name}: high has {stream!r}, which is not side0, side1, ... side99 "
                    "(main's priority is the engine's field high_priority_main)"
                )

    def splits(self, name: str) -> bool:
        """Whether the fused op ``name`` is taken apart wherever its parts are."""
        return any(fnmatchcase(name, pattern) for pattern in self.split)

    def stream_of(self, names: Iterable[str], kind: str, tokens: int) -> str:
        """Stream of an op known by ``names`` (its own and that of the fused op it is part of)."""
        known = tuple(names)
        return next((r.stream for r in self.rules if r.matches(known, kind, tokens)), MAIN)

    @property
    def side_streams(self) -> tuple[str, ...]:
        """Side streams that the rules name, in order of first mention."""
        return tuple(dict.fromkeys(r.stream for r in self.rules if r.stream != MAIN))

    def fold(self, side_streams: int) -> OverlapPlan:
        """The same plan on at most ``n`` side streams: ``side<i>`` becomes ``side<i mod n>``, or ``main`` if n is 0."""
        if side_streams < 0:
            raise PlanError(f"side_streams must be 0 or more, got {side_streams}")
        rules = tuple(replace(r, stream=_fold(r.stream, side_streams)) for r in self.rules)
        high = tuple(dict.fromkeys(_fold(stream, side_streams) for stream in self.high if side_streams))
        same = (rules, high) == (self.rules, self.high) and self.name != "auto"
        return self if same else replace(self, name=f"{self.name}/{side_streams}", rules=rules, high=high)

    def gated(self, tokens: int) -> OverlapPlan:
        """The same plan in forwards of at most ``tokens`` tokens, where it does not have a narrower range of its own.

        The presets' own gate gives way, whichever is wider.
        """
        inside = (r for r in self.rules if r.min_tokens <= tokens)
        return replace(self, rules=tuple(replace(r, max_tokens=_gate(r.max_tokens, tokens)) for r in inside))

    def check(self, names: Iterable[str]) -> None:
        """Raise ``PlanError`` if a rule's pattern matches none of the op ``names``."""
        known = tuple(names)
        for rule in self.rules:
            if not any(fnmatchcase(name, rule.ops) for name in known):
                raise PlanError(f"plan {self.name}: no op matches {rule.ops!r}; the ops are {', '.join(known)}")

    def to_json(self) -> dict[str, Any]:
        """Plain data; see :func:`plan_from_json`."""
        rules = [
            {
                "ops": r.ops,
                "stream": r.stream,
                "layers": r.layers,
                "min_tokens": r.min_tokens,
                "max_tokens": r.max_tokens,
            }
            for r in self.rules
        ]
        lists = {"split": list(self.split), "high": list(self.high)}
        return {"name": self.name, "rules": rules, **{name: values for name, values in lists.items() if values}}


def _fold(stream: str, side_streams: int) -> str:
    if stream == MAIN or side_streams == 0:
        return MAIN
    return f"side{int(stream.removeprefix('side')) % side_streams}"


def _gate(own: int | None, tokens: int) -> int:
    return tokens if own is None or own == CUDA_TOKEN_GATE else min(own, tokens)


def plan_from_json(data: Mapping[str, Any]) -> OverlapPlan:
    """Build a plan from ``{"name", "rules": [rule, ...], "split"?, "high"?}``, a rule being ``{"ops", "stream",
    "layers"?, "min_tokens"?, "max_tokens"?}``.

    Raises:
        PlanError: a field is missing, unknown or of the wrong type.

    """
    if not isinstance(data.get("rules"), list):
        raise PlanError('an overlap plan is {"name": ..., "rules": [...]}')
    rules = []
    for i, entry in enumerate(data["rules"]):
        if not isinstance(entry, Mapping) or not {"ops", "stream"} <= set(entry):
            raise PlanError(f"plan rule {i} needs the fields ops and stream")
        unknown = set(entry) - set(Rule.__slots__)
        if unknown:
            raise PlanError(f"plan rule {i} has unknown fields {sorted(unknown)}; it takes {list(Rule.__slots__)}")
        rules.append(_rule(i, entry))
    split = _texts(data, "split", "patterns of fused ops")
    return OverlapPlan(str(data.get("name", "custom")), tuple(rules), split, _texts(data, "high", "side streams"))


def _texts(data: Mapping[str, Any], field: str, what: str) -> tuple[str, ...]:
    values = data.get(field, [])
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise PlanError(f"plan field {field} must be a list of {what}, got {values!r}")
    return tuple(values)


def _rule(index: int, entry: Mapping[str, Any]) -> Rule:
    numbers = {k: entry[k] for k in ("min_tokens", "max_tokens") if entry.get(k) is not None}
    texts = {k: entry[k] for k in ("ops", "stream", "layers") if k in entry}
    for key, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise PlanError(f"plan rule {index}: {key} must be a whole number, got {value!r}")
    for key, value in texts.items():
        if not isinstance(value, str):
            raise PlanError(f"plan rule {index}: {key} must be a text, got {value!r}")
    return Rule(**texts, **numbers)


OFF = OverlapPlan("off")
"""Everything on ``main``: the baseline."""

HIP = OverlapPlan(
    "hip",
    (
        Rule("indexer.compressor.*", "side1"),
        Rule("compressor.*", "side0"),
    ),
)
"""Main compressor and indexer compressor on side streams, Q/KV on main (sglang #39314, dsv4-spec 6.3)."""

CUDA_TOKEN_GATE = 64

CUDA = OverlapPlan(
    "cuda",
    (
        Rule("kv_norm_rope*", "side0", max_tokens=CUDA_TOKEN_GATE),
        Rule("indexer.*", "side2", max_tokens=CUDA_TOKEN_GATE),
        Rule("compressor.*", "side1", max_tokens=CUDA_TOKEN_GATE),
    ),
)
"""KV, compressor and indexer each on a stream of its own, up to 64 tokens a forward (dsv4-spec 6.2)."""

MOE = OverlapPlan("moe", (Rule("moe.shared", "side0"),))
"""Shared expert beside the routed experts (``SGLANG_ROCM_USE_MULTI_STREAM``)."""

SIDE = OverlapPlan(
    "side",
    (
        Rule("indexer.weights*", "side0"),
        Rule("indexer.compressor.*", "side0"),
        Rule("compressor.*", "side0"),
    ),
)
"""All that reads the layer's input beside Q/KV on one side stream, its products in one GEMM where that is fused."""

QUERY = OverlapPlan(
    "query",
    (Rule("q_b", "side1", layers="csa"), Rule("qk_norm_rope*", "side1", layers="csa")),
)
"""The attention's query, keys and values beside the indexer, which stays on ``main``: of the two chains that sparse
attention waits for, the shorter one moves."""

KEYS = OverlapPlan(
    "keys",
    (
        *(Rule(ops, "side1", layers="csa") for ops in ("qkv_a", "q_norm", "indexer.q_b", "indexer.q_rope")),
        *(Rule(ops, "side2", layers="csa") for ops in ("q_b", "qk_norm_rope*")),
        Rule("compressor.store", "side0", layers="csa"),
        Rule("compressor.*", "side0", layers="hca"),
    ),
)
"""The index keys on ``main``, and beside them what makes both queries: of the two chains that selection waits for, the
shorter one moves. Without an indexer, the compressor, as in :data:`SIDE`."""

ROUTE = OverlapPlan("route", (Rule("moe.route", "side0"),))
"""The router beside the shared expert, instead of that beside the routed ones: then these have memory to themselves."""

SIDE_GEMM = "compressor.side_gemm"
"""Fused op: the GEMMs of both compressors and of the index weights, which share their input."""

UNFUSED = OverlapPlan("unfused", (), (SIDE_GEMM,))
"""As ``off``, the fused GEMM taken apart: the serial program of engines that do not fuse it."""

HIGH = OverlapPlan("high", high=("side0",))
"""For unions: the first side stream goes first. With ``side`` it has the chain that selection waits for, with ``moe``
the shared expert's programs, which otherwise wait until the last of the routed experts' have begun."""

PRESETS: dict[str, OverlapPlan] = {p.name: p for p in (OFF, HIP, CUDA, MOE, SIDE, QUERY, KEYS, ROUTE, UNFUSED)}
_PARTS = PRESETS | {HIGH.name: HIGH}
"""What unions are made of."""

AUTO = OverlapPlan("auto")
"""No plan but a wish: on a GPU, the preset that is measured to be fastest, batch bucket by batch bucket."""


def is_part(name: str) -> bool:
    """Whether unions may have ``name``: a preset, or ``high``."""
    return name in _PARTS


def is_auto(plan: OverlapPlan) -> bool:
    """Whether ``plan`` is :data:`AUTO`, folded or not."""
    return not plan.rules and plan.name.partition("/")[0] == AUTO.name


def auto_side_streams(plan: OverlapPlan) -> int | None:
    """How many side streams a folded :data:`AUTO` leaves to its presets; None: as they say."""
    _, _, count = plan.name.partition("/")
    return int(count) if count.isdigit() else None


def resolve_plan(setting: str | Mapping[str, Any] | OverlapPlan) -> OverlapPlan:
    """The plan that a preset name (or several, as ``hip+moe``), plan data or a plan stands for.

    Raises:
        PlanError: an unknown preset; the text lists those that exist.

    """
    if isinstance(setting, OverlapPlan):
        return setting
    if isinstance(setting, Mapping):
        return plan_from_json(setting)
    if setting == AUTO.name:
        return AUTO
    parts = setting.split("+")
    unknown = [p for p in parts if not is_part(p)]
    if unknown:
        raise PlanError(
            f"unknown overlap plan {unknown[0]!r}; presets are {', '.join(PRESETS)}, joined by + (with {HIGH.name}, "
            "streams go first), or auto"
        )
    if setting == HIGH.name:
        raise PlanError(f"plan {HIGH.name} moves nothing: it goes with others, as side+{HIGH.name}")
    if len(parts) == 1:
        return PRESETS[setting]
    plans = [_PARTS[p] for p in parts]
    rules, split = (r for p in plans for r in p.rules), (s for p in plans for s in p.split)
    return OverlapPlan(setting, tuple(rules), tuple(split), tuple(dict.fromkeys(s for p in plans for s in p.high)))
