"""Starting TensorBoard on a folder of runs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from dsv4lab.errors import UnavailableError


def command(logdir: Path, port: int) -> list[str]:
    """The command line, with the Python that runs this."""
    return [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--port", str(port)]


def serve(words: list[str]) -> int:
    """Run TensorBoard until it is interrupted; its exit code. Raises ``UnavailableError`` if it is not installed."""
    for module in ("tensorboard", "torch_tb_profiler"):
        if importlib.util.find_spec(module) is None:
            raise UnavailableError(f"{module} is not installed: pip install 'dsv4lab[tensorboard]'")
    return subprocess.run(words, check=False).returncode
