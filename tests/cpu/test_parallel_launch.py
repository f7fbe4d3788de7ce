"""Ranks that torchrun has started: how they are told, how they find their leaders, and who is not let in."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
from typing import Any, cast

import pytest

from dsv4lab.config.engine import EngineConfig
from dsv4lab.engine.child import Line
from dsv4lab.engine.launched import Store, gather, gather_first, knock
from dsv4lab.engine.link import worker_environ
from dsv4lab.env import Launch, rank_environ, read_launch
from dsv4lab.errors import CollectiveError, ConfigError, EnvError
from dsv4lab.parallel.groups import LOOPBACK
from dsv4lab.parallel.layout import Layout

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
}  # fmt: skip


class Gates:
    """The part of :class:`Store` that gathering takes."""

    def __init__(self) -> None:
        self._gates: dict[int, bytes] = {}
        self._told = threading.Condition()

    def publish(self, number: int, rank: int, gate: bytes) -> None:
        with self._told:
            self._gates[rank] = gate
            self._told.notify_all()

    def gate(self, number: int, rank: int) -> bytes:
        with self._told:
            assert self._told.wait_for(lambda: rank in self._gates, 60)
            return self._gates[rank]


def in_background(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_what_torchrun_tells() -> None:
    assert read_launch({}) is None
    assert read_launch({"RANK": "3"}) is None, "a variable of that name alone says nothing"
    assert read_launch(TORCHRUN) == Launch(1, 2, "127.0.0.1", 29500, "none")
    with pytest.raises(EnvError, match=r"WORLD_SIZE='two': torchrun sets it to a number"):
        read_launch({**TORCHRUN, "WORLD_SIZE": "two"})


def test_nccl_stays_on_the_loopback_interface_unless_told_otherwise() -> None:
    assert rank_environ({}) == {"NCCL_SOCKET_IFNAME": "lo"}
    assert rank_environ({"NCCL_SOCKET_IFNAME": "eth0"}) == {}
    assert "NCCL_SOCKET_IFNAME" not in worker_environ(EngineConfig("tiny"), {})
    assert worker_environ(EngineConfig("tiny", tp_size=2), {})["GPU_MAX_HW_QUEUES"] == "4"


def test_ranks_find_their_leaders_in_a_grid_of_four() -> None:
    store = cast(Store, Gates())
    heard: dict[int, bytes | None] = {}
    lines: dict[int, list[Line]] = {}
    grid = Layout(2, 2)

    def lead(rank: int) -> None:
        lines[rank] = gather(store, 1, grid.at(rank), 60)
        for line in lines[rank]:
            line.send_bytes(f"from {rank}".encode())

    def follow(rank: int) -> None:
        heard[rank] = knock(store, 1, grid.at(rank)).receive()

    def lead_and_follow() -> None:
        follow(2)
        lead(2)

    threads = [in_background(work) for work in (lambda: follow(3), lambda: follow(1), lead_and_follow)]
    lead(0)
    for thread in threads:
        thread.join(60)
    assert heard == {1: b"from 0", 2: b"from 0", 3: b"from 2"}
    assert {rank: len(found) for rank, found in lines.items()} == {0: 2, 2: 1}
    for line in (line for found in lines.values() for line in found):
        line.end(0.0)
        line.release()


def test_a_stranger_is_not_let_in() -> None:
    gates, found = Gates(), []
    store = cast(Store, gates)
    leader = in_background(lambda: found.extend(gather(store, 1, Layout(2), 60)))
    gate = gates.gate(1, 0)
    (port,) = struct.unpack("<H", gate[:2])
    for words in (b"x" * 20, gate[2:] + struct.pack("<I", 7), b"short"):
        with socket.create_connection((LOOPBACK, port)) as stranger:
            stranger.sendall(words)
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b"", "the connection is ended"
    channel = knock(store, 1, Layout(2, rank=1))
    leader.join(60)
    (line,) = found
    line.send_bytes(b"welcome")
    assert channel.receive() == b"welcome"
    channel.close()
    line.end(0.0)
    line.release()


def test_ranks_that_are_late_are_named() -> None:
    with pytest.raises(CollectiveError, match=r"^rank 1, 2, 4 did not come within 0.05 s"):
        gather(cast(Store, Gates()), 1, Layout(2, 3), 0.05)


def test_as_many_ranks_as_the_engine_takes() -> None:
    with pytest.raises(ConfigError, match="torchrun has started 4 ranks, tp_size x dp_size is 2"):
        gather_first(Launch(0, 4, "127.0.0.1", 1, "none"), EngineConfig("tiny", tp_size=2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [("--tp-size 2", 0, "rank1/main"), ("--dp-size 3", 1, "torchrun has started 2 ranks, tp_size x dp_size is 3")],
    ids=["runs", "too few"],
)
def test_torchrun(words: str, code: int, says: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "dsv4lab", "run"]
    command += [*words.split(), "--prompt-tokens", "20", "--max-new-tokens", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stderr
    assert says in done.stdout + done.stderr
