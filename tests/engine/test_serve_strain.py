"""The server under strain, over a worker without a model: limits, floods, slow and vanished clients, dead workers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dsv4lab.engine.client import EngineClient
from dsv4lab.errors import UnavailableError, UsageError
from dsv4lab.serve.run import start
from dsv4lab.serve.settings import ServeSettings, is_loopback
from tests.engine.conftest import OpenFake, open_fake
from tests.engine.fake_runner import EXIT, GATE, RAISE
from tests.engine.serving import Site, site

GREEDY: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What GATE requests read a byte of for each forward."""
    path = tmp_path_factory.mktemp("gates") / "gate"
    os.mkfifo(path)
    return path


@pytest.fixture(scope="module")
def engine(gate: Path) -> Iterator[EngineClient]:
    with open_fake(max_running_requests=4, max_total_tokens=8192, environ={"FAKE_GATE": str(gate)}) as opened:
        yield opened


@pytest.fixture(scope="module")
def served(engine: EngineClient) -> Iterator[Site]:
    with site(engine, max_queue=4, max_body_bytes=4096) as opened:
        yield opened


def rows(answer: Any) -> list[list[int]]:
    return [choice["token_ids"] for choice in answer.json["choices"]]


def test_more_than_fits_is_a_429_and_neighbours_do_not_notice(served: Site, engine: EngineClient, gate: Path) -> None:
    prompt, new = [GATE, 41, 42], 30
    opened = os.open(gate, os.O_RDWR)  # the worker stands still in a forward of this prompt until there is a byte
    os.write(opened, b"x" * new)
    expected = engine.generate([prompt], max_new_tokens=new).tokens[0]
    with ThreadPoolExecutor(1) as pool:
        neighbour = pool.submit(served.ask, "/v1/completions", {**GREEDY, "prompt": prompt, "max_tokens": new})
        served.until(lambda: served.running.desk.in_flight == 1)
        socks = [served.open({**GREEDY, "prompt": [50 + i], "max_tokens": 20, "stream": True}) for i in range(7)]
        served.until(lambda: served.running.desk.in_flight == 8)
        refused = served.ask("/v1/completions", {**GREEDY, "prompt": [60]})
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert int(refused.headers["Retry-After"]) >= 1
        for sock in socks:
            sock.close()
        served.until(lambda: served.running.desk.in_flight == 1)
        os.write(opened, b"x" * new)
        assert rows(neighbour.result()) == [expected]
    os.close(opened)
    served.until_empty()
    assert served.ask("/v1/completions", {**GREEDY, "prompt": [[60]] * 9}).status == 400


