"""Edits of a plan op by op: what a plan does to a model's ops, moving one of them, and how two plans differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dsv4lab.overlap.plan import OverlapPlan, Rule

_SPECIAL = "*?["

Placed = dict[tuple[str, str], str]
"""Stream by layer kind and op."""


@dataclass(frozen=True, slots=True)
class Known:
    """An op of a model, or a part of a fused one (``fused`` names it), in layers of ``kind``."""

    kind: str
    name: str
    fused: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """What rules may call it."""
        return (self.name, self.fused) if self.fused else (self.name,)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The ops that a plan may place, each once by kind, in program order. ``kinds`` are those of layers."""

    ops: tuple[Known, ...]
    kinds: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", tuple(dict.fromkeys(op.kind for op in self.ops)))

    @classmethod
    def of_table(cls, table: Iterable[Mapping[str, Any]]) -> Vocabulary:
        """From ``EngineClient.ops()``; ops outside the layers are left out, fused ops count as their parts."""
        found: dict[Known, None] = {}
        for op in table:
            if op["kind"]:
                parts = [Known(op["kind"], part, op["name"]) for part in op["parts"]]
                found |= dict.fromkeys(parts or [Known(op["kind"], op["name"])])
        return cls(tuple(found))

    def of_kind(self, kind: str) -> list[Known]:
        """Its ops in layers of ``kind``."""
        return [op for op in self.ops if op.kind == kind]

    def placed(self, plan: OverlapPlan, tokens: int = 1) -> Placed:
        """Where ``plan`` puts every op of a forward of ``tokens`` tokens."""
        return {(op.kind, op.name): plan.stream_of(op.names, op.kind, tokens) for op in self.ops}


def moved(plan: OverlapPlan, words: Vocabulary, op: str, stream: str, kind: str, tokens: int = 1) -> OverlapPlan:
    """``plan`` with ``op`` on ``stream`` in layers of ``kind`` (``any``: of every kind that has it).

    The new rules stand before the old ones; those of earlier moves that say nothing any more are left out. The name
    stays. Raises ``PlanError`` for a stream or kind that there is none of.
    """
    kinds = [kind] if kind != "any" else [k for k in words.kinds if any(o.name == op for o in words.of_kind(k))]
    pattern = _literal(op)
    rules: tuple[Rule, ...] = tuple(Rule(pattern, stream, k) for k in kinds)
    if len(kinds) > 1:
        rules = (Rule(pattern, stream),)
    rest = [r for r in plan.rules if not (r.ops == pattern and (r.layers in kinds or kind == "any") and _always(r))]
    wanted = words.placed(OverlapPlan(plan.name, (*rules, *rest)), tokens)
    return replace(plan, rules=_needed((*rules, *rest), len(rules), wanted, words, tokens))


def _needed(rules: Sequence[Rule], fresh: int, wanted: Placed, words: Vocabulary, tokens: int) -> tuple[Rule, ...]:
    """``rules`` without those among the first ``fresh`` that change nothing."""
    kept = list(rules)
    for rule in rules[:fresh]:
        without = [r for r in kept if r is not rule]
        if words.placed(OverlapPlan("", tuple(without)), tokens) == wanted:
            kept = without
    return tuple(kept)


def difference(plan: OverlapPlan, other: OverlapPlan, words: Vocabulary, tokens: int = 1) -> list[str]:
    """What ``plan`` places elsewhere than ``other``: ``op: main to side0`` with its layer kinds, in program order."""
    now, then = words.placed(plan, tokens), words.placed(other, tokens)
    changes: dict[tuple[str, str, str], list[str]] = {}
    for (kind, name), stream in now.items():
        if then[kind, name] != stream:
            changes.setdefault((name, then[kind, name], stream), []).append(kind)
    return [f"{name}: {before} to {after} ({', '.join(kinds)})" for (name, before, after), kinds in changes.items()]


def as_python(plan: OverlapPlan) -> str:
    """``plan`` as the Python that makes it, for a notebook that has ``import dsv4lab as lab``."""
    lines = [f"    lab.Rule({', '.join(_arguments(rule))}),\n" for rule in plan.rules]
    body = f"(\n{''.join(lines)})" if lines else "()"
    split = f", {plan.split!r}" if plan.split else ""
    high = f", high={plan.high!r}" if plan.high else ""
    return f"lab.OverlapPlan({plan.name!r}, {body}{split}{high})"


def _arguments(rule: Rule) -> list[str]:
    words = [repr(rule.ops), repr(rule.stream)]
    if rule.layers != "any":
        words.append(repr(rule.layers))
    words += [
        f"{n}={getattr(rule, n)}" for n, usual in (("min_tokens", 1), ("max_tokens", None)) if getattr(rule, n) != usual
    ]
    return words


def _always(rule: Rule) -> bool:
    return rule.min_tokens == 1 and rule.max_tokens is None


def _literal(name: str) -> str:
    """``name`` as a pattern that matches nothing else."""
    return "".join(f"[{c}]" if c in _SPECIAL else c for c in name)
