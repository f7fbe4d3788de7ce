"""A bundle that was loaded: frozen, checked, comparable."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4lab.backends.selfcheck import CheckRow
from dsv4lab.errors import BundleError, TraceError, UsageError
from dsv4lab.tuning.bundle.archive import json_of, read_archive
from dsv4lab.tuning.bundle.layout import (
    MAX_TRACE,
    OVERLAP,
    PARTS,
    PROBE,
    SELFCHECK,
    TRACE_NAME,
    BundleManifest,
    part_file,
)
from dsv4lab.tuning.overlap.record import OverlapRecord, record_from_json
from dsv4lab.units import bytes_text
from dsv4lab.viz.loaded import LoadedTrace

if TYPE_CHECKING:
    from dsv4lab.tuning.bundle.compare import BundleComparison

_GZIP = 31
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class ProbeDocument:
    """A probe's file: ``found`` says what its ``rows`` mean. ``dsv4lab calibrate`` takes :meth:`to_json`."""

    schema: int
    machine: Mapping[str, Any]
    found: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]
    device: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The document."""
        named = {} if self.device is None else {"device": self.device}
        rows = [dict(row) for row in self.rows]
        return {"schema": self.schema, **named, "machine": dict(self.machine), "found": dict(self.found), "rows": rows}


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """What one machine says. A part is None where it failed there; ``manifest.failures`` says how.

    ``traces`` are by name, the serial program's and the best plan's; each draws itself (``trace.timeline_figure()``).
    """

    path: Path
    manifest: BundleManifest
    selfcheck: tuple[CheckRow, ...] | None
    probe: ProbeDocument | None
    overlap: OverlapRecord | None
    traces: Mapping[str, LoadedTrace]

    def __repr__(self) -> str:
        return f"<Bundle {self.path.name}: {self.manifest.device}, {self.manifest.created}>"

    @property
    def passes(self) -> bool:
        """Whether nothing failed, every check was good, and every plan gave the serial program's bits."""
        checks, overlap = self.selfcheck, self.overlap
        if self.manifest.failures or checks is None or overlap is None or overlap.gate is None:
            return False
        return overlap.gate.green and all(row.passes for row in checks)

    def compare(self, other: Bundle) -> BundleComparison:
        """Both side by side: this one is A, ``other`` is B."""
        from dsv4lab.tuning.bundle.compare import compare

        return compare(self, other)


def load_bundle(path: str | Path) -> Bundle:
    """Load a bundle that ``dsv4lab bundle`` wrote, here or on another machine.

    Raises :class:`BundleError` naming file and member for whatever is missing, damaged, too large or not understood.
    """
    file = Path(path).expanduser()
    manifest, contents = read_archive(file)
    for part in PARTS:
        if part_file(part) not in contents and part not in manifest.failures:
            raise BundleError(f"{file}: member {part_file(part)} is missing, and the manifest tells of no failure")
    found = {part: _part(file, part, contents) for part in PARTS}
    traces = {name: _trace(file, name, data) for name, data in contents.items() if TRACE_NAME.fullmatch(name)}
    return Bundle(
        path=file,
        manifest=manifest,
        selfcheck=None if found[SELFCHECK] is None else _checks(file, found[SELFCHECK]),
        probe=None if found[PROBE] is None else _converted(file, PROBE, found[PROBE], ProbeDocument),
        overlap=None if found[OVERLAP] is None else _overlap(file, found[OVERLAP]),
        traces={name.rpartition("/")[2]: trace for name, trace in traces.items()},
    )


def _part(file: Path, part: str, contents: Mapping[str, bytes]) -> Any:
    name = part_file(part)
    return json_of(file, name, contents[name]) if name in contents else None


def _checks(file: Path, document: Any) -> tuple[CheckRow, ...]:
    rows = document.get("checks") if isinstance(document, dict) else None
    found: tuple[CheckRow, ...] = _converted(file, SELFCHECK, rows, tuple[CheckRow, ...])
    return found


def _overlap(file: Path, document: Any) -> OverlapRecord:
    try:
        return record_from_json(document, f"{file}: member {part_file(OVERLAP)}")
    except UsageError as error:
        raise BundleError(str(error)) from None


def _converted(file: Path, part: str, value: Any, kind: Any) -> Any:
    import msgspec

    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise BundleError(f"{file}: member {part_file(part)}: {error}") from None


def _trace(file: Path, name: str, data: bytes) -> LoadedTrace:
    _check_unpacked(file, name, data)
    from dsv4lab.viz.loaded import load_trace

    with tempfile.TemporaryDirectory() as there:
        path = Path(there) / name.rpartition("/")[2]
        path.write_bytes(data)
        try:
            found = load_trace(path, cache=False)
        except TraceError as error:
            text = str(error).replace(str(path), path.name)
            raise BundleError(f"{file}: member {name}: {text}") from None
    return LoadedTrace.of(found, None, found.report)


def _check_unpacked(file: Path, name: str, data: bytes) -> None:
    """Unpack a trace without keeping it, so that a small member cannot become a huge one."""
    stream, size, rest = zlib.decompressobj(_GZIP), 0, data
    try:
        while rest and not stream.eof:
            size += len(stream.decompress(rest, _CHUNK))
            rest = stream.unconsumed_tail
            if size > MAX_TRACE:
                raise BundleError(f"{file}: member {name} unpacks to more than {bytes_text(MAX_TRACE)}")
    except zlib.error as error:
        raise BundleError(f"{file}: member {name} is damaged ({error})") from None
    if not stream.eof or stream.unused_data:
        raise BundleError(f"{file}: member {name} is no single gzip stream")
