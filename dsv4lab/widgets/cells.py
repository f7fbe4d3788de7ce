"""Which notebook cell made a view, so that running the cell again ends the view before it makes a new one."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Protocol


class Closable(Protocol):
    """A view, as far as its cell is concerned."""

    def close(self) -> None:
        """End it."""
        ...


@dataclass(frozen=True, slots=True)
class Execution:
    """One run of one cell."""

    cell: str
    run: str


def current_execution() -> Execution | None:
    """The cell that is being run and its run; None outside a notebook, or in one that does not tell."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    shell: Any = get_ipython()
    parent: dict[str, Any] = getattr(shell, "get_parent", dict)() or {}
    cell = (parent.get("metadata") or {}).get("cellId")
    run = (parent.get("header") or {}).get("msg_id")
    return Execution(cell, run) if isinstance(cell, str) and isinstance(run, str) else None


class OpenViews:
    """The views that are open, by the cell that made them."""

    def __init__(self) -> None:
        self._views: dict[str, list[tuple[str, weakref.ref[Closable]]]] = {}

    def add(self, view: Closable, made_by: Execution | None) -> None:
        """Keep ``view`` in mind, and close those that earlier runs of its cell made."""
        if made_by is None:
            return
        before = self._views.get(made_by.cell, [])
        self._views[made_by.cell] = [(run, ref) for run, ref in before if run == made_by.run]
        self._views[made_by.cell].append((made_by.run, weakref.ref(view)))
        for run, ref in before:
            old = ref()
            if run != made_by.run and old is not None:
                old.close()


OPEN = OpenViews()
"""Those of this process."""
