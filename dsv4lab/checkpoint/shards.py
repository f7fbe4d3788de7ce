"""The safetensors files of a checkpoint: one ``model.safetensors``, or shards behind an index.

Headers are read and checked first, whole; tensors are then read one at a time, so memory holds one of them at most.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import torch

from dsv4lab.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F4": torch.uint8,
}
"""Dtypes that are read; two F4 values to a byte."""
_LENGTH = struct.Struct("<Q")
_MAX_HEADER = 512 * 2**20
_COLUMN_BUFFER = 16 * 2**20

Span = tuple[int, int]
"""From, and up to."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor lies: raw name, file, shape and dtype as the file's header spells them, bytes from ``begin``."""

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str
    begin: int = 0
    nbytes: int = 0


class Shards:
    """Read access to a checkpoint directory; a context manager, since one file is kept open between reads.

    Raises :class:`CheckpointError` naming the file when anything is missing, truncated or contradictory.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.tensors: Mapping[str, StoredTensor] = _inventory(self.directory)
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def read(self, stored: StoredTensor, rows: Span | None = None, columns: Span | None = None) -> torch.Tensor:
        """The tensor, in memory of its own: the file may change or go once this returns.

        Read, not mapped, so that what is done with does not count as memory in use. With ``rows`` or ``columns``, that
        part of its rows (all dimensions but the last, flattened; elements of a vector) and of the values
        of each row: ``[rows, columns]``. Other rows are not read; other columns are, a few megabytes at a time.
        """
        dtype, shape = self._check(stored)
        if rows is None and columns is None:
            data = torch.empty(stored.nbytes, dtype=torch.uint8)
            self._fill(stored, 0, data)
            return data.view(dtype).view(shape)
        width = shape[-1] if len(shape) > 1 else 1
        first, last = (0, math.prod(shape) // width) if rows is None else rows
        left, right = (0, width) if columns is None else columns
        out = torch.empty((last - first, right - left), dtype=dtype)
        row_bytes = width * dtype.itemsize
        step = (last - first) if (left, right) == (0, width) else max(1, _COLUMN_BUFFER // row_bytes)
        for at in range(first, last, step):
            count = min(step, last - at)
            data = torch.empty(count * row_bytes, dtype=torch.uint8)
            self._fill(stored, at * row_bytes, data)
            whole = data.view(dtype).view(count, width)
            if count == last - first and (left, right) == (0, width):
                out = whole
            else:
                out[at - first : at - first + count] = whole[:, left:right]
        return out if len(shape) > 1 else out.view(-1)

    def _check(self, stored: StoredTensor) -> tuple[torch.dtype, tuple[int, ...]]:
        """Dtype and shape in memory."""
        dtype = DTYPES.get(stored.dtype)
        if dtype is None:
            raise CheckpointError(f"{stored.file}: {stored.name}: dtype {stored.dtype} is none that this reads")
        shape = (*stored.shape[:-1], stored.shape[-1] // 2) if stored.dtype == "F4" else stored.shape
        if math.prod(shape) * dtype.itemsize != stored.nbytes:
            raise CheckpointError(
                f"{stored.file}: {stored.name}: {stored.nbytes} bytes do not hold {list(stored.shape)} {stored.dtype}"
            )
        return dtype, shape

    def _fill(self, stored: StoredTensor, offset: int, data: torch.Tensor) -> None:
        """Bytes of ``stored`` from ``offset`` on into ``data``."""
        try:
            if self._file is None or self._file.name != str(stored.file):
                self.close()
                self._file = stored.file.open("rb", buffering=0)
            self._file.seek(stored.begin + offset)
            _read_into(self._file, data.numpy().data)
        except OSError as error:
            why = error.strerror or _line(error)
            raise CheckpointError(f"{stored.file}: {stored.name}: cannot be read ({why})") from None

    def close(self) -> None:
        """Let go of the open file."""
        if self._file is not None:
            self._file.close()
        self._file = None


def _read_into(stream: IO[bytes], view: memoryview) -> None:
    done = 0
    while done < len(view):
        count = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            raise OSError(f"the file ends {len(view) - done} bytes early")
        done += count


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors that ``file`` declares; refuses a file shorter or longer than they say."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            prefix = stream.read(_LENGTH.size)
            if len(prefix) < _LENGTH.size:
                raise CheckpointError(f"{file}: truncated: {size} bytes hold no safetensors header")
            (length,) = _LENGTH.unpack(prefix)
            if length > min(_MAX_HEADER, size - _LENGTH.size):
                raise CheckpointError(f"{file}: truncated or not safetensors: header of {length} in {size} bytes")
            header = json.loads(stream.read(length))
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not a safetensors file: its header is not JSON ({_line(error)})") from None
    return _entries(file, header, _LENGTH.size + length, size - _LENGTH.size - length)


def _entries(file: Path, header: object, data_begin: int, data_bytes: int) -> dict[str, StoredTensor]:
    if not isinstance(header, dict):
        raise CheckpointError(f"{file}: not a safetensors file: its header is no JSON object")
    tensors, end = {}, 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            shape = tuple(int(n) for n in entry["shape"])
            first, last = (int(n) for n in entry["data_offsets"])
            end = max(end, last)
            tensors[name] = StoredTensor(name, file, shape, str(entry["dtype"]), data_begin + first, last - first)
        except (TypeError, KeyError, IndexError, ValueError):
            raise CheckpointError(f"{file}: {name}: malformed entry in the safetensors header") from None
    if end != data_bytes:
        what = "truncated" if end > data_bytes else "damaged"
        raise CheckpointError(
            f"{file}: {what}: the header announces {end} bytes of tensors, the file holds {data_bytes}"
        )
    return tensors


def _inventory(directory: Path) -> dict[str, StoredTensor]:
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: not a directory; a checkpoint is one with config.json and {SINGLE}")
    if (directory / INDEX).is_file():
        return _sharded(directory)
    if (directory / SINGLE).is_file():
        return read_header(directory / SINGLE)
    raise CheckpointError(f"{directory}: no weights: neither {SINGLE} nor {INDEX} is there (no other format is read)")


def _sharded(directory: Path) -> dict[str, StoredTensor]:
    path = directory / INDEX
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON ({_line(error)})") from None
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{path}: weight_map: missing, expected an object of tensor name to file name")
    headers = {name: read_header(directory / _shard_name(path, name)) for name in _ordered(places.values())}
    tensors = {}
    for tensor, file in places.items():
        if tensor not in headers[file]:
            raise CheckpointError(f"{directory / file}: {tensor}: missing, though {INDEX} places it there")
        tensors[tensor] = headers[file][tensor]
    for file, header in headers.items():
        unlisted = next((name for name in header if name not in places), None)
        if unlisted is not None:
            raise CheckpointError(f"{directory / file}: {unlisted}: not listed in {INDEX}")
    return tensors


def _ordered(names: Any) -> list[Any]:
    """Distinct, in order; unhashable junk is left for :func:`_shard_name` to refuse."""
    try:
        return list(dict.fromkeys(names))
    except TypeError:
        return list(names)


def _shard_name(path: Path, name: object) -> str:
    """A bare file name: an index must not reach outside its directory."""
    if not isinstance(name, str) or name != Path(name).name or not name.endswith(".safetensors"):
        raise CheckpointError(f"{path}: weight_map: got {name!r}, expected the name of a .safetensors file beside it")
    return name


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
