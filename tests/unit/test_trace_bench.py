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
from dsv4lab.timeline.occupancy import occupancy, queue_depth
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
def spent():
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in used)
before, begin = spent(), time.perf_counter()
trace = load_trace(sys.argv[1])
opened = time.perf_counter() - begin
busy = trace.stream_busy()
took = time.perf_counter() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"s": took, "open": opened, "cpu": spent() - before, "mib": peak, "events": trace.report.events,
                  "bytes": trace.report.plain_bytes, "cached": trace.report.cached, "union": busy.union_busy_ns}))
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


def test_load_against_the_floor_and_a_peer(tmp_path: Path, record_figure: Callable[..., None]) -> None:
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
        f"floor (inflate and decode, nothing kept) {floor['s']:.2f} s; "
        f"second open {second['open']:.3f} s, with busy times {second['s']:.3f} s"
    )
    size = {"megabytes": megabytes, "cpu_s": first["cpu"], "floor_s": floor["s"]}
    record_figure("load and busy times of a gzipped trace", first["s"], "s", **size, peak_mib=first["mib"])
    record_figure("second open of it", second["open"], "s", with_busy_s=second["s"], megabytes=megabytes)
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


def test_busy_and_occupancy_of_a_million_rows(record_figure: Callable[..., None]) -> None:
    line = line_of(1_000_000)
    values = np.random.default_rng(1).integers(0, 2**60, 1_000_000)
    yardstick = best(lambda: np.sort(values))
    busy, depth = best(lambda: summarise(line)), best(lambda: queue_depth(line))
    steps = best(lambda: occupancy(line))
    both = best(lambda: (summarise(line), queue_depth(line)))
    cpu = cpu_of(lambda: (summarise(line), queue_depth(line)))
    print(
        f"\n1e6 rows: busy {busy * 1e3:.0f} ms, queue depth {depth * 1e3:.0f} ms, occupancy steps {steps * 1e3:.0f} ms"
    )
    record_figure("busy, concurrency and occupancy of 1e6 rows", both, "s", cpu_s=cpu, sort_s=yardstick, steps_s=steps)
    assert both < 4 * yardstick


def cpu_of(function: Callable[[], object], runs: int = 5) -> float:
    """Seconds of processor time of one run, over all threads: what other programs on the machine change least."""
    begin = time.process_time()
    for _ in range(runs):
        function()
    return (time.process_time() - begin) / runs


def exponent(sizes: list[float], times: list[float]) -> float:
    """The power of the size by which the time grows."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def test_busy_grows_in_step_with_the_rows(record_figure: Callable[..., None]) -> None:
    sizes = [10**4, 10**5, 10**6, 10**7]
    times = []
    for rows in sizes:
        line = line_of(rows)
        times.append(min(cpu_of(partial(summarise, line), 1) for _ in range(3)))
    print("\n" + ", ".join(f"{rows:.0e} rows {took * 1e3:.1f} ms" for rows, took in zip(sizes, times, strict=True)))
    power = exponent(list(map(float, sizes[1:])), times[1:])
    record_figure("busy of 1e5 to 1e7 rows: exponent", power, "", cpu_s=times)
    assert power < 1.3  # columns of 1e7 rows no longer fit the processor's caches


def test_load_grows_in_step_with_the_events(tmp_path: Path, record_figure: Callable[..., None]) -> None:
    """From 1e4 events to ``DSV4LAB_BENCH_EVENTS`` (default 1e6; the compass is 1e7) of about 215 bytes each."""
    most = float(os.environ.get("DSV4LAB_BENCH_EVENTS", "1e6"))
    found = []
    for events in (e for e in (1e4, 1e5, 1e6, 1e7) if e <= most):
        path = tmp_path / "grows.pt.trace.json.gz"
        generate(path, events * 215 / 1e6)
        found.append(measured(LOAD, path, tmp_path / f"cold{events:.0f}", runs=1))
    sizes, times = [f["events"] for f in found], [f["cpu"] for f in found]
    print(
        "\n" + ", ".join(f"{n:.0f} events {took:.2f} s of processor time" for n, took in zip(sizes, times, strict=True))
    )
    power = exponent(sizes[1:], times[1:])
    record_figure("load of 1e5 events and more: exponent", power, "", events=sizes, cpu_s=times)
    assert power < 1.15
