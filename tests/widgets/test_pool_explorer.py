"""The kernel's side of the pool explorer, asked as the page asks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsv4lab as lab
from dsv4lab.errors import RequestError, UsageError
from dsv4lab.timeline.records import PoolRequest, PoolSnapshot, QueryReads
from dsv4lab.widgets.pool_session import MOST_SNAPSHOTS, PoolSession

REQUESTS = (PoolRequest(4, 2, 600, (5, 3, 8)), PoolRequest(7, 1, 90, (2,)))
SNAPSHOT = PoolSnapshot(6, 4, 131, 128, 10, 256, 512, 2, (0, 4, 128), REQUESTS, (1, 4, 6, 7, 9), (3,))


class Client:
    """An engine that goes on by one token at every look."""

    def __init__(self) -> None:
        self.tokens = 600

    def pool_snapshot(self) -> PoolSnapshot:
        self.tokens += 1
        return replace(SNAPSHOT, step=self.tokens, requests=(replace(REQUESTS[0], tokens=self.tokens), REQUESTS[1]))

    def query_reads(self, request_id: int, position: int | None, layer: int) -> QueryReads:
        assert (request_id, position, layer) == (4, None, 1)
        return QueryReads(4, self.tokens, 1, 4, (262, 263), (524 + 5 * 64 + 9,))


def test_maps_requests_and_reads_of_recorded_snapshots() -> None:
    session = PoolSession([replace(SNAPSHOT, step=2), SNAPSHOT])
    setup = session.setup()
    assert (setup["live"], setup["steps"], setup["ratios"]) == (False, [2, 6], [0, 4, 128])
    pool = session.answer({"kind": "pool", "at": 1, "ratio": 4, "request": 4, "position": 299})
    assert pool["pages"]["owner"].shape == (640,)
    assert int((pool["pages"]["read"] > 0).sum()) == 75
    assert int((pool["rings"]["read"] > 0).sum()) == 128
    assert pool["pages"]["age"].max() == 4
    own = session.answer({"kind": "request", "at": 1, "request": 4})
    assert own["pages"].tolist() == [5, 3, 8]
    reads = session.answer({"kind": "reads", "at": 1, "ratio": 128, "request": 4, "position": 300})
    assert reads["rows"].tolist() == [524 + 10, 524 + 11]
    assert session.answer({"kind": "pool", "at": 0, "ratio": 0})["pages"] is None
    gone = {"at": 1, "request": 5, "ratio": 4, "position": 9}  # it ended between two questions
    assert session.answer({"kind": "request", **gone})["others"] == [4, 7]
    assert len(session.answer({"kind": "reads", **gone})["rows"]) == 0
    assert not session.answer({"kind": "pool", **gone})["pages"]["read"].any()


def test_a_client_is_followed_and_tells_what_was_really_read() -> None:
    session = PoolSession([Client().pool_snapshot()], Client())  # type: ignore[arg-type]
    assert session.answer({"kind": "poll"})["steps"] == [601]
    assert session.answer({"kind": "poll"})["steps"] == [601, 602]
    reads = session.answer({"kind": "reads", "request": 4, "layer": 1, "exact": True, "at": 0, "ratio": 128})
    assert (reads["exact"], reads["ratio"], reads["position"]) == (True, 4, 603)
    assert reads["rows"].tolist() == [524 + 329]
    at = len(reads["steps"]) - 1
    marked = session.answer({"kind": "pool", "at": at, "ratio": 4, "request": 4, "position": 603, "layer": 1})
    assert np.flatnonzero(marked["pages"]["read"]).tolist() == [329]


def test_another_request_stands_in_for_one_that_ended() -> None:
    client = Client()
    asked: list[int] = []

    def query_reads(request_id: int, position: int | None, layer: int) -> QueryReads:
        asked.append(request_id)
        if len(asked) < 3:
            raise RequestError("it ended")
        return QueryReads(request_id, 95, layer, 4, (131,), (524 + 2 * 64,))

    client.query_reads = query_reads  # type: ignore[method-assign]
    session = PoolSession([client.pool_snapshot()], client)  # type: ignore[arg-type]
    reads = session.answer({"kind": "reads", "request": 99, "layer": 1, "exact": True, "at": 0, "ratio": 4})
    assert asked == [7, 7, 7]
    assert (reads["request"], reads["position"], reads["exact"]) == (7, 95, True)


def test_old_snapshots_go_and_maps_follow() -> None:
    session = PoolSession([replace(SNAPSHOT, step=i) for i in range(MOST_SNAPSHOTS + 3)])
    assert len(session.snapshots) == MOST_SNAPSHOTS
    assert session.answer({"kind": "pool", "at": 0, "ratio": 4})["step"] == 3


@pytest.mark.parametrize(
    ("question", "takes"),
    [
        ({"kind": "pool", "at": 1, "ratio": 4}, r"0\.\.0"),
        ({"kind": "pool", "at": 0, "ratio": 8}, "0, 4, 128"),
        ({"kind": "reads", "at": 0, "ratio": 4, "request": 4, "position": 768}, r"0\.\.767"),
        ({"kind": "reads", "at": 0, "ratio": 4, "request": 4, "layer": 1, "exact": True}, "live client"),
        ({"kind": "poll"}, "live client"),
        ({"kind": "shell"}, "no question"),
    ],
)
def test_what_cannot_be_answered_is_refused(question: dict[str, Any], takes: str) -> None:
    with pytest.raises(UsageError, match=takes):
        PoolSession([SNAPSHOT]).answer(question)


def test_sources_are_checked() -> None:
    assert repr(lab.pool_explorer(SNAPSHOT)) == "<PoolExplorer 1 snapshots of 10 pages, 4 slots>"
    assert repr(lab.pool_explorer(Client())).startswith("<PoolExplorer 1 snapshots")
    other = replace(SNAPSHOT, pages=11)
    wrong = (([], "empty"), (5, "takes a client"), ([5], "takes a client"), ([SNAPSHOT, other], "one pool"))
    for source, takes in wrong:
        with pytest.raises(UsageError, match=takes):
            lab.pool_explorer(source)
    with pytest.raises(UsageError, match="theme"):
        lab.pool_explorer(SNAPSHOT, colour="age")


def test_a_failed_question_is_told_to_the_one_who_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    explorer = lab.pool_explorer(SNAPSHOT)
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(explorer, "send", lambda content, buffers=(): sent.append(content))
    explorer._handle_custom_msg({"kind": "poll", "number": "a:1"}, [])
    assert (sent[0]["kind"], sent[0]["number"]) == ("failed", "a:1")


def test_saved_page(tmp_path: Path) -> None:
    page = lab.pool_explorer([replace(SNAPSHOT, step=i) for i in range(90)]).save_html(tmp_path / "pool.html")
    assert page.stat().st_size < 2_000_000
