"""Which devices there are, and which of them the engine runs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dsv4lab import host
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.resolve import DeviceKind
from dsv4lab.errors import UnavailableError

BLACKWELL = 10  # compute capability from which the overlap gate is wider
NEEDED = (
    "overlap on a GPU takes a torch built for CUDA or ROCm, the Triton that came with it, and an NVIDIA GPU "
    "(sm_90, sm_100) or one of AMD (gfx942, gfx950)"
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A device that the engine runs on, as :func:`dsv4lab.open` takes it, and a sentence about why it is this one."""

    device: str
    text: str


def dtype_of(device: str) -> str:
    """Number format of activations where none is named: what the kernels of ``device`` take."""
    return "float32" if device == "cpu" else "bfloat16"


def find_devices() -> tuple[list[dict[str, Any]], list[str]]:
    """The devices: ``kind``, ``name``, ``memory_bytes``, ``blackwell`` each; and what kept us from asking for GPUs."""
    cpu = {"kind": "cpu", "name": host.cpu_name(), "memory_bytes": host.memory_bytes(), "blackwell": False}
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a library that torch links to is missing
        return [cpu], [f"torch cannot be imported: {' '.join(str(error).split())}"]
    gpus = []
    for at in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        facts = torch.cuda.get_device_properties(at)
        kind = DeviceKind.HIP if torch.version.hip else DeviceKind.CUDA
        blackwell = kind is DeviceKind.CUDA and facts.major >= BLACKWELL
        memory = facts.total_memory
        gpus.append({"kind": kind.value, "name": facts.name, "memory_bytes": memory, "blackwell": blackwell})
    return [cpu, *gpus], []


def gpu_name(device: str) -> str | None:
    """What the GPU of ``device`` (``cuda``, ``hip:1``) is called; None where it is not here."""
    kind, _, number = device.partition(":")
    names = [str(found["name"]) for found in find_devices()[0] if found["kind"] == kind]
    at = int(number or 0)
    return names[at] if kind != "cpu" and at < len(names) else None


def choose_device(asked: str = "auto") -> Chosen:
    """The device to use: ``asked``, or with ``auto`` the first GPU that the engine runs on, else the CPU device.

    Raises:
        UnavailableError: ``asked`` is not here, or the engine does not run on it.

    """
    from dsv4lab.engine.placement import place_of

    found, problems = find_devices()
    cpu = f"the CPU device measures {found[0]['name']}, {host.usable_cores()} cores, and predicts nothing about a GPU"
    if asked != "auto":
        place_of(EngineConfig("tiny", device=asked, dtype=dtype_of(asked)))
        return Chosen(asked, cpu if asked == "cpu" else f"device {asked}, as asked")
    for gpu in found[1:]:
        try:
            place_of(EngineConfig("tiny", device=gpu["kind"], dtype=dtype_of(gpu["kind"])))
        except UnavailableError as error:
            text = f"{gpu['name']} is here, and the engine does not run on it: {error}"
            return Chosen("cpu", f"{text}; {cpu}")
        return Chosen(gpu["kind"], gpu["name"])
    return Chosen("cpu", "; ".join([*problems, f"torch sees no GPU: {NEEDED}", cpu]))
