"""What a leader makes of the ends of its ranks: one error, of the rank that came first, told once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from dsv4lab.engine import crew as crew_module
from dsv4lab.engine import rank_messages as r
from dsv4lab.engine.child import ChildProcess, Line
from dsv4lab.engine.crew import Crew
from dsv4lab.engine.wire import Channel
from dsv4lab.errors import CollectiveError, EngineError, LabError, RankDiedError
from dsv4lab.parallel.layout import Layout

WAIT_S = 60.0


class Run:
    """A crew whose ranks are the other ends of sockets."""

    def __init__(self, ranks: int) -> None:
        self.deaths: list[tuple[LabError, bool]] = []
        self.told = threading.Event()
        self.crew = Crew(ranks, self._on_death)
        self.ends: dict[int, Channel] = {}
        for rank in range(1, ranks):
            ours, theirs = socket.socketpair()
            self.ends[rank] = Channel(theirs)
            self.crew.take(rank, Line(ours))

    def says(self, rank: int, message: r.FromRank) -> None:
        self.ends[rank].send(r.encode(message))

    def verdict(self) -> str:
        assert self.told.wait(WAIT_S)
        ((error, _),) = self.deaths
        assert isinstance(error, RankDiedError)
        return str(error)

    def _on_death(self, error: LabError, secondary: bool) -> None:
        self.deaths.append((error, secondary))
        self.told.set()


@pytest.fixture
def run() -> Iterator[Run]:
    made = Run(4)
    yield made
    made.crew.kill()
    for end in made.ends.values():
        end.close()


def test_what_a_rank_says_of_its_own_end_is_told(run: Run) -> None:
    run.says(2, r.RankFailed("engine config: tp_size: too many", secondary=False))
    run.ends[2].end()
    assert run.verdict() == "rank 2 of 4 failed: engine config: tp_size: too many"


def test_a_rank_that_vanishes_is_the_cause_of_what_the_others_miss(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "_SETTLE_S", WAIT_S)  # it ends as soon as there is a cause
    run.says(1, r.RankFailed("all_gather of tp0: connection reset", secondary=True))
    run.ends[1].end()

    def miss_them() -> None:
        with run.crew.fatal(0):
            raise CollectiveError("all_gather of tp0: connection reset")

    raised: list[BaseException] = []

    def miss_and_keep() -> None:
        try:
            miss_them()
        except CollectiveError as error:
            raised.append(error)

    blocked = threading.Thread(target=miss_and_keep)
    blocked.start()
    run.ends[3].end()
    assert run.verdict().startswith("rank 3 of 4 ended: ")
    blocked.join(WAIT_S)
    assert len(raised) == 1, "an error of one's own is raised after that was told"


def test_who_only_misses_the_others_is_told_when_nobody_has_ended(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "_SETTLE_S", 0.01)
    with pytest.raises(CollectiveError), run.crew.fatal(0):
        raise CollectiveError("all_gather of tp0: timed out")
    assert run.verdict() == "rank 0 of 4 failed: CollectiveError: all_gather of tp0: timed out"
    assert run.deaths[0][1], "it may be the effect of an end elsewhere"


def test_a_malformed_answer_ends_the_run(run: Run) -> None:
    run.ends[1].send(b"\xc1 is no message")
    assert run.verdict().startswith("rank 1 of 4 failed: malformed message of a rank: ")


def test_times_are_kept_until_they_are_asked_for(run: Run) -> None:
    member = run.crew.members[0]
    for number in (1, 2, 3):
        run.says(1, r.Times(number, {"main": 0}, [b""] * 4))
    found = member.times(2, WAIT_S)
    assert found is not None
    assert found.number == 2
    assert member.times(3, WAIT_S) is not None
    assert member.times(99, 0.01) is None
    assert not run.deaths


def test_ends_after_the_close_are_nobodys_business(run: Run) -> None:
    closing = threading.Thread(target=run.crew.close)
    closing.start()
    for rank, end in run.ends.items():
        payload = end.receive()
        assert payload is not None, rank
        assert isinstance(r.decode_command(payload), r.Stop)
        end.end()
    closing.join(WAIT_S)
    assert run.deaths == []


def test_members_by_their_part() -> None:
    run = Run(4)
    grid = Layout(2, 2)
    assert [m.rank for m in run.crew.of_group(grid)] == [1]
    assert [m.rank for m in run.crew.leaders(grid)] == [2]
    run.crew.kill()
    for end in run.ends.values():
        end.close()


def test_the_last_lines_of_a_process_are_in_its_epitaph() -> None:
    deaths: list[LabError] = []
    told = threading.Event()
    crew = Crew(2, lambda error, _secondary: (deaths.append(error), told.set()))  # type: ignore[func-returns-value]
    crew.take(1, ChildProcess("tests.cpu.no_such_module", {}))
    assert told.wait(WAIT_S)
    assert str(deaths[0]).startswith("rank 1 of 2 ended: exit code 1; its last lines were:\n")
    assert "No module named" in str(deaths[0])


def test_messages_survive_the_wire() -> None:
    from dsv4lab.kv.metadata import BatchItem
    from dsv4lab.spec.draft import Anchor

    commands: list[r.Command] = [
        r.Forward(1, [BatchItem(1, (2, 3), 4, (5, 6))], "decode", True, 1),
        r.Observe(3, [r.Rows(1, (2,), 0, (5, 6), 1)]),
        r.Propose([Anchor(1, (2,), 3, 4)]),
        r.Release(None, [3]),
    ]
    assert [r.decode_command(r.encode(command)) for command in commands] == commands
    with pytest.raises(EngineError, match="malformed message to a rank"):
        r.decode_command(b"\x01")
