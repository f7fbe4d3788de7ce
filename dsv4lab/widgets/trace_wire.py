"""Windows of several traces put together for the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsv4lab.viz.trace_window import Window


def short(text: str, most: int) -> str:
    """``text`` cut to ``most`` characters; lone surrogates of damaged files, which JSON cannot carry, are replaced."""
    cut = text if len(text) <= most else text[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return cut.encode("utf-8", "replace").decode()


def joined(parts: Sequence[tuple[int, int, Window]]) -> dict[str, Any]:
    """Cells and slices of all sides: ``parts`` are a side's first track number, its origin on its clock, its window.

    Times become ``float64`` nanoseconds of the page's clock.
    """
    cells = {
        "tracks": [first + track for first, _, window in parts for track in window.cells.tracks],
        **{
            name: np.concatenate([getattr(window.cells, name) for _, _, window in parts]).ravel()
            for name in ("share", "tone", "count", "marked", "path")
        },
    }
    slices: dict[str, Any] = {
        name: np.concatenate([getattr(window.slices, name) for _, _, window in parts])
        for name in ("row", "sub", "tone", "flags", "name")
    }
    slices["track"] = np.concatenate([first + window.slices.track for first, _, window in parts]).astype(np.int32)
    for name in ("start", "end"):
        times = [getattr(window.slices, f"{name}_ns") - origin for _, origin, window in parts]
        slices[name] = np.concatenate(times).astype(np.float64)
    return {
        "cells": cells,
        "slices": slices,
        "running": [window.running for _, _, window in parts],
        "busy": [window.busy for _, _, window in parts],
    }
