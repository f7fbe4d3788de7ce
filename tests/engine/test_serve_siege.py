"""Everything bad that clients can do, at once, on the real ``tiny`` model, beside neighbours who must not notice."""

from __future__ import annotations

import random
import socket
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import dsv4lab as lab
from dsv4lab.load.spec import LoadSpec
from tests.engine.serving import Site, site

ROUNDS = 200
NEIGHBOURS = 4
NEW = 24
PROMPTS = LoadSpec(NEIGHBOURS, prompt_tokens=40, range_ratio=0.5, seed=5).prompts(500)
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
ASLEEP: dict[str, Any] = {**GREEDY, "max_tokens": 8000, "stream": True, "logprobs": 64}
"""A request whose reader takes nothing."""
Attack = Callable[[Site, random.Random], int | None]


def malformed(served: Site, chance: random.Random) -> int:
    bodies = (b"{", b"[]", b'{"prompt": }', b"\xff\xfe", b'{"prompt": [1, "x"]}', b'{"prompt": "a", "max_tokens": -1}')
    return served.ask("/v1/completions", chance.choice(bodies)).status


def oversized_prompt(served: Site, _chance: random.Random) -> int:
    return served.ask("/v1/completions", {**GREEDY, "prompt": [5] * 20_000, "max_tokens": 4}).status


def oversized_body(served: Site, _chance: random.Random) -> int:
    return served.ask("/v1/completions", {**GREEDY, "prompt": "x" * 200_000, "max_tokens": 4}).status


def flood(served: Site, chance: random.Random) -> int:
    asked = {**GREEDY, "prompt": [[chance.randrange(2, 500)]] * 8, "max_tokens": 4}
    return served.ask("/v1/completions", asked).status


def disconnect(served: Site, chance: random.Random) -> None:
    stream = chance.random() < 0.5
    sock = served.open({**GREEDY, "prompt": [chance.randrange(2, 500)], "max_tokens": 200, "stream": stream})
    if stream and chance.random() < 0.5:
        sock.recv(1)
    sock.close()


def half_a_request(served: Site, _chance: random.Random) -> None:
    with suppress(OSError), socket.create_connection(served.address) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")


ATTACKS: dict[Attack, set[int | None]] = {
    malformed: {400, 429},
    oversized_prompt: {400, 429},
    oversized_body: {413, 429},
    flood: {200, 429},
    disconnect: {None},
    half_a_request: {None},
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_neighbours_do_not_notice_a_siege(caplog: pytest.LogCaptureFixture) -> None:
    with lab.open("tiny", max_running_requests=8, max_total_tokens=16384) as client:
        expected = client.generate(PROMPTS, max_new_tokens=NEW).tokens
        with site(client, max_queue=NEIGHBOURS, max_body_bytes=100_000, write_timeout_s=1.0) as served:
            over = threading.Event()
            with ThreadPoolExecutor(NEIGHBOURS + len(ATTACKS)) as pool:
                reading = [pool.submit(neighbour, served, at, over) for at in range(NEIGHBOURS)]
                stuck = served.open({**ASLEEP, "prompt": [7]}, receive_buffer=2048)
                try:
                    waves = [pool.submit(besiege, served, attack, seed) for seed, attack in enumerate(ATTACKS)]
                    seen = {attack: wave.result() for attack, wave in zip(ATTACKS, waves, strict=True)}
                finally:
                    over.set()
                rows = [future.result() for future in reading]
            stuck.close()
            for attack, allowed in ATTACKS.items():
                assert set(seen[attack]) <= allowed, (attack.__name__, seen[attack])
            for own, want in zip(rows, expected, strict=True):
                assert len(own) >= 3
                assert all(row == want for row in own)
            served.until_empty()
            assert served.running.desk.metrics.worker_restarts == 0
            assert caplog.records == []
        assert client.generate(PROMPTS, max_new_tokens=NEW).tokens == expected


def neighbour(served: Site, at: int, over: threading.Event) -> list[list[int]]:
    """The tokens of one prompt, asked for again and again; a full server is asked once more."""
    rows: list[list[int]] = []
    while not over.is_set() or len(rows) < 3:
        answer = served.ask("/v1/completions", {**GREEDY, "prompt": list(PROMPTS[at]), "max_tokens": NEW})
        assert answer.status in (200, 429)
        if answer.status == 200:
            rows.append(answer.json["choices"][0]["token_ids"])
        else:
            over.wait(0.1)  # as Retry-After asks, only sooner
    return rows


def besiege(served: Site, attack: Attack, seed: int) -> Counter[int | None]:
    chance = random.Random(seed)
    return Counter(attack(served, chance) for _ in range(ROUNDS))
