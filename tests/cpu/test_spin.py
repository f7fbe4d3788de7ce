"""Probe programs on a recorded device: what is spun, where, how often, and what is waited for."""

from __future__ import annotations

from typing import Any

import pytest

from dsv4lab.overlap.spin import LEAD_US, SpinBench
from dsv4lab.predict.probe import SPIN_US, at_once, chain, pairs, probe, waiter
from tests.cpu.fake_device import FakeDevice


def spun(device: FakeDevice, bench: SpinBench, document: dict[str, Any], clock: str = "gpu") -> tuple[float, int]:
    """Microseconds spun and items issued in one more measurement of a document that was measured before."""
    bench.measure(document, clock)
    us, items = device.spun_us, len(device.before)
    bench.measure(document, clock)
    rounds = 3
    return (device.spun_us - us) / rounds, (len(device.before) - items) // rounds


@pytest.mark.parametrize("clock", ["gpu", "host"])
def test_every_op_spins_once_a_run(clock: str) -> None:
    device = FakeDevice()
    bench = SpinBench(device, rounds=2)
    assert spun(device, bench, waiter(16, blocked=True), clock) == (17.0, 17)
    assert spun(device, bench, at_once(range(3)), clock) == (3 * SPIN_US, 3)


def test_a_graph_is_captured_for_each_measurement_and_replayed_as_often_as_asked() -> None:
    device = FakeDevice()
    bench = SpinBench(device, rounds=2)
    bench.measure(chain(4, repeat=5))
    assert device.calls.count("capture") == 1
    assert device.calls.count("replay") == 3 * 5


def test_a_spin_before_a_graph_hides_the_host_and_is_not_timed() -> None:
    device = FakeDevice()
    bench = SpinBench(device, rounds=2)
    document = chain(4)
    bench.measure(document)
    us = device.spun_us
    bench.measure(document)
    assert device.spun_us - us == 3 * LEAD_US + 4 * 4  # three replays, and the ops once before the capture


def test_pairs_fork_and_join_every_time() -> None:
    device = FakeDevice()
    bench = SpinBench(device, rounds=1)
    bench.measure(pairs(8, two_streams=True))
    first = len(device.before) - 16
    for pair in range(1, 8):
        for mine in (0, 1):
            for before in (0, 1):
                assert device.ordered(first + 2 * pair - 2 + before, first + 2 * pair + mine)
    assert len(set(device.stream_of[first:])) == 2


def test_streams_are_counted_up_to_what_the_process_has() -> None:
    assert SpinBench(FakeDevice(distinct=3), rounds=1).distinct_streams(8) == 2
    assert SpinBench(FakeDevice(), rounds=1).distinct_streams(8) == 8


def test_a_whole_probe_runs_and_host_calls_are_timed() -> None:
    bench = SpinBench(FakeDevice(), rounds=1)
    rows, found = probe(lambda document, clock: bench.measure(document, clock) + 1.0, bench.distinct_streams(4))
    assert {row["clock"] for row in rows} == {"gpu"}
    assert found.queues == 4
    assert set(bench.host_us()) == {"launch", "event_record", "event_wait", "graph_launch"}
