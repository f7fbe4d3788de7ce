"""``dsv4lab bench``: load on a server, from outside; overlap plans, in this process."""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4lab.cli.base import Command, add_common_options
from dsv4lab.cli.bench_overlap import add_overlap, run_overlap
from dsv4lab.cli.model_args import positive
from dsv4lab.cli.output import console, emit_json, note, progress, table
from dsv4lab.cli.safe import clip
from dsv4lab.cli.serve import require_aiohttp
from dsv4lab.errors import EngineError, UsageError

if TYPE_CHECKING:
    from dsv4lab.load.client import Endpoint
    from dsv4lab.load.report import LoadReport, RequestRecord, Spread
    from dsv4lab.load.spec import LoadSpec, Prompt

_ERROR_WIDTH = 200


class BenchCommand(Command):
    """Measure a server, or overlap plans on this machine."""

    name = "bench"
    help = "load any OpenAI-compatible server: latencies, tokens/s; or time overlap plans on this machine"
    examples = (
        "dsv4lab bench serve --url http://127.0.0.1:8000 --concurrency 8 --requests 64",
        "dsv4lab bench serve --isl 1024 --osl 128 --ratio 0.8 --rate 4 --requests 200 --seed 1 --json",
        "dsv4lab bench serve --url http://gpu-box:30000 --prompts prompts.jsonl --osl 256 --gpus 8",
        "dsv4lab bench overlap --shape flash-tp8 --out overlap",
        "dsv4lab bench overlap --device cpu --concurrency 1,4 --rounds 9 --json",
    )

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """The actions ``serve`` and ``overlap``, and their arguments."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        serve = actions.add_parser("serve", help="load a server that runs", allow_abbrev=False)
        add_common_options(serve, nested=True)
        serve.add_argument("--url", default="http://127.0.0.1:8000", help="default: http://127.0.0.1:8000")
        serve.add_argument("--model", metavar="NAME", help="default: the first that the server lists")
        serve.add_argument("--api-key", metavar="KEY", help="sent as a bearer token; @FILE reads it from a file")
        serve.add_argument("--chat", action="store_true", help="chats instead of completions; needs --prompts")
        _add_load_arguments(serve)
        serve.add_argument("--gpus", type=positive("--gpus"), default=1, metavar="N", help="for tokens/s per GPU")
        serve.add_argument(
            "--silence", type=float, default=120.0, metavar="S", help="give a silent request up (default: 120 s)"
        )
        add_overlap(actions)

    def run(self, args: argparse.Namespace) -> int:
        """Run the load: 0, 1 if a request failed; or see :func:`run_overlap`.

        JSON: ``url``, ``model``, ``load``, ``report``, ``requests`` (each ``ttft_ms``, ``tpot_ms``, ``latency_ms``,
        ``prompt_tokens``, ``new_tokens``, ``error``).
        """
        if args.action == "overlap":
            return run_overlap(args)
        require_aiohttp()
        spec = _spec(args)
        endpoint, records, report = asyncio.run(_run(args, spec))
        if args.json:
            load, requests = spec.to_json(), [_told(record) for record in records]
            told = {"url": endpoint.url, "model": endpoint.model, "load": load, "report": report.to_json()}
            emit_json({**told, "requests": requests})
        else:
            _print(report, endpoint)
        for error in report.errors:
            note(clip(error, _ERROR_WIDTH))
        if not report.completed:
            raise EngineError(f"no request of {len(records)} came to its end")
        return 1 if report.failed else 0


def _add_load_arguments(parser: argparse.ArgumentParser) -> None:
    count = positive
    parser.add_argument("--requests", type=count("--requests"), default=32, metavar="N", help="how many (default: 32)")
    parser.add_argument(
        "--concurrency", type=count("--concurrency"), metavar="N", help="most in flight at once (default: no bound)"
    )
    parser.add_argument(
        "--rate", type=float, metavar="R", help="requests per second, as a Poisson process (default: all at once)"
    )
    parser.add_argument("--isl", type=count("--isl"), default=256, metavar="N", help="prompt tokens (default: 256)")
    parser.add_argument("--osl", type=count("--osl"), default=32, metavar="N", help="new tokens (default: 32)")
    parser.add_argument(
        "--ratio", type=float, default=1.0, metavar="R", help="draw lengths from R times the length on (default: 1)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of lengths, prompts and arrivals (default: 0)")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="one a line, or .jsonl; instead of random tokens")
    parser.add_argument(
        "--vocab-size",
        type=count("--vocab-size"),
        metavar="N",
        help="of random tokens (default: what the server tells)",
    )
    parser.add_argument(
        "--warmup", type=int, default=1, metavar="N", help="requests before the load that do not count (default: 1)"
    )


def _spec(args: argparse.Namespace) -> LoadSpec:
    from dsv4lab.load.spec import LoadSpec

    if args.chat and args.prompts is None:
        raise UsageError("--chat: it needs --prompts, since random tokens are no conversation")
    if args.warmup < 0:
        raise UsageError(f"--warmup is {args.warmup}: it takes an integer, 0 or more")
    return LoadSpec(
        requests=args.requests,
        prompt_tokens=args.isl,
        max_new_tokens=args.osl,
        range_ratio=args.ratio,
        concurrency=args.concurrency,
        rate=args.rate,
        seed=args.seed,
    )


async def _run(args: argparse.Namespace, spec: LoadSpec) -> tuple[Endpoint, list[RequestRecord], LoadReport]:
    from dsv4lab.cli.serve import api_key
    from dsv4lab.load.client import Endpoint, discover, run_load, warm_up
    from dsv4lab.load.report import summarise

    asked = Endpoint(args.url, args.model, api_key(args.api_key), chat=args.chat, silence_s=args.silence)
    endpoint, vocab_size = await discover(asked)
    prompts = _prompts(args, spec, vocab_size)
    with progress(spec.requests, "warming up") as advance:
        await warm_up(endpoint, spec, prompts, args.warmup)
        begun, done = time.monotonic(), 0

        def on_done(_record: RequestRecord) -> None:
            nonlocal done
            done += 1
            left = (time.monotonic() - begun) / done * (spec.requests - done)
            advance(1, note=f"loading, about {left:.0f} s left")

        advance(0, note="loading")
        records = await run_load(endpoint, spec, prompts, on_done)
    return endpoint, records, summarise(records, args.gpus)


def _prompts(args: argparse.Namespace, spec: LoadSpec, vocab_size: int | None) -> list[Prompt]:
    from dsv4lab.load.spec import read_prompts

    if args.prompts is not None:
        return spec.cycled(read_prompts(args.prompts))
    size = args.vocab_size or vocab_size
    if size is None:
        raise UsageError("--vocab-size: this server does not tell it, so give it, or --prompts")
    return spec.prompts(size)


def _told(record: RequestRecord) -> dict[str, Any]:
    names = ("ttft_ms", "tpot_ms", "latency_ms", "prompt_tokens", "new_tokens", "error")
    return {name: getattr(record, name) for name in names}


def _print(report: LoadReport, endpoint: Endpoint) -> None:
    rows = [
        _row(name, spread)
        for name, spread in (
            ("TTFT", report.ttft_ms),
            ("TPOT", report.tpot_ms),
            ("ITL", report.itl_ms),
            ("E2E", report.e2e_ms),
        )
        if spread is not None
    ]
    title = f"{clip(endpoint.model or '', 40)}: {report.completed} requests in {report.duration_s:.2f} s"
    table(("ms", "mean", "p50", "p90", "p95", "p99"), rows, title=title)
    per_gpu = f", {report.tokens_per_s_per_gpu:.1f} per GPU" if report.gpus > 1 else ""
    failed = f"; {report.failed} failed" if report.failed else ""
    console().print(
        f"{report.tokens_per_s:.1f} new tokens/s{per_gpu}, {report.total_tokens_per_s:.1f} with prompts, "
        f"{report.requests_per_s:.2f} requests/s,\n{report.concurrency_level:.1f} in flight on average{failed}"
    )


def _row(name: str, spread: Spread) -> tuple[str, ...]:
    return (name, f"{spread.mean:.2f}", *(f"{value:.2f}" for value in spread.percentiles.values()))
