"""Measuring a bundle: selfcheck, probe, a short bench of plans. A part that fails is told, and the others go on."""

from __future__ import annotations

import gzip
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dsv4lab._version import __version__
from dsv4lab.backends.selfcheck import selfcheck
from dsv4lab.tuning.bundle.archive import members_of, write_archive
from dsv4lab.tuning.bundle.layout import OVERLAP, PARTS, PROBE, REPORT, SELFCHECK, BundleManifest, part_file
from dsv4lab.tuning.bundle.scrub import scrubbed, scrubber
from dsv4lab.tuning.machine_probe import probe_machine
from dsv4lab.tuning.overlap.bench import bench, machine_facts
from dsv4lab.tuning.overlap.markdown import markdown
from dsv4lab.tuning.overlap.record import OverlapRecord
from dsv4lab.tuning.overlap.settings import Settings

TRACES = 2
"""Traces of a bundle: the faster serial program and the best plan at the lowest level."""

Tell = Callable[[str, str, float], None]
"""Takes the part, what it does, and about how many seconds all of it still takes."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a bundle measures. ``kernels``: those to check, all if empty."""

    overlap: Settings
    kernels: tuple[str, ...] = ()
    probe_rounds: int = 7

    @property
    def device(self) -> str:
        """``cpu``, ``cuda`` or ``hip``."""
        return self.overlap.device

    @property
    def expected_s(self) -> Mapping[str, float]:
        """About what each part takes; of the last it is a bound."""
        cpu = self.device == "cpu"
        return {SELFCHECK: 45.0 if cpu else 90.0, PROBE: 5.0 if cpu else 20.0, OVERLAP: 60 * self.overlap.minutes}


@dataclass(slots=True)
class _Making:
    contents: dict[str, bytes] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def make_bundle(recipe: Recipe, path: Path, tell: Tell) -> BundleManifest:
    """Measure this machine and write the bundle to ``path``, at the very end. Returns its manifest.

    Raises :class:`BundleError` if it cannot be written.
    """
    scrub = scrubber()
    making, facts = _Making(), scrubbed(machine_facts(), scrub)  # before anything can break
    measure: dict[str, Callable[[Callable[[str], None]], Any]] = {
        SELFCHECK: lambda say: _selfcheck(recipe, say),
        PROBE: lambda say: probe_machine(recipe.device, recipe.probe_rounds)[0],
        OVERLAP: lambda say: _overlap(recipe, making, scrub, say),
    }
    for at, part in enumerate(PARTS):
        begun = time.monotonic()
        later = sum(recipe.expected_s[name] for name in PARTS[at + 1 :])

        def say(text: str, part: str = part, begun: float = begun, later: float = later) -> None:
            tell(part, text, max(0.0, recipe.expected_s[part] - (time.monotonic() - begun)) + later)

        say("begins")
        try:
            making.contents[part_file(part)] = _json(scrubbed(measure[part](say), scrub))
        except Exception as error:  # noqa: BLE001 - how a part fails on this machine is what a bundle is to tell
            making.failures[part] = scrub(f"{type(error).__name__}: {' '.join(str(error).split())}")
            say(f"failed: {making.failures[part]}")
        making.seconds[part] = round(time.monotonic() - begun, 1)
    manifest = _manifest(recipe, making, facts)
    write_archive(path, manifest, making.contents)
    return manifest


def _selfcheck(recipe: Recipe, say: Callable[[str], None]) -> dict[str, Any]:
    rows = []
    for row in selfcheck("cpu" if recipe.device == "cpu" else "cuda", recipe.kernels, apart=True):
        rows.append(row.to_json())
        say(f"{len(rows)} cases, {row.kernel} on {row.backend}")
    return {"checks": rows}


def _overlap(recipe: Recipe, making: _Making, scrub: Callable[[str], str], say: Callable[[str], None]) -> Any:
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there)
        record = bench(recipe.overlap, folder, lambda text: say(text.partition("] ")[2]))
        kept, traces = _two_traces(record, folder)
    for name, data in traces.items():
        making.contents[f"traces/{name}"] = _trace(data, scrub)
    making.contents[REPORT] = scrub(markdown(kept)).encode()
    return kept.to_json()


def _two_traces(record: OverlapRecord, folder: Path) -> tuple[OverlapRecord, dict[str, bytes]]:
    """The first profiles with their traces, and the others without."""
    profiles = tuple(p if at < TRACES else replace(p, trace=None) for at, p in enumerate(record.profiles))
    names = [p.trace for p in profiles if p.trace is not None]
    return replace(record, profiles=profiles), {name: (folder / name).read_bytes() for name in names}


def _trace(data: bytes, scrub: Callable[[str], str]) -> bytes:
    document = scrubbed(json.loads(gzip.decompress(data)), scrub)
    return gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=0)


def _manifest(recipe: Recipe, making: _Making, facts: Mapping[str, Any]) -> BundleManifest:
    return BundleManifest(
        device=str(facts["cpu"] if recipe.device == "cpu" else facts.get("gpu", recipe.device)),
        kind=recipe.device,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        dsv4lab=__version__,
        machine=facts,
        members=members_of(making.contents),
        failures=making.failures,
        seconds=making.seconds,
    )


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()
