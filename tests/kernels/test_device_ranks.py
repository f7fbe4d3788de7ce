"""On two GPUs: engines of two ranks through NCCL give the tokens of one rank as far as bf16 decides them, the same bits
under every plan, in graphs as eagerly; the death of a rank is told as one error.

Figures for people are printed: run with ``-rP``.
"""

from __future__ import annotations

import os
import signal
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dsv4lab as lab
from dsv4lab.engine.client import EngineClient
from dsv4lab.engine.logprobs import TokenLogprobs
from dsv4lab.engine.results import GenerateResult
from dsv4lab.errors import RankDiedError
from dsv4lab.trace.collectives import arrival_skew

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="it takes two GPUs"),
]

DEVICE = "hip" if torch.version.hip else "cuda"
NEW, TOP = 40, 20
PROMPTS = [np.random.default_rng(i).integers(2, 4000, length).tolist() for i, length in enumerate((3, 250, 130, 61))]
GRAPHS = ("off", "hip", "cuda+moe", "side+query+moe+high")
NEAR = 0.2
"""Nats that rounding to bf16 in another order may move log-probabilities of a first token: two H200s had 0.06 to 0.09.
Later ones may move by more, since another expert is taken where two were nearly as good (0.9 seen).
"""


def open_ranks(preset: str = "demo", **fields: Any) -> EngineClient:
    sizes = {"max_running_requests": 4, "max_total_tokens": 4096, "chunked_prefill_size": 256}
    return lab.open(preset, device=DEVICE, dtype="bfloat16", **{**sizes, **fields})


def answers(client: EngineClient) -> GenerateResult:
    sampling = lab.SamplingParams(logprobs=TOP)
    return client.generate(PROMPTS, max_new_tokens=NEW, sampling=sampling, fingerprints=True)


def prints(result: GenerateResult) -> tuple[Any, ...]:
    return tuple(request.fingerprints for request in result.requests)


def distance(x: TokenLogprobs, y: TokenLogprobs) -> float:
    known = dict(y.top)
    return max((abs(value - known[token]) for token, value in x.top if token in known), default=np.inf)


def check_alike(mine: GenerateResult, theirs: GenerateResult) -> None:
    """First tokens are as likely, and most tokens are the same until two were nearly as likely."""
    agreeing, firsts, total = 0, [], 0
    for a, b in zip(mine.requests, theirs.requests, strict=True):
        pairs = list(zip(a.logprobs, b.logprobs, strict=True))
        firsts.append(distance(*pairs[0]))
        agreeing += len(list(takewhile(lambda pair: pair[0].token == pair[1].token, pairs)))
        total += len(pairs)
    print(f"{agreeing} of {total} tokens before one that differs; first log-probabilities within {max(firsts):.3f}")
    assert max(firsts) <= NEAR
    assert agreeing >= total // 3


@pytest.fixture(scope="module")
def alone() -> GenerateResult:
    with open_ranks() as client:
        return answers(client)


def test_two_ranks_of_one_group(alone: GenerateResult, tmp_path: Path) -> None:
    """Graphs with NCCL in them under every plan, then a profile of both ranks, then the death of one."""
    with open_ranks(tp_size=2) as client:
        found = []
        for plan in GRAPHS:
            client.set_plan(plan)
            found.append(answers(client))
        check_alike(alone, found[0])
        assert len({prints(result) for result in found}) == 1, "plans must give the same bits"
        profile = client.profile(steps=4, concurrency=2, prompt_tokens=140, directory=tmp_path)
        assert set(profile.timeline.rank.tolist()) == {0, 1}
        assert arrival_skew(profile.timeline), "both ranks show their collectives"
        client.set_plan("auto")
        assert prints(answers(client)) == prints(found[0])
        handle = client.submit([5], max_new_tokens=3000)
        next(iter(handle))
        assert client.pid is not None
        (other,) = [pid for pid in children(client.pid) if "dsv4lab.engine.rank" in command(pid)]
        os.kill(other, signal.SIGKILL)
        with pytest.raises(RankDiedError, match=r"^rank 1 of 2 ended: killed by signal 9"):
            handle.result(120.0)
        client.restart()
        assert prints(answers(client)) == prints(found[0])


def test_without_graphs(alone: GenerateResult) -> None:
    with open_ranks(tp_size=2, graphs=False) as client:
        found = []
        for plan in ("off", "cuda+moe"):
            client.set_plan(plan)
            found.append(answers(client))
    check_alike(alone, found[0])
    assert prints(found[0]) == prints(found[1])


@pytest.mark.parametrize(
    "fields", [{"dp_size": 2}, {"dp_size": 2, "ep_size": 2}, {"tp_size": 2, "ep_size": 2}], ids=str
)
def test_other_layouts(alone: GenerateResult, fields: dict[str, int]) -> None:
    with open_ranks(graphs="dp_size" not in fields, **fields) as client:
        check_alike(alone, answers(client))


def test_speculation() -> None:
    fields: dict[str, Any] = {"num_layers": 3, "weights": "stored"}
    with open_ranks("flash-preview", tp_size=2, **fields) as client:
        plain = answers(client)
    with open_ranks("flash-preview", tp_size=2, speculative="mtp", draft_tokens=3, **fields) as client:
        found = answers(client)
        assert client.status()["speculation"]["drafts"] > 0
    check_alike(plain, found)


def children(pid: int) -> list[int]:
    """Of all threads of process ``pid``."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
