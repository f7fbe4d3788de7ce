"""Reading back what :mod:`dsv4lab.trace.export` wrote: ids of the file are positions in its label lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv4lab.timeline.timeline import UNKNOWN

OWN_KEY = "dsv4lab"
OWN_META = ("step_modes", "manifest", "capture")
"""What of a timeline's ``meta`` goes through a file: objects."""


def own_labels(header: Mapping[str, Any]) -> dict[str, Any] | None:
    """The label lists and the main stream of one of our files; ``None`` if it is not ours or they are damaged."""
    own = header.get(OWN_KEY)
    if not isinstance(own, dict):
        return None
    out: dict[str, Any] = {key: own.get(key) for key in ("names", "streams", "queues")}
    for labels in out.values():
        if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            return None
    main = own.get("main_stream")
    return {**out, "main_stream": main if isinstance(main, str) else None}


def remap(
    columns: dict[str, NDArray[Any]],
    own: Mapping[str, Any],
    streams: Sequence[Any],
    queues: Sequence[Any],
    names: list[str],
) -> dict[str, Any]:
    """Put the ids of ``columns`` back to those of the exported timeline; returns the labels."""
    known = {name: at for at, name in enumerate(own["names"])}
    every = [*own["names"], *(n for n in dict.fromkeys(names) if n not in known)]
    place = {name: at for at, name in enumerate(every)}
    by_name = _table([place[name] for name in names])
    columns["name"] = by_name[columns["name"]]
    columns["stream"] = positions(streams, len(own["streams"]))[columns["stream"]]
    columns["queue"] = positions(queues, len(own["queues"]))[columns["queue"]]
    return {"names": every, "streams": own["streams"], "queues": own["queues"], "main_stream": own["main_stream"]}


def _table(ids: list[int]) -> NDArray[np.int32]:
    """A lookup table whose last entry answers ``UNKNOWN`` (-1)."""
    return np.array([*ids, UNKNOWN], np.int32)


def positions(keys: Sequence[Any], limit: int) -> NDArray[np.int32]:
    """For ids of first appearance, the number each stands for in the file; ``UNKNOWN`` unless in ``[0, limit)``."""
    return _table([k if isinstance(k, int) and 0 <= k < limit else UNKNOWN for k in keys])
