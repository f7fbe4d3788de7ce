"""Ranks that ``torchrun`` has started: how they find one another, and their part until the run is over.

Rank 0 is the command itself; its worker is the first rank of the engine. The others wait here for what it opens, one
engine after another, and take their part in each. They meet in torchrun's own store; connections between them are on
the loopback interface and begin with a word from that store, which nobody else knows.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from dsv4lab.config.engine import EngineConfig
from dsv4lab.engine.child import Line
from dsv4lab.engine.wire import Channel
from dsv4lab.env import Launch
from dsv4lab.errors import CollectiveError, ConfigError
from dsv4lab.parallel.groups import LOOPBACK
from dsv4lab.parallel.layout import Layout, led_by

_POLL_S = 0.2
_STORE_S = 300
_SIZES = struct.Struct("<IIII")
_RANK = struct.Struct("<I")


class Store:
    """torchrun's store, as far as it concerns engines; they are numbered from 1."""

    def __init__(self, launch: Launch) -> None:
        import torch.distributed as dist

        c10d: Any = dist
        limit = timedelta(seconds=_STORE_S)
        store = c10d.TCPStore(launch.address, launch.port, is_master=False, timeout=limit)
        self._store = c10d.PrefixStore(f"dsv4lab/{launch.run_id}", store)

    def open_engine(self, layout: Layout) -> int:
        """Rank 0: a new engine of this grid; its number."""
        number = int(self._store.add("engines", 1))
        self._store.set(f"{number}/sizes", _SIZES.pack(layout.tp_size, layout.dp_size, layout.ep_size, 0))
        return number

    def await_engine(self, number: int) -> Layout | None:
        """The grid of engine ``number``, once there is one; None when there will be none."""
        while not self._store.check([f"{number}/sizes"]):
            if self._store.check(["over"]):
                return None
            time.sleep(_POLL_S)
        tp, dp, ep, _ = _SIZES.unpack(self._store.get(f"{number}/sizes"))
        return Layout(tp, dp, ep)

    def end(self) -> None:
        """Rank 0: there will be no further engine."""
        self._store.set("over", b"1")

    def publish(self, number: int, rank: int, gate: bytes) -> None:
        """Where ``rank`` waits for those that it leads."""
        self._store.set(f"{number}/gate/{rank}", gate)

    def gate(self, number: int, rank: int) -> bytes:
        """See :meth:`publish`; waits for it."""
        found: bytes = self._store.get(f"{number}/gate/{rank}")
        return found


def gather(store: Store, number: int, layout: Layout, timeout_s: float) -> list[Line]:
    """Lines to the ranks that this one leads, in order. Raises :class:`CollectiveError` naming those that are late."""
    wanted = led_by(layout)
    if not wanted:
        return []
    found: dict[int, Line] = {}
    word = secrets.token_bytes(16)
    deadline = time.monotonic() + timeout_s
    with socket.create_server((LOOPBACK, 0)) as server:
        store.publish(number, layout.rank, struct.pack("<H", server.getsockname()[1]) + word)
        while len(found) < len(wanted):
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                sock, _ = server.accept()
            except TimeoutError:
                late = ", ".join(str(rank) for rank in wanted if rank not in found)
                raise CollectiveError(f"rank {late} did not come within {timeout_s:g} s") from None
            sock.settimeout(5.0)
            with contextlib.suppress(OSError):
                said = _read(sock, len(word) + _RANK.size)
                (rank,) = _RANK.unpack(said[len(word) :])
                if secrets.compare_digest(said[: len(word)], word) and rank in wanted and rank not in found:
                    sock.settimeout(None)
                    found[rank] = Line(sock)
                    continue
            sock.close()
    return [found[rank] for rank in wanted]


def knock(store: Store, number: int, layout: Layout) -> Channel:
    """A channel to the rank that leads this one."""
    leader = layout.leader if layout.tp_rank else 0
    gate = store.gate(number, leader)
    (port,) = struct.unpack("<H", gate[:2])
    sock = socket.create_connection((LOOPBACK, port), _STORE_S)
    sock.settimeout(None)
    sock.sendall(gate[2:] + _RANK.pack(layout.rank))
    return Channel(sock)


def gather_first(launch: Launch, config: EngineConfig) -> Sequence[Line]:
    """Rank 0's worker: the ranks that it leads in a new engine of ``config``.

    Raises :class:`ConfigError` if torchrun has started more or fewer than ``config`` takes.
    """
    if launch.world_size != config.world_size:
        raise ConfigError(
            f"torchrun has started {launch.world_size} ranks, tp_size x dp_size is {config.world_size}: "
            "they must be the same"
        )
    layout = Layout(config.tp_size, config.dp_size, config.ep_size)
    store = Store(launch)
    return gather(store, store.open_engine(layout), layout, config.collective_timeout_s)


def serve(launch: Launch) -> int:
    """The part of a rank above 0, until rank 0 is done; the exit code of the process."""
    from dsv4lab.engine.rank import Rank

    store, number = Store(launch), 0
    while (grid := store.await_engine(number := number + 1)) is not None:
        layout = grid.at(launch.rank)

        def lines(at: Layout, timeout_s: float, number: int = number) -> Sequence[Line]:
            return gather(store, number, at, timeout_s)

        code = Rank(knock(store, number, layout), lines).run()
        if code:
            return code
    return 0


def finish(launch: Launch) -> None:
    """Rank 0: the command is done, and the other ranks may go."""
    with contextlib.suppress(RuntimeError):  # torchrun is gone, and has ended them
        Store(launch).end()


def _read(sock: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = sock.recv(size - len(parts))
        if not part:
            raise OSError("the connection ended")
        parts += part
    return bytes(parts)


Lines = Callable[[Layout, float], Sequence[Line]]
"""How a rank comes by the ranks that it leads, within so many seconds."""
