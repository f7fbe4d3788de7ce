"""Metadata of the decode step that most likely comes next, derived while a GPU runs the present one.

A decode step is mostly followed by one of the same requests, each one position on; all of its metadata but the token
ids is known then. Where another step comes (a request ended or began, a page was taken) the metadata is derived anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.metadata import BatchItem, StepMetadata

Places = tuple[tuple[int, int, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Derived:
    """A decode forward's metadata, and the same padded to its bucket if it has one."""

    meta: StepMetadata
    padded: StepMetadata | None


class Ahead:
    """At most one step, of one token a request; ``derive`` gives the metadata of any items."""

    def __init__(self, geometry: Geometry, derive: Callable[[Sequence[BatchItem]], Derived]) -> None:
        self.hits = 0
        self._geometry = geometry
        self._derive = derive
        self._now: Sequence[BatchItem] = ()
        self._places: Places = ()
        self._derived: Derived | None = None

    def expect(self) -> None:
        """The step that :meth:`take` was last asked for runs: derive the one behind it, if its pages have room."""
        if any(self._geometry.pages_for(i.start + 2) > len(i.pages) for i in self._now):
            self._now = ()
        if self._now:
            following = [replace(item, start=item.start + 1) for item in self._now]
            self._places, self._derived = _places(following), self._derive(following)

    def take(self, items: Sequence[BatchItem]) -> Derived | None:
        """What was derived for exactly these items, now with their tokens; none: another kind of step comes."""
        derived, self._derived = self._derived, None
        self._now = items if all(len(i.tokens) == 1 for i in items) else ()
        if derived is None or not self._now or _places(items) != self._places:
            return None
        self.hits += 1
        tokens = torch.tensor([item.tokens[0] for item in items])
        for meta in (derived.meta, derived.padded):
            if meta is not None:
                meta.token_ids[: len(items)] = tokens
        return derived


def _places(items: Sequence[BatchItem]) -> Places:
    return tuple((item.slot, item.start, item.pages) for item in items)
