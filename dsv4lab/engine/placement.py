"""Where a configuration has its model run, and what that takes of the machine."""

from __future__ import annotations

import torch

from dsv4lab import host
from dsv4lab.backends.choose import backend_ops
from dsv4lab.backends.weights import moved
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.model import ModelConfig
from dsv4lab.errors import ConfigError, UnavailableError
from dsv4lab.model.programs import Placement
from dsv4lab.model.weights import Named
from dsv4lab.overlap.device_api import DeviceApi
from dsv4lab.overlap.device_torch import TorchDevice

EXPERT_TILE = 64
"""Of the expert kernels, in values."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def place_of(config: EngineConfig) -> Placement:
    """Where ``config`` has its model run.

    Raises:
        UnavailableError: a device or backend that is not here.
        ConfigError: what the kernels of a GPU do not take.

    """
    device = torch.device(config.device.replace("hip", "cuda"))  # torch's name of AMD GPUs
    if device.type != "cpu":
        device = _gpu(config, device)
    asked = None if config.backend == "auto" else config.backend
    ops = backend_ops(device.type, asked, batch_invariant=config.batch_invariant)
    return Placement(ops, device, DTYPES[config.dtype])


def _gpu(config: EngineConfig, device: torch.device) -> torch.device:
    """``device`` with its number, once it is known that the engine runs on it."""
    there = "cuda" if torch.version.hip is None else "hip"
    here = there if torch.cuda.is_available() else "cpu"
    if config.device.partition(":")[0] != here:
        raise UnavailableError(f"device {config.device!r} is not available here; it takes {_choices(here)}")
    count = torch.cuda.device_count()
    index = device.index if ":" in config.device else torch.cuda.current_device()
    if index >= count:
        raise UnavailableError(f"device {config.device!r}: there are {count} GPUs, numbered from 0")
    if config.dtype != "bfloat16":
        raise ConfigError(f"engine config: dtype is {config.dtype!r}: kernels of {config.device} take 'bfloat16'")
    if config.graphs and config.dp_size > 1:
        raise ConfigError("engine config: graphs is True: with dp_size above 1 it takes False on a GPU")
    return torch.device("cuda", index)


def _choices(here: str) -> str:
    return "cpu" if here == "cpu" else f"cpu, {here} or {here}:N"


def check_model(model: ModelConfig, place: Placement) -> None:
    """Raise :class:`ConfigError` for a model whose experts are too narrow for the kernels of a GPU."""
    if place.device.type == "cpu":
        return
    for name in ("hidden_size", "moe_intermediate_size"):
        if getattr(model, name) % EXPERT_TILE:
            raise ConfigError(
                f"model {model.name}: {name} is {getattr(model, name)}: kernels of a GPU take multiples of "
                f"{EXPERT_TILE}, which preset demo and the released models have"
            )


def device_api(place: Placement) -> DeviceApi | None:
    """The runtime of a GPU, which becomes the process's current one; None on the CPU."""
    if place.device.type == "cpu":
        return None
    torch.cuda.set_device(place.device)
    return TorchDevice(place.device)


def room_for(tensors: Named, place: Placement) -> int | None:
    """Bytes that a pool may take: the machine's memory, or what ``tensors`` will leave free of a GPU's."""
    if place.device.type == "cpu":
        return host.memory_bytes()
    free, _ = torch.cuda.mem_get_info(place.device)
    return max(1, free - sum(t.nbytes for t in tensors.values() if t.device != place.device))


def take_there(tensors: Named, place: Placement) -> None:
    """Move ``tensors`` to their device, one at a time."""
    named: dict[str, object] = tensors  # type: ignore[assignment]
    for name, tensor in tensors.items():
        if tensor.device != place.device:
            named[name] = moved(tensor, place.device)
