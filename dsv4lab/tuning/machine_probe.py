"""The probe of this machine: what ``dsv4lab probe`` writes and a bundle holds."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dsv4lab import host
from dsv4lab._version import __version__

MOST_STREAMS = 32
NO_EDGES = (
    "the HIP library that torch loaded has no ordering edges (rocm-systems#11212): overlap on side streams is likely "
    "a regression here"
)

Probed = tuple[dict[str, Any], list[str]]
"""A probe's document, and warnings."""


def probe_machine(device: str, rounds: int) -> Probed:
    """Probe ``device`` (``cpu``, ``cuda`` or ``hip``) in ``rounds`` rounds.

    Raises :class:`UnavailableError` for a device that is not here.
    """
    return probe_cpu_device(rounds) if device == "cpu" else probe_gpu(device, rounds)


def machine_of(**more: Any) -> dict[str, Any]:
    """What a probe tells of the machine it ran on."""
    return {
        "dsv4lab": __version__,
        "cpu": host.cpu_name(),
        "cores": host.usable_cores(),
        "platform": platform.platform(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **more,
    }


def probe_cpu_device(rounds: int) -> Probed:
    """The CPU device's two costs: a handoff, and how far two readers slow each other."""
    from dsv4lab.predict.cpu_probe import probe_cpu
    from dsv4lab.predict.probe import cpu_rows, probe_file

    found = probe_cpu(rounds)
    told = {
        "handoff_us": found.handoff_us,
        "slowdown": found.slowdown,
        "compute_slowdown": found.compute_slowdown,
    }
    return probe_file("cpu", machine_of(), cpu_rows(found), told), []


def probe_gpu(device: str, rounds: int) -> Probed:
    """Streams at once, shared queues, and the costs of launches, joins and graphs."""
    import torch

    from dsv4lab.config.engine import EngineConfig
    from dsv4lab.engine.placement import device_api, place_of
    from dsv4lab.overlap.spin import SpinBench
    from dsv4lab.predict.probe import model_device, ordering_edges, probe, probe_file

    api = device_api(place_of(EngineConfig("tiny", device=device, dtype="bfloat16")))
    assert api is not None
    bench = SpinBench(api, rounds)
    rows, found = probe(bench.measure, bench.distinct_streams(MOST_STREAMS))
    edges = ordering_edges(Path("/proc/self/maps").read_text(encoding="utf-8"), lambda path: Path(path).read_bytes())
    gpu = torch.cuda.get_device_name()
    runtime = f"HIP {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    machine = machine_of(gpu=gpu, runtime=runtime, torch=str(torch.__version__))
    if edges is not None:
        machine |= {"hip_library": edges[0], "ordering_edges": edges[1]}
    told = {**found.to_json(), "host_us": bench.host_us()}
    warnings = [NO_EDGES] if edges is not None and not edges[1] else []
    return probe_file(model_device(gpu), machine, rows, told), warnings
