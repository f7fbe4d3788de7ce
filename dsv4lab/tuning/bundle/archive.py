"""The file of a bundle: written whole or not at all, and read as what a stranger sent."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsv4lab.errors import BundleError
from dsv4lab.tuning.bundle.layout import (
    KIND,
    MANIFEST,
    MAX_FILE,
    MAX_MEMBER,
    MAX_MEMBERS,
    MAX_TOTAL,
    VERSION,
    BundleManifest,
    Member,
    is_member,
)
from dsv4lab.units import bytes_text

_EPOCH = (1980, 1, 1, 0, 0, 0)  # equal contents are equal files
_ENCRYPTED = 0x1


def members_of(contents: Mapping[str, bytes]) -> tuple[Member, ...]:
    """The manifest's list."""
    return tuple(Member(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in sorted(contents.items()))


def write_archive(path: Path, manifest: BundleManifest, contents: Mapping[str, bytes]) -> None:
    """Write ``contents`` and their manifest to ``path``; what was there stays until the file is complete.

    Raises :class:`BundleError` if it cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    document = (json.dumps(manifest.to_json(), indent=1) + "\n").encode()
    try:
        with zipfile.ZipFile(part, "w") as archive:
            for name, data in ((MANIFEST, document), *sorted(contents.items())):
                packed = zipfile.ZIP_STORED if name.endswith(".gz") else zipfile.ZIP_DEFLATED
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, packed)
        os.replace(part, path)
    except OSError as error:
        raise BundleError(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        part.unlink(missing_ok=True)


def read_archive(path: Path) -> tuple[BundleManifest, dict[str, bytes]]:
    """The manifest and all other members, each of the size and digest that the manifest tells.

    Raises :class:`BundleError` naming file and member for whatever is no bundle of this version, or too large.
    """
    try:
        size = path.stat().st_size
        if size > MAX_FILE:
            raise BundleError(f"{path}: {bytes_text(size)} is too large for a bundle: at most {bytes_text(MAX_FILE)}")
        with zipfile.ZipFile(path) as archive:
            return _read(path, archive)
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise BundleError(f"{path}: this zip file is damaged, or none: {error}") from None


def _read(path: Path, archive: zipfile.ZipFile) -> tuple[BundleManifest, dict[str, bytes]]:
    found: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        if info.filename in found:
            raise BundleError(f"{path}: member {info.filename!r} is there twice")
        found[info.filename] = info
    if len(found) > MAX_MEMBERS:
        raise BundleError(f"{path}: {len(found)} members: a bundle has at most {MAX_MEMBERS}")
    if (total := sum(info.file_size for info in found.values())) > MAX_TOTAL:
        raise BundleError(f"{path}: unpacks to {bytes_text(total)}: a bundle takes at most {bytes_text(MAX_TOTAL)}")
    if MANIFEST not in found:
        raise BundleError(f"{path}: member {MANIFEST} is missing: this is no bundle")
    manifest = manifest_from(path, _bytes(path, archive, found.pop(MANIFEST)))
    _check_names(path, manifest, found)
    contents = {name: _bytes(path, archive, info) for name, info in found.items()}
    for member in manifest.members:
        data = contents[member.name]
        if (len(data), hashlib.sha256(data).hexdigest()) != (member.bytes, member.sha256):
            raise BundleError(f"{path}: member {member.name} is not the one that the manifest describes")
    return manifest, contents


def _check_names(path: Path, manifest: BundleManifest, found: Mapping[str, zipfile.ZipInfo]) -> None:
    listed = [member.name for member in manifest.members]
    for name in found:
        if not is_member(name):
            raise BundleError(f"{path}: member {name!r} has no place in a bundle")
        if name not in listed:
            raise BundleError(f"{path}: member {name} is not in the manifest")
    if len(set(listed)) != len(listed):
        raise BundleError(f"{path}: member {MANIFEST} lists a member twice")
    for name in listed:
        if name not in found:
            raise BundleError(f"{path}: member {name!r}, which the manifest lists, is missing")


def _bytes(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    if info.flag_bits & _ENCRYPTED:
        raise BundleError(f"{path}: member {info.filename!r} is encrypted")
    if info.file_size > MAX_MEMBER:
        size = bytes_text(info.file_size)
        raise BundleError(f"{path}: member {info.filename!r} unpacks to {size}: at most {bytes_text(MAX_MEMBER)}")
    with archive.open(info) as file:
        return file.read(MAX_MEMBER + 1)


def manifest_from(path: Path, data: bytes) -> BundleManifest:
    """The manifest of the bundle at ``path``. Raises :class:`BundleError` naming the field at fault."""
    import msgspec

    document = json_of(path, MANIFEST, data)
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise BundleError(f"{path}: member {MANIFEST}: kind is not {KIND!r}: this is no bundle")
    if document.get("version") != VERSION:
        version = document.get("version")
        raise BundleError(f"{path}: member {MANIFEST}: version is {version!r}: this dsv4lab reads version {VERSION}")
    fields = {**document, "kind": document.get("device_kind")}
    try:
        return msgspec.convert(fields, BundleManifest)
    except msgspec.ValidationError as error:
        raise BundleError(f"{path}: member {MANIFEST}: {error}") from None


def json_of(path: Path, name: str, data: bytes) -> Any:
    """The JSON of a member. Raises :class:`BundleError`."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path}: member {name} is not JSON ({error})") from None
