"""A rank's place in a run: how it meets the others, and what it builds there."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

from dsv4lab.checkpoint.source import model_config
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.presets import first_layers
from dsv4lab.engine.child import Line
from dsv4lab.engine.crew import Crew, OnDeath
from dsv4lab.engine.rank_messages import Join, encode
from dsv4lab.errors import ConfigError
from dsv4lab.parallel.groups import Parallel, backend_of, open_groups
from dsv4lab.parallel.layout import Layout, led_by


@dataclass(frozen=True, slots=True, eq=False)
class Seat:
    """The groups of this rank, and the processes that it has started."""

    parallel: Parallel
    crew: Crew


def layout_of(config: EngineConfig, rank: int) -> Layout:
    """The grid that ``config`` asks for."""
    return Layout(config.tp_size, config.dp_size, config.ep_size, rank)


def check(config: EngineConfig) -> None:
    """Raise :class:`LabError` if these ranks cannot run this model, before any process is started."""
    backend_of(config.device)
    layout_of(config, 0).check(first_layers(model_config(config.model), config.num_layers))
    if config.device != "cpu":
        wanted, there = config.world_size, torch.cuda.device_count()
        if wanted > there:
            raise ConfigError(f"tp_size x dp_size = {wanted}: a GPU for each rank, and this machine has {there}")


class Meeting:
    """Rank 0's: a file in a folder of its own, which only this user reads, where the ranks find one another."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="dsv4lab-ranks-")
        self.path = str(Path(self._folder) / "store")

    def close(self) -> None:
        """All have met."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self._folder)


def take_seat(
    config: EngineConfig,
    rank: int,
    store: str,
    on_death: OnDeath,
    stage: Callable[[str], None],
    processes: Sequence[Line],
) -> tuple[EngineConfig, Seat]:
    """Let ``processes`` be the ranks that this one leads, and meet all others at ``store``.

    Gives the configuration of this rank's device, too. Raises :class:`CollectiveError` if the others are late.
    """
    layout = layout_of(config, rank)
    crew = Crew(config.world_size, on_death)
    for other, process in zip(led_by(layout), processes, strict=True):
        member = crew.take(other, process)
        member.process.send_bytes(encode(Join(config.to_json(), other, store)))
    stage(f"meeting {config.world_size - 1} other rank{'s' if config.world_size > 2 else ''}")
    if config.device != "cpu":
        config = replace(config, device=f"{config.device.partition(':')[0]}:{rank}")
        torch.cuda.set_device(rank)
    shared = dist.FileStore(store, config.world_size)  # type: ignore[attr-defined]
    with contextlib.nullcontext() if layout.tp_rank else crew.fatal(rank):
        parallel = open_groups(layout, shared, config.device, config.collective_timeout_s)
    return config, Seat(parallel, crew)
