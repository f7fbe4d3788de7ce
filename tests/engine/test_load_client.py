"""The load client against our server and against servers that are wrong on purpose."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from dsv4lab.cli.main import main
from dsv4lab.engine.client import EngineClient
from dsv4lab.errors import EngineError, UnavailableError
from dsv4lab.load.client import Endpoint, discover, run_load, warm_up
from dsv4lab.load.report import RequestRecord, summarise
from dsv4lab.load.spec import LoadSpec
from tests.engine.conftest import open_fake
from tests.engine.serving import Site, site

SPEC = LoadSpec(12, prompt_tokens=20, max_new_tokens=9, range_ratio=0.4, concurrency=3, seed=5)


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineClient]:
    with open_fake(max_running_requests=4, max_total_tokens=8192) as opened:
        yield opened


@pytest.fixture(scope="module")
def served(engine: EngineClient) -> Iterator[Site]:
    with site(engine, api_key="k") as opened:
        yield opened


def test_a_load_gives_the_engines_tokens_and_counts_them(served: Site, engine: EngineClient) -> None:
    asked = Endpoint(served.running.url, api_key="k", body={"return_token_ids": True})
    endpoint, vocab_size = asyncio.run(discover(asked))
    assert (endpoint.model, vocab_size) == ("tiny", engine.limits.vocab_size)
    prompts = [(99, *prompt) for prompt in SPEC.prompts(engine.limits.vocab_size)]  # 99 is no order to the fake
    told: list[RequestRecord] = []
    records = asyncio.run(run_load(endpoint, SPEC, prompts, told.append))
    assert [r.index for r in records] == list(range(12))
    assert {r.index for r in told} == set(range(12))
    for record, prompt, new in zip(records, prompts, SPEC.new_tokens(), strict=True):
        assert record.error is None
        assert (record.prompt_tokens, record.tokens, record.finish_reason) == (len(prompt), new, "length")
        assert list(record.token_ids) == engine.generate([prompt], max_new_tokens=new).tokens[0]
        assert 1 <= len(record.chunks_ns) <= new + 1  # the last may hold only text that was held back
        times = (record.sent_ns, *record.chunks_ns, record.ended_ns)
        assert list(times) == sorted(times)
    events = sorted([(r.sent_ns, 1) for r in records] + [(r.ended_ns, -1) for r in records])
    in_flight = 0
    for _, change in events:
        in_flight += change
        assert in_flight <= 3
    report = summarise(records)
    assert (report.completed, report.new_tokens) == (12, sum(SPEC.new_tokens()))


def test_refusals_are_records(served: Site) -> None:
    records = asyncio.run(run_load(Endpoint(served.running.url, "other", "k"), LoadSpec(2), [(3,), (4,)]))
    assert all(r.error is not None and r.error.startswith("status 404") and not r.hung for r in records)
    with pytest.raises(UnavailableError, match="status 401"):
        asyncio.run(discover(Endpoint(served.running.url)))
    with pytest.raises(UnavailableError, match="v1/models: "):
        asyncio.run(discover(Endpoint("http://127.0.0.1:9")))
    with pytest.raises(EngineError, match="warm-up: status 401"):
        asyncio.run(warm_up(Endpoint(served.running.url), LoadSpec(1), [(3,)], 1))


def test_the_command(served: Site, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = [
        "bench",
        "serve",
        "--url",
        served.running.url,
        "--api-key",
        "k",
        "--requests",
        "6",
        "--isl",
        "12",
        "--osl",
        "4",
    ]
    assert main([*words, "--concurrency", "2", "--gpus", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"url", "model", "load", "report", "requests"}
    assert (told["report"]["completed"], told["report"]["new_tokens"], told["model"]) == (6, 24, "tiny")
    assert told["report"]["tokens_per_s_per_gpu"] == pytest.approx(told["report"]["tokens_per_s"] / 2)
    assert [r["new_tokens"] for r in told["requests"]] == [4] * 6
    prompts = tmp_path / "p.txt"
    prompts.write_text("hello\nworld\n")
    assert main([*words, "--prompts", str(prompts), "--rate", "200"]) == 0
    shown = capsys.readouterr()
    assert all(name in shown.out for name in ("TTFT", "TPOT", "E2E", "p99", "tiny: 6 requests", "new tokens/s"))
    assert max(map(len, (shown.out + shown.err).splitlines())) <= 160
    assert main([*words, "--chat"]) == 2
    assert "--prompts" in capsys.readouterr().err
    assert main(["bench", "serve", "--url", "http://127.0.0.1:9"]) == 2


def chunk(text: str = "x", finish: str | None = None) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": finish}]}).encode() + b"\n\n"


WRONG: dict[str, tuple[list[bytes], str]] = {
    "breaks off": ([chunk(), chunk()], "the stream broke off"),
    "has no tokens": ([b"data: [DONE]\n\n"], "the stream has no tokens"),
    "is no completion": ([b'data: {"choices": [7]}\n\n'], "no completion"),
    "is no object": ([b"data: []\n\n"], "no completion"),
    "is no JSON": ([b"data: <html>\n\n"], "no completion"),
    "tells an error": ([chunk(), b'data: {"error": {"message": "out of memory"}}\n\n'], "out of memory"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_streams_that_go_wrong_are_records(wrong: str) -> None:
    pieces, says = WRONG[wrong]
    (record,) = asyncio.run(_against(pieces, Endpoint("")))
    assert record.error is not None
    assert says in record.error
    assert not record.hung


def test_silence_is_a_hang() -> None:
    (record,) = asyncio.run(_against([chunk()], Endpoint("", silence_s=0.3), hang=True))
    assert record.hung
    assert record.error == "nothing came for 0.3 s"
    assert len(record.chunks_ns) <= 1


async def _against(pieces: list[bytes], endpoint: Endpoint, *, hang: bool = False) -> list[RequestRecord]:
    """One request to a server that answers with ``pieces``."""
    forever = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        if hang:
            await forever.wait()
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        host, port = runner.addresses[0][:2]
        changed: dict[str, Any] = {"url": f"http://{host}:{port}", "silence_s": endpoint.silence_s}
        return await run_load(Endpoint(**changed), LoadSpec(1), [(3,)])
    finally:
        forever.set()
        await runner.cleanup()
