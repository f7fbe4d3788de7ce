"""What torch's profiler would write on a GPU, made from what it writes of a recorded device on the CPU.

Every outermost operator becomes a kernel: launched on its own where the host calls ops one by one, all of a replay by
one graph launch. Lanes are the device's streams.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch.profiler import record_function

from dsv4lab.trace.marks import run_number
from tests.cpu.fake_device import FakeDevice, Work

Event = dict[str, Any]
STREAM = "fake stream "


class TracedDevice(FakeDevice):
    """Tells in a range on which stream each launch is."""

    def _launch(self, stream: int, work: Work | None, before: int, *, enqueue: bool = True) -> None:
        with record_function(f"{STREAM}{stream}"):
            super()._launch(stream, work, before, enqueue=enqueue)


def as_gpu(path: Path, change: Callable[[list[Event]], None] = lambda kernels: None, *, nodes: bool = True) -> None:
    """Rewrite the file at ``path``; ``change`` may alter the kernels, ``nodes`` gives them graph node ids."""
    document = json.loads(path.read_text())
    events = document["traceEvents"]
    slices = sorted((e for e in events if e.get("ph") == "X" and "dur" in e), key=lambda e: (e["ts"], -e["dur"]))
    replays = [e for e in slices if run_number(e["name"]) is not None and e["name"].endswith(", graph")]
    kernels = list(_kernels(slices, replays, nodes=nodes))
    change(kernels)
    for at, replay in enumerate(replays):
        events.append(_call("cudaGraphLaunch", replay["ts"], at + 1))
    events += [_call("cudaLaunchKernel", k["ts"], c) for k in kernels if (c := k["args"]["correlation"]) > len(replays)]
    kept = [e for e in events if not str(e.get("name")).startswith(STREAM)]
    document["traceEvents"] = kept + kernels
    document["deviceProperties"] = [{"id": 0, "name": "fake GPU"}]
    path.write_text(json.dumps(document))


def _kernels(slices: list[Event], replays: list[Event], *, nodes: bool) -> Iterator[Event]:
    streams = [e for e in slices if e["name"].startswith(STREAM)]
    at, end, correlation = -1, 0.0, len(replays)
    for op in (e for e in slices if e.get("cat") == "cpu_op" and e["ts"] >= 0):
        while at + 1 < len(streams) and streams[at + 1]["ts"] <= op["ts"]:
            at += 1
        if op["ts"] < end or at < 0 or op["ts"] >= streams[at]["ts"] + streams[at]["dur"]:
            continue  # inside another operator, or no work of a stream
        end = op["ts"] + op["dur"]
        lane = int(streams[at]["name"].removeprefix(STREAM))
        replay = next((n for n, r in enumerate(replays) if r["ts"] <= op["ts"] < r["ts"] + r["dur"]), None)
        correlation += replay is None
        args = {"device": 0, "stream": lane, "grid": [1, 1, 1], "block": [32, 1, 1]}
        args["correlation"] = correlation if replay is None else replay + 1
        if replay is not None and nodes:
            args["graph node id"] = round(op["ts"] * 1000) % 10**12 + 1
        place = {"pid": 0, "tid": lane, "ts": op["ts"], "dur": op["dur"]}
        yield {"ph": "X", "cat": "kernel", "name": op["name"], **place, "args": args}


def _call(name: str, ts: float, correlation: int) -> Event:
    args = {"correlation": correlation}
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 0.001, "args": args}
