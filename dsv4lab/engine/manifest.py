"""What an engine was made with, for every result that it gives."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime

import torch

from dsv4lab._version import __version__
from dsv4lab.config.engine import EngineConfig
from dsv4lab.host import cpu_name
from dsv4lab.timeline.records import Manifest


def manifest_of(config: EngineConfig) -> Manifest:
    """The manifest of an engine of ``config`` in this process."""
    return Manifest(
        dsv4lab=__version__,
        python=platform.python_version(),
        torch=str(torch.__version__),
        platform=platform.platform(),
        cpu=cpu_name(),
        cpus=os.cpu_count() or 1,
        device=config.device,
        preset=config.model,
        seed=config.seed,
        settings=config.to_json(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