def test_a_flood_is_answered_one_by_one(served: Site, engine: EngineClient) -> None:
    prompts = [[100 + i, 7] for i in range(60)]
    expected = [engine.generate([p], max_new_tokens=12).tokens[0] for p in prompts]
    with ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(lambda p: served.ask("/v1/completions", {**GREEDY, "prompt": p}), prompts))
    assert {answer.status for answer in answers} <= {200, 429}
    done = [(rows(answer)[0], want) for answer, want in zip(answers, expected, strict=True) if answer.status == 200]
    assert len(done) >= 8
    assert all(got == want for got, want in done)
    served.until_empty()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_slot(served: Site, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    before = served.running.desk.metrics.disconnects
    sock = served.open({**GREEDY, "prompt": [70], "max_tokens": 7000, "stream": stream})
    if stream:
        assert sock.recv(16).startswith(b"HTTP/1.1 200")
    served.until(lambda: served.running.desk.in_flight == 1)
    sock.close()
    served.until_empty()
    served.until(lambda: served.running.desk.metrics.disconnects == before + 1)
    served.ask("/health")
    assert caplog.records == []  # it is no failure of the server


def test_half_a_request_is_nobodys_problem(served: Site) -> None:
    with socket.create_connection(served.address) as sock:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        sock.sendall(head + b"Content-Length: 99\r\n\r\n{")
        assert served.ask("/v1/completions", {**GREEDY, "prompt": [71]}).status == 200
    with socket.create_connection(served.address) as sock:
        sock.sendall(b"\x16\x03\x01 no HTTP at all\r\n\r\n")
        assert sock.recv(64).startswith(b"HTTP/1.") or not sock.recv(1)
    served.until_empty()


def test_a_slow_reader_holds_nobody_up_and_gets_everything(served: Site, engine: EngineClient) -> None:
    prompt = [72, 73]
    expected = engine.generate([prompt], max_new_tokens=1500).tokens[0]
    asked = {**GREEDY, "prompt": prompt, "max_tokens": 1500, "stream": True, "logprobs": 20}
    slow = served.open(asked, receive_buffer=2048)
    for start_token in range(5):
        assert served.ask("/v1/completions", {**GREEDY, "prompt": [start_token + 2]}).status == 200
    with slow.makefile("rb") as lines:
        events = [line[6:] for line in lines if line.startswith(b"data: {")]
    tokens = [t for event in events for t in json.loads(event)["choices"][0]["token_ids"]]
    assert tokens == expected
    slow.close()
    served.until_empty()


def test_a_reader_that_takes_nothing_is_cut_off(engine: EngineClient) -> None:
    with site(engine, write_timeout_s=0.2) as served:
        asked = {**GREEDY, "prompt": [74], "max_tokens": 7000, "stream": True, "logprobs": 64}
        stuck = served.open(asked, receive_buffer=2048)
        served.until(lambda: served.running.desk.metrics.slow_readers == 1)
        served.until_empty()
        stuck.close()


def test_keys(engine: EngineClient) -> None:
    with site(engine, api_key="s3cret") as served:
        asked = {**GREEDY, "prompt": [75]}
        for given in (None, "Bearer s3cre", "s3cret", "Basic s3cret", "Bearer é"):
            headers = {} if given is None else {"Authorization": given}
            refused = served.ask("/v1/completions", asked, headers=headers)
            assert (refused.status, refused.error["code"]) == (401, "invalid_api_key")
        assert served.ask("/v1/completions", asked, headers={"Authorization": "Bearer s3cret"}).status == 200
        assert served.ask("/metrics").status == 401
        assert served.ask("/health").status == 200


def test_a_failing_forward_fails_the_requests_and_not_the_server(served: Site) -> None:
    for stream in (False, True):
        answer = served.ask("/v1/completions", {**GREEDY, "prompt": [RAISE], "stream": stream})
        assert (answer.status, answer.error["type"]) == (503, "server_error")
    assert served.ask("/v1/completions", {**GREEDY, "prompt": [76]}).status == 200
    served.until_empty()


def test_a_dead_worker_is_replaced_until_that_happens_too_often(fake: OpenFake) -> None:
    client = fake(max_running_requests=4, max_total_tokens=8192)
    prompt = [80, 81]
    expected = client.generate([prompt], max_new_tokens=12).tokens
    with site(client, max_restarts=1) as served:
        desk = served.running.desk
        streaming = served.open({**GREEDY, "prompt": [82], "max_tokens": 7000, "stream": True})
        assert streaming.recv(16).startswith(b"HTTP/1.1 200")
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        with streaming.makefile("rb") as lines:
            (error,) = [json.loads(line[6:])["error"] for line in lines if b'"error"' in line]
        assert error["code"] == "engine_unavailable"
        streaming.close()
        served.until(lambda: desk.metrics.worker_restarts == 1)
        assert rows(served.ask("/v1/completions", {**GREEDY, "prompt": prompt})) == expected
        lost = served.ask("/v1/completions", {**GREEDY, "prompt": [EXIT]})
        assert (lost.status, lost.error["code"]) == (503, "engine_unavailable")
        served.until(desk.ended.is_set)
        assert (served.ask("/health").status, served.ask("/health").json) == (503, {"status": "dead"})
        assert served.ask("/v1/completions", {**GREEDY, "prompt": prompt}).status == 503
        assert desk.metrics.worker_deaths == 2
        assert "giving up" in served.lines[-1]


def test_the_end_lets_requests_finish_and_takes_no_new_ones(engine: EngineClient, gate: Path) -> None:
    with ThreadPoolExecutor(2) as pool, site(engine, drain_s=60.0) as served:
        waiting = pool.submit(served.ask, "/v1/completions", {**GREEDY, "prompt": [GATE, 3]})
        with gate.open("wb", buffering=0) as opened:
            served.until(lambda: served.running.desk.in_flight == 1)
            ended = threading.Event()
            closing = pool.submit(lambda: (served.run(served.running.close()), ended.set()))
            served.until(lambda: served.running.desk.state == "draining")
            with suppress(OSError):  # refused or reset, unless it came before the socket was closed
                assert served.ask("/health").status == 503
            assert not ended.is_set()
            opened.write(b"x" * 64)
            assert waiting.result().json["usage"]["completion_tokens"] == 12
            closing.result()


def test_addresses_and_settings() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "example.org", "10.0.0.1")))
    with pytest.raises(UsageError, match="give an API key"):
        ServeSettings("tiny", host="0.0.0.0")
    assert ServeSettings("tiny", host="0.0.0.0", api_key="k").host == "0.0.0.0"
    for field, value in {"port": 70000, "max_queue": -1, "drain_s": 0.0, "api_key": "", "max_body_bytes": 1}.items():
        with pytest.raises(UsageError, match=field):
            ServeSettings("tiny", **{field: value})  # type: ignore[arg-type]


def test_a_port_that_is_taken(engine: EngineClient, served: Site) -> None:
    async def again() -> None:
        await start(engine, ServeSettings("tiny", port=served.address[1]), lambda _line: None)

    with pytest.raises(UnavailableError, match="in use"):
        asyncio.run(again())
