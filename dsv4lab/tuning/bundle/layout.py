"""What is in a bundle: member names, limits, manifest. The format is documented in docs/bundles.md. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

KIND, VERSION = "dsv4lab bundle", 1
MANIFEST, REPORT = "manifest.json", "report.md"
SELFCHECK, PROBE, OVERLAP = "selfcheck", "probe", "overlap"
PARTS = (SELFCHECK, PROBE, OVERLAP)
TRACE_NAME = re.compile(r"traces/[A-Za-z0-9_][A-Za-z0-9_.-]{0,120}\.pt\.trace\.json\.gz")

MIB = 1 << 20
MAX_FILE, MAX_TOTAL, MAX_MEMBER, MAX_TRACE = 128 * MIB, 256 * MIB, 64 * MIB, 512 * MIB
"""Bytes of the file, of all members and of one member unpacked, and of a trace unpacked once more."""

MAX_MEMBERS = 32


def part_file(part: str) -> str:
    """The member of a part."""
    return f"{part}.json"


def is_member(name: str) -> bool:
    """Whether a bundle may have a member of this name."""
    return name in (MANIFEST, REPORT, *map(part_file, PARTS)) or TRACE_NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Member:
    """A member other than the manifest: its name, size and digest."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class BundleManifest:
    """What a bundle was made with. ``device``: what it ran on, as it is shown; ``kind``: ``cpu``, ``cuda`` or ``hip``.

    ``failures`` tells of parts that could not be measured, by part, in place of their members; ``seconds`` what each
    part took.
    """

    device: str
    kind: str
    created: str
    dsv4lab: str
    machine: Mapping[str, Any]
    members: tuple[Member, ...]
    failures: Mapping[str, str]
    seconds: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """The manifest's document: ``kind`` there is that of the file, ``device_kind`` this one's."""
        rest = {name: value for name, value in asdict(self).items() if name != "kind"}
        return {"kind": KIND, "version": VERSION, "device_kind": self.kind, **rest}
