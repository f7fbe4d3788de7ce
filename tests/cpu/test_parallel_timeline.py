"""Timelines of ranks side by side: lanes, busy time, arrival skew, and their way through a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dsv4lab as lab
from dsv4lab.engine import messages as m
from dsv4lab.engine.merge import merged
from dsv4lab.engine.payloads import pack_timeline, unpack_timeline
from dsv4lab.timeline.program import StreamProgram
from dsv4lab.timeline.ranks import of_rank, side_by_side
from dsv4lab.timeline.timeline import COLUMNS, Timeline
from dsv4lab.trace.collectives import arrival_skew
from dsv4lab.trace.export import export_kineto

NAMES = ("o_b", "attn.all_reduce", "moe.shared")


def one(shift: int, names: tuple[str, ...] = NAMES) -> Timeline:
    """Two steps of one rank: a product, a collective, and a side stream's op in the first of them."""
    return Timeline.build(
        start_ns=np.array([0, 1000, 1000, 5000, 6000]) + shift,
        dur_ns=[500, 700, 300, 500, 700],
        stream=[0, 0, 1, 0, 0],
        queue=[0, 0, 1, 0, 0],
        name=[names.index(n) for n in ("o_b", "attn.all_reduce", "moe.shared", "o_b", "attn.all_reduce")],
        correlation=np.arange(5),
        step=[0, 0, 0, 1, 1],
        layer=[2] * 5,
        names=names,
        streams=("main", "side0"),
        queues=("q0", "q1"),
        main_stream="main",
        meta={"step_modes": {"0": "prefill", "1": "decode"}},
    )


def test_two_ranks_have_lanes_of_their_own_and_share_names() -> None:
    both = side_by_side([of_rank(one(70, NAMES[::-1]), 1), of_rank(one(0), 0)])
    both.check()
    assert both.streams == ("rank0/main", "rank0/side0", "rank1/main", "rank1/side0")
    assert both.queues == ("rank0/q0", "rank0/q1", "rank1/q0", "rank1/q1")
    assert both.names == NAMES
    assert both.meta["ranks"] == [0, 1]
    assert len(np.unique(both.correlation)) == len(both)
    busy = both.stream_busy()
    assert {(s.stream, s.role, s.busy_ns, s.hidden_ns) for s in busy.streams} == {
        (f"rank{r}/{s}", role, ns, hidden)
        for r in (0, 1)
        for s, role, ns, hidden in (("main", "main", 2400, 0), ("side0", "side", 300, 300))
    }
    skews = arrival_skew(both)
    assert [(a.name, a.skew_ns, a.last_rank) for a in skews] == [("attn.all_reduce", 70, 1)] * 2


def test_a_file_keeps_the_ranks(tmp_path: Path) -> None:
    both = side_by_side([of_rank(one(0), 0), of_rank(one(70), 1)])
    again = lab.load_trace(export_kineto(both, tmp_path / "two.pt.trace.json.gz"))
    assert (again.streams, again.queues) == (both.streams, both.queues)
    assert set(again.rank.tolist()) == {0, 1}
    assert arrival_skew(again) == arrival_skew(both)


def test_one_rank_alone_and_none() -> None:
    alone = side_by_side([of_rank(one(0), 3)])
    assert set(alone.rank.tolist()) == {3}
    assert alone.streams == ("rank3/main", "rank3/side0")
    with pytest.raises(ValueError, match="at least one"):
        side_by_side([])


def recorded(timeline: Timeline, *, ran: bool) -> m.Recorded:
    program = StreamProgram((), ("main",), "off", "decode", 1) if ran else None
    return m.Recorded(7, pack_timeline(timeline), program, ())


def test_what_a_group_did_before_the_others_ran_is_left_out_of_their_profile() -> None:
    idle = side_by_side([of_rank(one(-5500), 1)])  # its second step lies in the first of the other group's
    reply = merged([recorded(of_rank(one(0), 0), ran=True), recorded(idle, ran=False)])
    assert isinstance(reply, m.Recorded)
    assert reply.program is not None
    timeline = unpack_timeline(reply.timeline)
    assert np.unique(timeline.rank).tolist() == [0, 1]
    assert timeline.start_ns[timeline.rank == 1].tolist() == [500]
    assert all(len(getattr(timeline, column)) == len(timeline) for column in COLUMNS)


def test_answers_of_groups_become_one() -> None:
    def status(steps: int, accepted: float) -> m.Info:
        speculation = {"drafts": 2, "steps": steps, "accepted_per_step": accepted, "rate_by_place": [accepted / 2] * 2}
        counts = {"waiting": 1, "running": 2, "free_slots": 3, "free_pages": 4}
        return m.Info(1, {"steps": steps, "plan": "off", **counts, "speculation": speculation})

    reply = merged([status(10, 1.0), status(30, 2.0)])
    assert isinstance(reply, m.Info)
    assert {key: reply.value[key] for key in ("steps", "waiting", "free_pages", "plan")} == {
        "steps": 30, "waiting": 2, "free_pages": 8, "plan": "off",
    }  # fmt: skip
    assert reply.value["speculation"]["accepted_per_step"] == 1.75
    assert len(reply.value["groups"]) == 2
    failed = m.Failed(1, "PlanError", "no")
    assert merged([m.Done(1), failed]) == failed
    assert merged([m.Done(1), m.Done(1)]) == m.Done(1)
