"""Correctness before speed: greedy tokens of every cell must be the same for the same prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dsv4lab.tuning.space import Cell
from dsv4lab.tuning.trial import cell_from_json, cell_to_json

Tokens = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between two cells: at new token ``position`` of prompt ``prompt``.

    ``expected`` is what ``reference`` gave and ``got`` what ``cell`` gave; None where one ended earlier.
    """

    cell: Cell
    reference: Cell
    prompt: int
    position: int
    expected: int | None
    got: int | None

    def __str__(self) -> str:
        return (
            f"prompt {self.prompt}, new token {self.position}: [{self.cell.label}] gave {self.got}, "
            f"[{self.reference.label}] gave {self.expected}"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Divergence:
        """Inverse of :meth:`to_json`; other keys are ignored."""
        return cls(
            cell=cell_from_json(data["cell"]),
            reference=cell_from_json(data["reference"]),
            prompt=data["prompt"],
            position=data["position"],
            expected=data["expected"],
            got=data["got"],
        )


class Gate:
    """Compares what each cell generates with what the first cell generated for the same prompts.

    Cells of one concurrency level run the same shapes, so equal tokens follow from equal bits. Between levels the batch
    differs and with it the rounding of matrix products; ``across_levels`` says whether tokens are compared there too
    (they agree in float32). Prompt ``i`` is the same at every level.
    """

    def __init__(self, *, across_levels: bool = True) -> None:
        self._across_levels = across_levels
        self._reference: dict[tuple[int, int], tuple[Cell, list[int]]] = {}
        self._new: list[tuple[int, int]] = []

    def check(self, cell: Cell, tokens: Tokens, *, reference: bool = True) -> Divergence | None:
        """The first divergence of ``tokens`` (one list per prompt) from the reference, or None.

        Prompts seen for the first time become the reference, unless ``reference`` is false.
        """
        for prompt, row in enumerate(tokens):
            for key in self._keys(cell, prompt):
                known = self._reference.get(key)
                if known is None and reference:
                    self._reference[key] = (cell, list(row))
                    self._new.append(key)
                position = first_divergence(known[1], row) if known else None
                if known and position is not None:
                    return Divergence(cell, known[0], prompt, position, _at(known[1], position), _at(row, position))
        return None

    def take_new(self) -> list[dict[str, Any]]:
        """The references added since the last call, as records keep them."""
        new, self._new = self._new, []
        return [
            {"level": level, "prompt": prompt, "cell": cell_to_json(cell), "tokens": tokens}
            for level, prompt in new
            for cell, tokens in [self._reference[level, prompt]]
        ]

    def restore(self, data: Sequence[Mapping[str, Any]]) -> None:
        """Take the references of an earlier part of the session, from :meth:`take_new`."""
        for entry in data:
            key = (entry["level"], entry["prompt"])
            self._reference[key] = (cell_from_json(entry["cell"]), list(entry["tokens"]))

    def _keys(self, cell: Cell, prompt: int) -> list[tuple[int, int]]:
        own = (cell.concurrency_level, prompt)
        return [own, (0, prompt)] if self._across_levels else [own]


def first_divergence(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The first position where ``a`` and ``b`` differ (in length too), None if they are equal."""
    for position, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return position
    return None if len(a) == len(b) else min(len(a), len(b))


def _at(row: Sequence[int], position: int) -> int | None:
    return row[position] if position < len(row) else None
