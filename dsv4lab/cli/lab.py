"""``dsv4lab lab``: JupyterLab on the tour notebook."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import dsv4lab
from dsv4lab.cli.base import Command
from dsv4lab.cli.output import emit_json, note
from dsv4lab.errors import UnavailableError, UsageError

TOUR = "00_tour.ipynb"
_CHECKOUT = Path(dsv4lab.__file__).resolve().parents[1] / "notebooks"
_BUNDLED = Path(sysconfig.get_path("data")) / "share" / "dsv4lab" / "notebooks"  # where a wheel puts them


class LabCommand(Command):
    """Open JupyterLab."""

    name = "lab"
    help = "open JupyterLab on the tour notebook, or on another one"
    examples = (
        "dsv4lab lab",
        "dsv4lab lab --no-browser --port 8899",
        "dsv4lab lab notebooks/00_tour.ipynb",
        "dsv4lab lab --dry-run --json",
    )

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Arguments: which notebook, and how the server is started."""
        parser.add_argument("notebook", nargs="?", type=Path, help=f"notebook to open (default: the tour, {TOUR})")
        parser.add_argument("--port", type=int, help="port of the server (default: Jupyter's own choice)")
        parser.add_argument("--no-browser", action="store_true", help="start the server only, and print its address")
        parser.add_argument("--dry-run", action="store_true", help="say what would be started, and stop")

    def run(self, args: argparse.Namespace) -> int:
        """Start the server and stay until it ends. JSON: ``notebook``, ``command``, printed before the start."""
        notebook = _notebook(args.notebook, dry_run=args.dry_run)
        command = _jupyter(notebook, args.port, args.no_browser)
        if args.json:
            emit_json({"notebook": str(notebook), "command": command})
        else:
            note(f"opening {notebook}")
        if args.dry_run:
            return 0
        _require_jupyterlab()
        return _serve(command)


def _serve(command: list[str]) -> int:
    with subprocess.Popen(command, stdout=sys.stderr) as server:
        while True:
            try:
                return server.wait()
            except KeyboardInterrupt:
                # The server got it too: it asks, and ends its kernels before it goes.
                continue


def _require_jupyterlab() -> None:
    missing = [name for name in ("jupyterlab", "ipywidgets") if importlib.util.find_spec(name) is None]
    if missing:
        raise UnavailableError(f"{' and '.join(missing)} not installed: pip install 'dsv4lab[notebook]'")


def _notebook(asked: Path | None, *, dry_run: bool) -> Path:
    """The notebook to open; those that came in a wheel are copied here first, so that they can be edited."""
    if asked is not None:
        if not asked.is_file():
            raise UsageError(f"notebook {asked}: no such file")
        return asked.resolve()
    if (_CHECKOUT / TOUR).is_file():
        return _CHECKOUT / TOUR
    if not (_BUNDLED / TOUR).is_file():
        raise UnavailableError(f"{TOUR} is neither in {_CHECKOUT} nor in {_BUNDLED}: name a notebook to open")
    folder = Path.cwd() / "notebooks"
    if not dry_run:
        _copy_missing(folder)
    return folder / TOUR


def _copy_missing(folder: Path) -> None:
    """The wheel's notebooks, but for those that are in ``folder`` already and may have been edited."""
    folder.mkdir(exist_ok=True)
    for bundled in sorted(_BUNDLED.glob("*.ipynb")):
        if not (folder / bundled.name).exists():
            shutil.copyfile(bundled, folder / bundled.name)


def _jupyter(notebook: Path, port: int | None, no_browser: bool) -> list[str]:
    command = [sys.executable, "-m", "jupyterlab", str(notebook)]
    if port is not None:
        if not 1 <= port <= 65535:
            raise UsageError(f"--port {port}: it takes a number from 1 to 65535")
        command.append(f"--port={port}")
    if no_browser:
        command.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        # Jupyter refuses to run as root, which is what one is in a container. It listens on localhost with a token.
        command += ["--allow-root", "--ip=localhost"]
    return command
