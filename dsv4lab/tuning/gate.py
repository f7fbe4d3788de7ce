"""Correctness before speed: greedy tokens of every cell must be the same for the same prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from dsv4lab.tuning.space import Cell
from dsv4lab.tuning.trial import cell_from_json, cell_to_json

Rows = Sequence[Sequence[int]]


TOKENS, LOGITS = "tokens", "logits"


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between two cells: at new token ``position`` of prompt ``prompt``.

    ``what`` is ``tokens``, or ``logits`` where the tokens agree and the bits of the logits behind them do not.
    ``expected`` is what ``reference`` gave and ``got`` what ``cell`` gave (tokens, or fingerprints of logits); None
    where one ended earlier.
    """

    what: str
    cell: Cell
    reference: Cell
    prompt: int
    position: int
    expected: int | None
    got: int | None

    def __str__(self) -> str:
        where = f"prompt {self.prompt}, new token {self.position}"
        if self.what == LOGITS:
            return f"{where}: the logits of [{self.cell.label}] are not those of [{self.reference.label}], bit for bit"
        return f"{where}: [{self.cell.label}] gave {self.got}, [{self.reference.label}] gave {self.expected}"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Divergence:
        """Inverse of :meth:`to_json`; other keys are ignored."""
        return cls(
            what=data["what"],
            cell=cell_from_json(data["cell"]),
            reference=cell_from_json(data["reference"]),
            prompt=data["prompt"],
            position=data["position"],
            expected=data["expected"],
            got=data["got"],
        )


class _Key(NamedTuple):
    what: str
    level: int
    prompt: int


class Gate:
    """Compares what each cell generates with what the first cell generated for the same prompts.

    Cells of one concurrency level run the same shapes, so tokens and logits must agree bit for bit. Between levels the
    batch differs and with it the rounding of matrix products; ``across_levels`` says whether tokens are compared there
    too (they agree in float32). Prompt ``i`` is the same at every level.
    """

    def __init__(self, *, across_levels: bool = True) -> None:
        self._across_levels = across_levels
        self._reference: dict[_Key, tuple[Cell, list[int]]] = {}
        self._new: list[_Key] = []

    def check(self, cell: Cell, tokens: Rows, fingerprints: Rows = (), *, reference: bool = True) -> Divergence | None:
        """The first divergence of ``tokens`` (one list per prompt) from the reference, or None.

        ``fingerprints`` of the logits are compared too where they were taken. Prompts seen for the first time become
        the reference, unless ``reference`` is false.
        """
        for what, rows in ((TOKENS, tokens), (LOGITS, fingerprints)):
            for prompt, row in enumerate(rows):
                for key in self._keys(what, cell, prompt):
                    if row and (found := self._compare(key, cell, row, reference)) is not None:
                        return found
        return None

    def take_new(self) -> list[dict[str, Any]]:
        """The references added since the last call, as records keep them."""
        new, self._new = self._new, []
        return [
            {**key._asdict(), "cell": cell_to_json(cell), "values": values}
            for key in new
            for cell, values in [self._reference[key]]
        ]

    def restore(self, data: Sequence[Mapping[str, Any]]) -> None:
        """Take the references of an earlier part of the session, from :meth:`take_new`."""
        for entry in data:
            key = _Key(entry["what"], entry["level"], entry["prompt"])
            self._reference[key] = (cell_from_json(entry["cell"]), list(entry["values"]))

    def _compare(self, key: _Key, cell: Cell, row: Sequence[int], reference: bool) -> Divergence | None:
        if key not in self._reference:
            if reference:
                self._reference[key] = (cell, list(row))
                self._new.append(key)
            return None
        source, expected = self._reference[key]
        at = first_divergence(expected, row)
        if at is None:
            return None
        return Divergence(key.what, cell, source, key.prompt, at, _value(expected, at), _value(row, at))

    def _keys(self, what: str, cell: Cell, prompt: int) -> list[_Key]:
        own = _Key(what, cell.concurrency_level, prompt)
        return [own, _Key(what, 0, prompt)] if what == TOKENS and self._across_levels else [own]


def first_divergence(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The first position where ``a`` and ``b`` differ (in length too), None if they are equal."""
    for position, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return position
    return None if len(a) == len(b) else min(len(a), len(b))


def _value(row: Sequence[int], position: int) -> int | None:
    return row[position] if position < len(row) else None
