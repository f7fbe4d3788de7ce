"""Opens the view of a session of either kind."""

from __future__ import annotations

from pathlib import Path

from dsv4lab.tuning.store import MANIFEST, StoreError, read_manifest
from dsv4lab.tuning.view import SessionView
from dsv4lab.tuning.view_search import search_view
from dsv4lab.tuning.view_sweep import sweep_view


def read_view(folder: str | Path) -> SessionView:
    """Read the session in ``folder``, a sweep or a search. Raises :class:`StoreError` if it holds neither."""
    home = Path(folder)
    settings = read_manifest(home).get("settings")
    if isinstance(settings, dict) and "space" in settings:
        return search_view(home)
    if isinstance(settings, dict) and "sweep" in settings:
        return sweep_view(home)
    raise StoreError(f"{home / MANIFEST}: settings is no sweep's and no search's")
