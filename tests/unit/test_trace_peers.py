"""Peers on what we export: they see the rows that we see. Nothing is installed for this; an absent tool is a skip.

HolisticTraceAnalysis: ``pip install HolisticTraceAnalysis``. TraceLens: from https://github.com/AMD-AGI/TraceLens (on
PyPI another project has its name). Perfetto: ``pip install perfetto``, and its ``trace_processor_shell`` on the path.
"""

from __future__ import annotations

import gzip
import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4lab.trace.api import Trace, load_trace
from dsv4lab.trace.export import export_kineto
from dsv4lab.trace.pftrace import export_pftrace

ROOT = Path(__file__).resolve().parents[2]
TRACES = [p.name for p in sorted((ROOT / "traces").glob("*")) if p.suffix in (".gz", ".csv", ".db")]


def peer(module: str, why: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        pytest.skip(f"{why}: {error}")


def rounding(trace: Trace) -> float:
    """Nanoseconds by which sums of microseconds in floating point may be off."""
    return 1 + len(trace) * 2000 * float(np.spacing(np.abs(trace.start_ns).max() / 1000))


def exported(name: str, folder: Path) -> tuple[Trace, Path]:
    trace = load_trace(ROOT / "traces" / name)
    return trace, export_kineto(trace, folder / "rank0.pt.trace.json.gz")


@pytest.mark.parametrize("name", TRACES)
def test_holistic_trace_analysis_has_our_wall_and_busy_time(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hta = peer("hta.trace_analysis", "HolisticTraceAnalysis is not installed")
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    trace, path = exported(name, tmp_path)
    analysis = hta.TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(tmp_path), include_last_profiler_step=True)
    row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    busy = trace.stream_busy()
    assert row["kernel_time(us)"] * 1000 == pytest.approx(busy.wall_ns, abs=rounding(trace))
    assert (row["kernel_time(us)"] - row["idle_time(us)"]) * 1000 == pytest.approx(
        busy.union_busy_ns, abs=rounding(trace)
    )


@pytest.mark.parametrize("name", TRACES)
def test_tracelens_has_our_wall_busy_and_idle_time(tmp_path: Path, name: str) -> None:
    tracelens = peer("TraceLens", "AMD's TraceLens is not installed")
    if not hasattr(tracelens, "GPUEventAnalyser"):
        pytest.skip("the installed TraceLens is another project or has no GPUEventAnalyser")
    trace, path = exported(name, tmp_path)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    found = tracelens.GPUEventAnalyser(events).compute_metrics()
    busy, exposure = trace.stream_busy(), trace.exposure()
    assert found["total_time"] * 1000 == pytest.approx(busy.wall_ns, abs=rounding(trace))
    assert found["busy_time"] * 1000 == pytest.approx(busy.union_busy_ns, abs=rounding(trace))
    assert found["total_comm_time"] * 1000 == pytest.approx(exposure.communication_ns, abs=rounding(trace))


@pytest.mark.parametrize("name", TRACES)
def test_perfetto_s_trace_processor_counts_our_slices(tmp_path: Path, name: str) -> None:
    processor = peer("perfetto.trace_processor", "perfetto is not installed")
    binary = shutil.which("trace_processor_shell")
    if binary is None:
        pytest.skip("trace_processor_shell is not on the path (the package would download it)")
    trace = load_trace(ROOT / "traces" / name)
    path = export_pftrace(trace, tmp_path / "t.pftrace")
    config = processor.TraceProcessorConfig(bin_path=binary)
    with processor.TraceProcessor(trace=str(path), config=config) as session:
        query = "select count(*) n, sum(dur) total from slice where category = 'dsv4lab.row'"
        (row,) = session.query(query)
    assert (row.n, row.total or 0) == (len(trace), int(trace.dur_ns.sum()))
