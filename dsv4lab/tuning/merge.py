"""Search sessions of one space, from several machines or workers, merged into a session that can be gone on with."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsv4lab.errors import UsageError
from dsv4lab.tuning.search.log import BLOCK, CANDIDATE, OUTCOME, RESULT, WORKER
from dsv4lab.tuning.store import (
    MANIFEST,
    RECORDS,
    first_difference,
    read_manifest,
    read_records,
    record_line,
    sync_folder,
    write_json,
    write_text,
)

MACHINE_FIELDS = ("cpu", "cpus", "platform", "python", "created")
"""Of a manifest: what may differ between sessions that are merged; it is kept with every record."""

_CONCLUSIONS = (CANDIDATE, OUTCOME, RESULT)
_ORIGIN, _MACHINE = "origin", "machine"


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge made: records kept and left out as known already, and how many sessions they came from."""

    folder: Path
    sessions: int
    records: int
    duplicates: int
    torn: int

    def to_json(self) -> dict[str, Any]:
        """The ``merged`` of ``report --json``."""
        return {
            "folder": str(self.folder),
            "sessions": self.sessions,
            "records": self.records,
            "duplicates": self.duplicates,
            "torn": self.torn,
        }


@dataclass(slots=True)
class _Numbers:
    """New numbers for what every session counts from zero, in order of appearance."""

    known: dict[tuple[str, int], int] = field(default_factory=dict)

    def of(self, session: str, number: int) -> int:
        return self.known.setdefault((session, number), len(self.known))


def merge_sessions(out: Path, folders: Sequence[Path]) -> Merged:
    """Write all records of ``folders`` into the new session ``out``, whole or not at all.

    It has the manifest of the first, so that session's machine can resume it: what earlier sessions concluded is left
    out, and concluded anew. A record keeps its machine and its origin; one that came in before, on whatever way, is
    dropped. Raises :class:`UsageError` if ``out`` exists or two manifests differ in a field that is not a machine's,
    :class:`StoreError` for a folder without a session.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--merge {out}: it exists; give a new folder")
    manifests = [_manifest(folder) for folder in folders]
    for folder, manifest in zip(folders[1:], manifests[1:], strict=True):
        different = first_difference(_common(manifests[0]), _common(manifest))
        if different:
            raise UsageError(f"{folder / MANIFEST}: it cannot be merged with {folders[0]}, {different}")
    records, duplicates, torn = _collect(folders, manifests)
    sessions = len({record[_ORIGIN]["session"] for record in records})
    _write(out, manifests[0], records)
    return Merged(out, sessions, len(records), duplicates, torn)


def session_id(manifest: dict[str, Any], records: Sequence[dict[str, Any]]) -> str:
    """A name for a session that no other has: of its manifest, and of the moment and worker that began it."""
    first = next((r for r in records if r["kind"] == WORKER), records[0] if records else {})
    told = {key: value for key, value in first.items() if key not in (_ORIGIN, _MACHINE)}
    return hashlib.sha256(json.dumps([manifest, told], sort_keys=True).encode()).hexdigest()[:12]


def _collect(folders: Sequence[Path], manifests: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], int, int]:
    """Records of all sessions, each session's together and in order; how many were known, how many lines were torn."""
    kept: dict[tuple[str, int], dict[str, Any]] = {}
    duplicates = torn_lines = 0
    for folder, manifest in zip(folders, manifests, strict=True):
        records, torn = read_records(folder / RECORDS)
        torn_lines += torn
        for record in _placed(manifest, records):
            if record["kind"] in _CONCLUSIONS:
                continue
            place = (record[_ORIGIN]["session"], record[_ORIGIN]["record"])
            duplicates += place in kept
            kept.setdefault(place, record)
    by_session: dict[str, list[dict[str, Any]]] = {}
    for (session, _), record in sorted(kept.items(), key=lambda item: item[0][1]):
        by_session.setdefault(session, []).append(record)
    order = dict.fromkeys(session for session, _ in kept)
    return _renumbered([record for session in order for record in by_session[session]]), duplicates, torn_lines


def _placed(manifest: dict[str, Any], records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Records with where they came from; those of a merged session have that already."""
    own = session_id(manifest, records)
    worker = next((r for r in records if r["kind"] == WORKER), {})
    gpu = manifest["settings"].get("target", {}).get("gpu")
    machine = ", ".join(str(name) for name in (worker.get("host"), gpu, manifest.get("cpu")) if name)
    for number, record in enumerate(records):
        if _ORIGIN in record:
            yield record
            continue
        origin = {"session": own, "record": number}
        origin |= {name: record[name] for name in ("trial", "process") if name in record}
        yield {**record, _MACHINE: machine, _ORIGIN: origin}


def _renumbered(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Trials and processes with numbers of their own: every session began to count at zero."""
    trials, processes = _Numbers(), _Numbers()
    out = []
    for record in records:
        origin = record[_ORIGIN]
        new = {}
        if "trial" in origin:
            new["trial"] = trials.of(origin["session"], origin["trial"])
        if "process" in origin and (record["kind"] == BLOCK or record.get("process") is not None):
            new["process"] = processes.of(origin["session"], origin["process"])
        out.append({**record, **new})
    return out


def _manifest(folder: Path) -> dict[str, Any]:
    manifest = read_manifest(folder)
    settings = manifest.get("settings")
    if not isinstance(settings, dict) or "space" not in settings:
        raise UsageError(f"{folder}: only search sessions can be merged, and this is none")
    return manifest


def _common(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest without what is its machine's, and how long it searched."""
    settings = {key: value for key, value in manifest["settings"].items() if key != "cores"}
    settings["search"] = {key: value for key, value in settings["search"].items() if key != "seconds"}
    return {**{k: v for k, v in manifest.items() if k not in MACHINE_FIELDS}, "settings": settings}


def _write(out: Path, manifest: dict[str, Any], records: Sequence[dict[str, Any]]) -> None:
    """The folder under another name, synced, and then renamed: a crash leaves no half of it under its own."""
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        write_text(part / RECORDS, "".join(map(record_line, records)))
        write_json(part / MANIFEST, manifest)
        part.rename(out)
        sync_folder(out.parent)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
