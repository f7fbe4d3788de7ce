"""Sheets on their way to the browser: only what changed, arrays as raw bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dsv4lab.viz.sheet import Sheet

Json = dict[str, Any]
_KEPT = ("float64", "float32", "int32", "uint8")
_INT32 = np.iinfo(np.int32)


def full(sheet: Sheet, buffers: list[bytes]) -> Json:
    """The whole sheet as JSON; arrays are appended to ``buffers`` and referred to by place."""
    return {"data": [encoded(t, buffers) for t in sheet.data], "layout": encoded(sheet.layout, buffers)}


def patch(was: Sheet, now: Sheet, buffers: list[bytes]) -> Json | None:
    """What turns ``was`` into ``now``, or None if their traces or layouts differ in more than values.

    A list that is empty everywhere means that nothing changed.
    """
    if _shape(was) != _shape(now):
        return None
    traces = [encoded(_changes(a, b), buffers) for a, b in zip(was.data, now.data, strict=True)]
    return {"traces": traces, "layout": encoded(_changes(was.layout, now.layout), buffers)}


def is_empty(change: Json) -> bool:
    """Whether a patch changes nothing."""
    return not change["layout"] and not any(change["traces"])


def _shape(sheet: Sheet) -> tuple[Any, ...]:
    return tuple((t["type"], frozenset(t)) for t in sheet.data), frozenset(sheet.layout)


def _changes(was: Json, now: Json) -> Json:
    return {key: value for key, value in now.items() if not same(was[key], value)}


def same(a: Any, b: Any) -> bool:
    """Whether two property values are equal; arrays by value, NaN equal to NaN."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        a, b = np.asarray(a), np.asarray(b)
        floats = a.dtype.kind == "f" and b.dtype.kind == "f"
        return a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=floats))
    return bool(a == b)


def encoded(value: Any, buffers: list[bytes]) -> Any:
    """``value`` as JSON, with numeric arrays moved to ``buffers``."""
    if isinstance(value, dict):
        return {key: encoded(item, buffers) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _array(value, buffers)
    if isinstance(value, (list, tuple)):
        return [encoded(item, buffers) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _array(array: NDArray[Any], buffers: list[bytes]) -> Any:
    if array.dtype.kind not in "biuf":
        return encoded(array.tolist(), buffers)
    if array.dtype.name not in _KEPT:
        fits = array.dtype.kind in "biu" and (
            not array.size or (array.min() >= _INT32.min and array.max() <= _INT32.max)
        )
        array = array.astype(np.int32 if fits else np.float64)
    buffers.append(np.ascontiguousarray(array).tobytes())
    return {"$buffer": len(buffers) - 1, "dtype": array.dtype.name, "shape": list(array.shape)}
