"""Keys to small ids."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dsv4lab.timeline.timeline import UNKNOWN


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
