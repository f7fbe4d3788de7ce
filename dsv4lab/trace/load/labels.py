"""Keys to small ids."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from dsv4lab.timeline.timeline import UNKNOWN, Ids


def by_appearance(keys: list[Any], *columns: Ids) -> tuple[list[Any], list[Ids]]:
    """``keys`` in the order in which ``columns``, one after the other, first name them, and the columns to match.

    Keys that no column names are dropped.
    """
    every = np.concatenate(columns) if columns else np.empty(0, np.int32)
    first = np.full(len(keys) + 1, len(every), np.int64)
    first[every[::-1]] = np.arange(len(every))[::-1]
    order = [at for at in np.argsort(first[:-1], kind="stable").tolist() if first[at] < len(every)]
    table = np.full(len(keys) + 1, UNKNOWN, np.int32)
    table[order] = np.arange(len(order))
    return [keys[at] for at in order], [table[column] for column in columns]


class _Ids(dict[Any, int]):
    """Gives every new key the next number; ``None`` is ``UNKNOWN`` and takes none."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self) - 1
        return number


class Labels:
    """Distinct keys in order of appearance, as small ids."""

    def __init__(self) -> None:
        self._ids = _Ids({None: UNKNOWN})

    def column(self, keys: Iterable[Any]) -> list[int]:
        """The id of every key; ``None`` is ``UNKNOWN``."""
        return list(map(self._ids.__getitem__, keys))

    @property
    def keys(self) -> list[Any]:
        """The keys in order of their ids."""
        return list(self._ids)[1:]

    def texts(self) -> list[str]:
        """The keys as text, in order of their ids."""
        return [str(key) for key in self.keys]
