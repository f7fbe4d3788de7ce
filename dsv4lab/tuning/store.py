"""The record of a tuning session on disk: a manifest and an append-only file of JSON lines.

Every line is written whole, flushed and synced before the session goes on, so a crash at any byte loses at most the
line being written. Reading skips what a crash tore, and appending ends a torn line first; nothing is ever rewritten.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from dsv4lab.errors import LabError, UsageError

SCHEMA = 1
MANIFEST = "manifest.json"
RECORDS = "records.jsonl"
RESULT = "result.json"
REPORT = "report.html"
ORIGIN, MACHINE = "origin", "machine"
"""Fields of merged records: the session and place that they came from, and the machine."""

R = TypeVar("R", bound=Mapping[str, Any])

_FREE_FIELDS = ("created",)


class StoreError(LabError):
    """A session folder is unreadable, in use, or holds another session."""


class SessionStore:
    """One session's folder, open for appending. A context manager; one writer at a time."""

    def __init__(self, folder: Path, fd: int, records: list[dict[str, Any]], torn: int) -> None:
        self.folder = folder
        self.records = records
        self.torn = torn
        self._fd = fd

    @classmethod
    def create(cls, folder: Path, manifest: Mapping[str, Any]) -> Self:
        """Start a session in ``folder``, which must not hold one yet. Raises :class:`UsageError` if it does."""
        records = folder / RECORDS
        if (folder / MANIFEST).exists() or (records.exists() and records.stat().st_size):
            raise UsageError(f"{folder} already holds a session; use --resume to go on with it, or another --out")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make the session folder {folder}: {error.strerror}") from error
        store = cls._open(folder, os.O_CREAT)
        write_json(folder / MANIFEST, {"schema": SCHEMA, **manifest})
        store.append("session", event="started")
        return store

    @classmethod
    def resume(cls, folder: Path, manifest: Mapping[str, Any]) -> Self:
        """Go on with the session in ``folder``.

        Raises :class:`UsageError` naming the first field in which ``manifest`` differs from the session's own: trials
        of another machine, version or load cannot be compared with what is recorded.
        """
        before = read_manifest(folder)
        different = first_difference(before, {"schema": SCHEMA, **manifest})
        if different:
            raise UsageError(f"{folder / MANIFEST}: the session cannot be resumed, {different}")
        store = cls._open(folder, 0)
        store.append("session", event="resumed", torn_lines=store.torn)
        return store

    @classmethod
    def _open(cls, folder: Path, flags: int) -> Self:
        path = folder / RECORDS
        try:
            fd = os.open(path, os.O_RDWR | os.O_APPEND | flags, 0o644)
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise StoreError(f"{path} is in use by another session") from error
        records, torn = read_records(path)
        _end_torn_line(fd)
        return cls(folder, fd, records, torn)

    def append(self, kind: str, **fields: Any) -> None:
        """Write one record and wait until it is on disk."""
        record = {"kind": kind, "at": datetime.now(UTC).isoformat(timespec="milliseconds"), **fields}
        data = record_line(record).encode()
        while data:
            data = data[os.write(self._fd, data) :]
        os.fsync(self._fd)
        self.records.append(record)

    def of_kind(self, kind: str) -> Iterator[dict[str, Any]]:
        """The records of ``kind``, oldest first."""
        return (record for record in self.records if record["kind"] == kind)

    def close(self) -> None:
        """Give the folder up."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def record_line(record: Mapping[str, Any]) -> str:
    """A record as it stands in the file."""
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n"


def read_records(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The whole records in ``path`` and the number of lines that a crash tore. Raises :class:`StoreError`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror})") from error
    records: list[dict[str, Any]] = []
    torn = 0
    for line in data.split(b"\n"):
        if not line.strip(b"\0 \r"):
            continue
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict) and isinstance(record.get("kind"), str):
            records.append(record)
        else:
            torn += 1
    return records, torn


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest in ``folder``. Raises :class:`StoreError` if there is none or it is damaged."""
    path = folder / MANIFEST
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise StoreError(f"{path}: there is no session here ({error.strerror})") from error
    except ValueError as error:
        raise StoreError(f"{path} is damaged: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise StoreError(f"{path} is not a session manifest of schema {SCHEMA}")
    return data


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write ``data`` to ``path`` so that a reader sees the old file or the whole new one."""
    write_text(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` so that a reader sees the old file or the whole new one."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in ``folder`` are on disk."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def first_difference(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> str | None:
    """``field is X there and Y now`` for the first field that differs, as JSON would show it; None if none does."""
    for key in dict.fromkeys([*before, *now]):
        old, new = before.get(key), json.loads(json.dumps(now.get(key)))
        if key in _FREE_FIELDS or old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            return first_difference(old, new, f"{prefix}{key}.")
        if (found := first_difference(_by_name(old), _by_name(new), f"{prefix}{key}.")) is not None:
            return found
        return f"{prefix}{key} is {json.dumps(old)} there and {json.dumps(new)} now"
    return None


def home_records(records: Iterable[R]) -> Iterator[R]:
    """Of a merged session, the records of the first one and of its own going on; all of any other session.

    Outputs are compared inside a machine only: another processor may round in another way.
    """
    home = None
    for record in records:
        session = record.get(ORIGIN, {}).get("session")
        home = home or session
        if session in (None, home):
            yield record


def _by_name(values: Any) -> dict[str, Any]:
    """Named things of a list by their names; nothing for anything else."""
    named = isinstance(values, list) and all(isinstance(v, dict) and isinstance(v.get("name"), str) for v in values)
    return {value["name"]: value for value in values} if named else {}


def _end_torn_line(fd: int) -> None:
    size = os.lseek(fd, 0, os.SEEK_END)
    if size and os.pread(fd, 1, size - 1) != b"\n":
        os.write(fd, b"\n")
        os.fsync(fd)
