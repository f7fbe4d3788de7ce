"""How long ``import dsv4lab`` takes: a figure for ``make bench``."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

LIMIT_MS = 200


def start_ms(code: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return 1e3 * (time.perf_counter() - begin)


@pytest.mark.bench
def test_import_takes_less_than_200_ms(record_figure: Callable[..., None]) -> None:
    pairs = [(start_ms("pass"), start_ms("import dsv4lab")) for _ in range(11)]
    extra = statistics.median(with_import - bare for bare, with_import in pairs)
    bare = statistics.median(bare for bare, _ in pairs)
    record_figure("import dsv4lab", extra, "ms over a bare interpreter", bare_ms=bare, ratio=(bare + extra) / bare)
    assert extra < LIMIT_MS


@pytest.mark.bench
def test_help_starts_without_torch(record_figure: Callable[..., None]) -> None:
    run = "from dsv4lab.cli.main import main; main(['doctor', '--help'])"
    took = statistics.median(start_ms(run) for _ in range(5))
    record_figure("dsv4lab doctor --help", took, "ms")
    assert took < 1000
