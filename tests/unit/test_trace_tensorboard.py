"""TensorBoard, really started on a run that we wrote."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4lab.cli.trace_tensorboard import command
from dsv4lab.timeline.timeline import Timeline
from dsv4lab.trace.export import export_run

pytestmark = pytest.mark.slow
PLUGIN = "data/plugin/pytorch_profiler"
DEADLINE_S = 90


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def tensorboard(logdir: Path) -> Iterator[str]:
    port = free_port()
    log = (logdir.parent / "tensorboard.log").open("w")
    process = subprocess.Popen([*command(logdir, port), "--host", "127.0.0.1"], stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)
        log.close()


def ask(url: str, **query: str) -> Any:
    """The answer once there is one: the server starts and loads runs in the background."""
    full = f"{url}?{urllib.parse.urlencode(query)}"
    stop = time.monotonic() + DEADLINE_S
    while time.monotonic() < stop:
        try:
            with urllib.request.urlopen(full, timeout=10) as answer:
                found = json.loads(answer.read())
        except (urllib.error.URLError, ConnectionError, json.JSONDecodeError):
            found = None
        if found and found not in ({"runs": [], "loading": True}, {"runs": [], "loading": False}):
            return found
        time.sleep(0.5)
    raise AssertionError(f"no answer from {full}")


def test_the_plugin_serves_our_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    pytest.importorskip("torch_tb_profiler", reason="torch-tb-profiler is not installed")
    at = np.arange(60)
    line = Timeline.build(
        start_ns=at * 2_000_000,
        dur_ns=1_000_000 + at * 1_000,
        stream=at % 2,
        queue=at % 2,
        name=at % 3,
        step=at // 20,
        names=["attn.out", "moe.experts", "compressor.gemm"],
        streams=["main", "side0"],
        queues=["0", "1"],
        meta={"platform": "cpu"},
    )
    logdir = tmp_path / "logs"
    export_run(line, logdir / "run1", worker="host_1", time_ns=1)
    with tensorboard(logdir) as url:
        assert ask(f"{url}/{PLUGIN}/runs")["runs"] == ["run1"]
        views = ask(f"{url}/{PLUGIN}/views", run="run1")
        assert {"Overview", "Kernel", "Trace"} <= set(views)
        workers = ask(f"{url}/{PLUGIN}/workers", run="run1", view="Kernel")
        assert workers == ["host_1"]
        spans = ask(f"{url}/{PLUGIN}/spans", run="run1", worker="host_1")
        kernels = ask(f"{url}/{PLUGIN}/kernel/table", run="run1", worker="host_1", span=str(spans[0]))
        rows = kernels["data"]["rows"]
        columns = [c["name"] for c in kernels["data"]["columns"]]
        calls = {row[columns.index("Name")]: row[columns.index("Calls")] for row in rows}
        assert calls == {"attn.out": 20, "moe.experts": 20, "compressor.gemm": 20}
        overview = ask(f"{url}/{PLUGIN}/overview", run="run1", worker="host_1", span=str(spans[0]))
        assert "Kernel" in json.dumps(overview)
