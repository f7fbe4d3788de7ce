"""How fast traces load and analyse, against floors and peers measured in the same run: `make bench`.

``DSV4LAB_BENCH_MB`` sets the size of the synthetic trace in plain megabytes (default 250; the compass is 1000).
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dsv4lab.timeline.busy import summarise
from dsv4lab.timeline.occupancy import occupancy
from dsv4lab.timeline.timeline import Timeline
from tools.gen_trace import Generator

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]
ROOT = Path(__file__).resolve().parents[2]

LOAD = """
import json, resource, sys, time
from pathlib import Path
from dsv4lab.trace.api import load_trace
from dsv4lab.trace import cache
cache.cache_folder = lambda: Path(sys.argv[2])
begin = time.perf_counter()
trace = load_trace(sys.argv[1])
busy = trace.stream_busy()
took = time.perf_counter() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"s": took, "mib": peak, "events": trace.report.events, "bytes": trace.report.plain_bytes,
                  "cached": trace.report.cached, "union": busy.union_busy_ns}))
"""
FLOOR = """
import gc, json, sys, time, zlib
import msgspec
try:
    from isal import isal_zlib as codec
except ImportError:
    codec = zlib
class Row(msgspec.Struct, gc=False):
    cat: str | None = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
decode = msgspec.json.Decoder(list[Row]).decode
begin = time.perf_counter()
text = codec.decompress(open(sys.argv[1], "rb").read(), wbits=31)
rows = decode(text[text.index(b"[", text.index(b"traceEvents")):text.rindex(b"]") + 1])
print(json.dumps({"s": time.perf_counter() - begin, "events": len(rows)}))
"""
PEER = """
import json, logging, sys, time
from torch_tb_profiler import utils
utils.get_logger().setLevel(logging.CRITICAL)
from torch_tb_profiler.profiler.data import RunProfileData
begin = time.perf_counter()
RunProfileData.parse("w", None, sys.argv[1], sys.argv[2])
print(json.dumps({"s": time.perf_counter() - begin}))
"""


def measured(script: str, *words: object, runs: int = 3) -> dict[str, float]:
    """The fastest of several runs, each in a process of its own."""
    found = []
    for _ in range(runs):
        out = subprocess.run(
            [sys.executable, "-c", script, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=True
        )
        found.append(json.loads(out.stdout.splitlines()[-1]))
    return min(found, key=lambda f: f["s"])


def generate(path: Path, megabytes: float) -> None:
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 5, raw, 0) as file:
        Generator(platform="rocm").write(file, megabytes=megabytes, layers=61)  # type: ignore[arg-type]


def best(function: Callable[[], object], runs: int = 5) -> float:
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)


def test_load_against_the_floor_and_a_peer(tmp_path: Path) -> None:
    megabytes = float(os.environ.get("DSV4LAB_BENCH_MB", "250"))
    path, folder = tmp_path / "big.pt.trace.json.gz", tmp_path / "cache"
    generate(path, megabytes)
    floor = measured(FLOOR, path)
    first = measured_cold(path, tmp_path)
    measured(LOAD, path, folder, runs=1)
    second = measured(LOAD, path, folder)
    gigabytes = first["bytes"] / 1e9
    print(
        f"\nload {first['bytes'] / 1e6:.0f} MB, {first['events']:.0f} events: {first['s']:.2f} s "
        f"({first['s'] / gigabytes:.2f} s/GB, {first['events'] / first['s'] / 1e6:.2f} M events/s, "
        f"{first['mib']:.0f} MiB peak); "
        f"floor (inflate and decode, nothing kept) {floor['s']:.2f} s; second open {second['s']:.3f} s"
    )
    assert second["cached"]
    assert second["union"] == first["union"]
    assert first["mib"] < 500
    assert first["s"] < 3 * floor["s"]
    assert second["s"] < 0.3 * first["s"]


def measured_cold(path: Path, tmp_path: Path) -> dict[str, float]:
    """The fastest load without a cache: a fresh cache folder every time."""
    found = [measured(LOAD, path, tmp_path / f"cold{at}", runs=1) for at in range(3)]
    assert not any(f["cached"] for f in found)
    return min(found, key=lambda f: f["s"])


def test_load_against_torch_tb_profiler(tmp_path: Path) -> None:
    pytest.importorskip("torch_tb_profiler", reason="torch-tb-profiler is not installed")
    path = tmp_path / "mid.pt.trace.json.gz"
    generate(path, 25)
    peer = measured(PEER, path, tmp_path)
    ours = measured_cold(path, tmp_path)
    ratio = peer["s"] / ours["s"]
    print(f"\n25 MB: torch-tb-profiler {peer['s']:.2f} s, ours {ours['s']:.2f} s: {ratio:.1f} times faster")
    assert ours["s"] < peer["s"] / 4


def line_of(rows: int) -> Timeline:
    rng = np.random.default_rng(0)
    start = np.cumsum(rng.integers(500, 3000, rows))
    stream = rng.integers(0, 8, rows)
    return Timeline.build(
        start_ns=start,
        dur_ns=rng.integers(1000, 9000, rows),
        queued_ns=start - rng.integers(0, 20000, rows),
        stream=stream,
        queue=stream % 4,
        name=rng.integers(0, 50, rows),
        names=[str(n) for n in range(50)],
        streams=[str(n) for n in range(8)],
        queues=list("0123"),
    )


def test_busy_and_occupancy_of_a_million_rows() -> None:
    line = line_of(1_000_000)
    values = np.random.default_rng(1).integers(0, 2**60, 1_000_000)
    yardstick = best(lambda: np.sort(values))
    busy, queues = best(lambda: summarise(line)), best(lambda: occupancy(line))
    took = f"busy {busy * 1e3:.0f} ms, occupancy {queues * 1e3:.0f} ms"
    print(f"\n1e6 rows: {took}; np.sort of 1e6 {yardstick * 1e3:.0f} ms")
    assert busy + queues < 6 * yardstick


def test_busy_grows_in_step_with_the_rows() -> None:
    times = {}
    for rows in (10**4, 10**5, 10**6, 10**7):
        line = line_of(rows)
        times[rows] = best(partial(summarise, line), 3)
    print("\n" + ", ".join(f"{rows:.0e} rows {took * 1e3:.1f} ms" for rows, took in times.items()))
    assert times[10**7] < 20 * times[10**6]
    assert times[10**6] < 20 * times[10**5]


def test_load_grows_in_step_with_the_events(tmp_path: Path) -> None:
    found = []
    for megabytes in (3, 30, 150):
        path = tmp_path / f"{megabytes}.pt.trace.json.gz"
        generate(path, megabytes)
        found.append(measured_cold(path, tmp_path / str(megabytes)))
    print("\n" + ", ".join(f"{f['events']:.0f} events {f['s']:.2f} s" for f in found))
    per_event = [f["s"] / f["events"] for f in found]
    assert per_event[2] < 1.5 * per_event[1]
