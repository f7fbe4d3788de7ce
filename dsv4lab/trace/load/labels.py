"""Keys to small ids."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dsv4lab.timeline.timeline import UNKNOWN


class Labels:
    """Distinct keys in order of appearance, as small ids."""

    def __init__(self) -> None:
        self.ids: dict[Any, int] = {}

    def column(self, keys: Iterable[Any]) -> list[int]:
        """The id of every key; ``None`` is ``UNKNOWN``."""
        ids = self.ids
        return [UNKNOWN if k is None else ids[k] if k in ids else ids.setdefault(k, len(ids)) for k in keys]

    def texts(self) -> list[str]:
        """The keys as text, in order of their ids."""
        return [str(key) for key in self.ids]
