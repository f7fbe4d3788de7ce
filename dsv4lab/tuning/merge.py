"""Sessions of one space, from several machines or workers, merged into a session that can be gone on with."""

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
from dsv4lab.tuning.merge_sweeps import check_sweep, home_rounds, in_rounds, nominated
from dsv4lab.tuning.search.log import BLOCK, CANDIDATE, OUTCOME, RESULT, WORKER
from dsv4lab.tuning.store import (
    MACHINE,
    MANIFEST,
    ORIGIN,
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
_TRIAL = "trial"
_SPACES = {"space": "search", "sweep": "sweep"}
"""Which of its settings tells what kind of session a manifest is of."""


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
    dropped. The rounds of sweeps come one after the other. Raises :class:`UsageError` if ``out`` exists, two manifests
    differ in a field that is not a machine's, or a sweep's outputs differ, :class:`StoreError` for a folder without a
    session.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--merge {out}: it exists; give a new folder")
    manifests = [read_manifest(folder) for folder in folders]
    kinds = [_kind(folder, manifest) for folder, manifest in zip(folders, manifests, strict=True)]
    for folder, manifest, kind in zip(folders[1:], manifests[1:], kinds[1:], strict=True):
        if kind != kinds[0]:
            raise UsageError(f"{folder}: it is a {kind} and cannot be merged with {folders[0]}, a {kinds[0]}")
        different = first_difference(_common(manifests[0]), _common(manifest))
        if different:
            raise UsageError(f"{folder / MANIFEST}: it cannot be merged with {folders[0]}, {different}")
    records, duplicates, torn = _collect(folders, manifests)
    sessions = len({record[ORIGIN]["session"] for record in records})
    if kinds[0] == "sweep":
        manifest, records = in_rounds(manifests[0], records)
        records += nominated(manifest, records)
    else:
        manifest, records = manifests[0], _renumbered(records)
    _write(out, manifest, records)
    return Merged(out, sessions, len(records), duplicates, torn)


def session_id(manifest: dict[str, Any], records: Sequence[dict[str, Any]]) -> str:
    """A name for a session that no other has: of its manifest, and of the worker or trial that it began with."""
    first = next((r for r in records if r["kind"] in (WORKER, _TRIAL)), records[0] if records else {})
    told = {key: value for key, value in first.items() if key not in (ORIGIN, MACHINE)}
    return hashlib.sha256(json.dumps([manifest, told], sort_keys=True).encode()).hexdigest()[:12]


def _collect(folders: Sequence[Path], manifests: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], int, int]:
    """Records of all sessions, each session's together and in order; how many were known, how many lines were torn."""
    kept: dict[tuple[str, int], dict[str, Any]] = {}
    duplicates = torn_lines = 0
    for folder, manifest in zip(folders, manifests, strict=True):
        records, torn = read_records(folder / RECORDS)
        torn_lines += torn
        if "sweep" in manifest["settings"]:
            check_sweep(folder, records)
        for record in _placed(manifest, records):
            if record["kind"] in _CONCLUSIONS:
                continue
            place = (record[ORIGIN]["session"], record[ORIGIN]["record"])
            duplicates += place in kept
            kept.setdefault(place, record)
    by_session: dict[str, list[dict[str, Any]]] = {}
    for (session, _), record in sorted(kept.items(), key=lambda item: item[0][1]):
        by_session.setdefault(session, []).append(record)
    order = dict.fromkeys(session for session, _ in kept)
    return [record for session in order for record in by_session[session]], duplicates, torn_lines


def _placed(manifest: dict[str, Any], records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Records with where they came from; those of a merged session have that already."""
    own = session_id(manifest, records)
    worker = next((r for r in records if r["kind"] == WORKER), {})
    settings = manifest["settings"]
    gpu = settings.get("target", {}).get("gpu")
    machine = ", ".join(str(name) for name in (worker.get("host"), gpu, manifest.get("cpu")) if name)
    for number, record in enumerate(records):
        if ORIGIN in record:
            yield record
            continue
        origin = {"session": own, "record": number}
        origin |= {name: record[name] for name in ("trial", "process") if name in record}
        origin |= home_rounds(settings, record)
        yield {**record, MACHINE: machine, ORIGIN: origin}


def _renumbered(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Trials and processes with numbers of their own: every session began to count at zero."""
    trials, processes = _Numbers(), _Numbers()
    out = []
    for record in records:
        origin = record[ORIGIN]
        new = {}
        if "trial" in origin:
            new["trial"] = trials.of(origin["session"], origin["trial"])
        if "process" in origin and (record["kind"] == BLOCK or record.get("process") is not None):
            new["process"] = processes.of(origin["session"], origin["process"])
        out.append({**record, **new})
    return out


def _kind(folder: Path, manifest: dict[str, Any]) -> str:
    settings = manifest.get("settings")
    found = [kind for name, kind in _SPACES.items() if isinstance(settings, dict) and name in settings]
    if not found:
        raise UsageError(f"{folder / MANIFEST}: settings is no sweep's and no search's")
    return found[0]


def _common(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest without what is its machine's, and how long it went on: seconds of a search, rounds of a sweep."""
    settings = {key: value for key, value in manifest["settings"].items() if key != "cores"}
    for name, free in (("search", "seconds"), ("sweep", "rounds")):
        if name in settings:
            settings[name] = {key: value for key, value in settings[name].items() if key != free}
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
