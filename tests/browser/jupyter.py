"""A real JupyterLab server and notebooks in it, for tests that drive a browser."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import nbformat
from playwright.sync_api import Error, Locator, Page

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = float(os.environ.get("DSV4LAB_BROWSER_PATIENCE_S", "120"))
PATIENCE_MS = PATIENCE_S * 1000
_QUIET = {
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/docmanager-extension/plugin.jupyterlab-settings": {"autosave": False},
}


@dataclass(frozen=True)
class Server:
    """A running server: its address with token, and its folder."""

    url: str
    token: str
    folder: Path

    def notebook(self, name: str, cells: list[str]) -> str:
        """Write a notebook of code cells and return the address that opens it alone."""
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(source) for source in cells],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        )
        nbformat.write(notebook, self.folder / name)
        return f"{self.url}doc/tree/{name}?token={self.token}&reset"


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """JupyterLab on a port of its own, with settings of its own, until the block ends."""
    work = folder / "work"
    work.mkdir(parents=True)
    settings = folder / "settings"
    for name, values in _QUIET.items():
        (settings / name).parent.mkdir(parents=True, exist_ok=True)
        (settings / name).write_text(json.dumps(values), encoding="utf-8")
    own = {name: str(folder / name.lower()) for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR")}
    own |= {"JUPYTERLAB_SETTINGS_DIR": str(settings), "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces")}
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "kernels")))
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--allow-root",
        "--ServerApp.port=0",
        "--ServerApp.ip=127.0.0.1",
    ]
    command += [
        f"--ServerApp.root_dir={work}",
        "--expose-app-in-browser",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **own, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log
        )
        try:
            yield _ready(process, Path(own["JUPYTER_RUNTIME_DIR"]), work, folder / "server.log")
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ready(process: subprocess.Popen[bytes], runtime: Path, work: Path, log: Path) -> Server:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        for path in runtime.glob("jpserver-*.json"):
            try:
                info = json.loads(path.read_text(encoding="utf-8"))
            except ValueError:
                continue  # it is being written
            return Server(info["url"], info["token"], work)
        time.sleep(0.05)
    raise AssertionError(f"JupyterLab did not start: {log.read_text(encoding='utf-8', errors='replace')[-2000:]}")


class NotebookPage:
    """A notebook that is open in a page."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.problems: list[str] = []
        page.on("pageerror", self._problem)
        page.set_default_timeout(PATIENCE_MS)
        page.goto(url)
        page.wait_for_function("window.jupyterapp && document.querySelector('.jp-Notebook')", timeout=PATIENCE_MS)
        self.wait_for_kernel()

    def _problem(self, error: Error) -> None:
        """Keep errors of our modules, which are loaded from blobs; those of JupyterLab alone are not ours."""
        if "blob:" in (error.stack or "blob:"):
            self.problems.append(str(error))

    def wait_for_kernel(self) -> None:
        """Wait until the kernel is there and idle."""
        self.page.wait_for_function(
            """() => {
              const kernel = window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel;
              return kernel && kernel.connectionStatus === 'connected' && kernel.status === 'idle';
            }""",
            timeout=PATIENCE_MS,
        )

    def command(self, name: str) -> None:
        """Run a command of JupyterLab and wait for what it returns."""
        self.page.evaluate("name => window.jupyterapp.commands.execute(name).then(() => null)", name)

    def run(self, cell: int) -> None:
        """Run a cell and wait until it has run."""
        self.page.evaluate("at => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = at; }", cell)
        self.command("notebook:run-cell")

    def rewrite(self, cell: int, source: str) -> None:
        """Give a cell another source."""
        content = "window.jupyterapp.shell.currentWidget.content"
        self.page.evaluate(f"([at, text]) => {content}.model.sharedModel.getCell(at).setSource(text)", [cell, source])

    def restart(self) -> None:
        """Restart the kernel."""
        self.page.evaluate(
            "() => window.jupyterapp.shell.currentWidget.sessionContext.restartKernel().then(() => null)"
        )
        self.wait_for_kernel()

    def output(self, cell: int) -> Locator:
        """Where a cell's output is."""
        return self.page.locator(".jp-Notebook > .jp-WindowedPanel-outer .jp-Cell").nth(cell).locator(".jp-OutputArea")

    def text(self, cell: int) -> str:
        """What a cell printed."""
        return self.output(cell).inner_text()

    def theme(self, dark: bool) -> None:
        """Switch JupyterLab's theme."""
        name = "JupyterLab Dark" if dark else "JupyterLab Light"
        self.page.evaluate(
            "name => window.jupyterapp.commands.execute('apputils:change-theme', { theme: name }).then(() => null)",
            name,
        )
        self.page.wait_for_selector(f"body[data-jp-theme-light='{'false' if dark else 'true'}']", state="attached")


def picture(view: Locator, cell: str, text: str) -> Locator:
    """The picture in the board's ``cell``, scrolled to and with ``text`` in it: those out of sight are not drawn."""
    view.page.mouse.move(1, 1)  # on a picture it would hold it as it is
    found = view.locator(f"[data-cell='{cell}']")
    found.scroll_into_view_if_needed()
    wait_for_text(found, text)
    return found


def wait_for_text(locator: Locator, text: str) -> None:
    """Wait until ``text`` is in what ``locator`` shows."""
    locator.filter(has_text=text).first.wait_for(timeout=PATIENCE_MS)
