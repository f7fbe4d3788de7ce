"""``dsv4lab serve``: the engine behind OpenAI's HTTP endpoints."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from dsv4lab.cli import model_args, rank_args, schedule_args
from dsv4lab.cli.base import Command
from dsv4lab.cli.output import emit_json, note, progress
from dsv4lab.cli.sizes import size
from dsv4lab.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from dsv4lab.config.engine import EngineConfig
    from dsv4lab.serve.settings import ServeSettings

_GIVEN_UP = 1


class ServeCommand(Command):
    """Serve until a signal."""

    name = "serve"
    help = "serve a model: OpenAI's completions and chat with streaming, health, metrics and profiles"
    examples = (
        "dsv4lab serve --preset tiny",
        "dsv4lab serve --preset demo --plan hip --hw-queues 4 --max-running-requests 64 --max-total-tokens 65536",
        "dsv4lab serve --checkpoint path/to/model --port 9000 --api-key @key.txt",
        "dsv4lab serve --preset tiny --port 0 --json",
    )

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Model and engine, then the server's own."""
        model_args.add_model_arguments(parser, preset="tiny")
        parser.add_argument("--plan", help="overlap plan: a preset (off, hip, cuda) or a JSON file (default: off)")
        count = model_args.positive
        parser.add_argument("--hw-queues", type=count("--hw-queues"), metavar="N", help="hardware queues (default: 4)")
        parser.add_argument(
            "--max-running-requests",
            type=count("--max-running-requests"),
            default=8,
            metavar="N",
            help="choices that run at once (default: 8)",
        )
        parser.add_argument(
            "--max-total-tokens",
            type=count("--max-total-tokens"),
            default=16384,
            metavar="N",
            help="tokens in the KV pool, whole pages of 256 (default: 16384)",
        )
        model_args.add_device_arguments(parser)
        model_args.add_stream_arguments(parser)
        model_args.add_speculation_arguments(parser)
        rank_args.add_rank_arguments(parser)
        schedule_args.add_schedule_arguments(parser)
        _add_server_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Serve until SIGINT or SIGTERM: 0; 1 if the worker died too often.

        JSON, printed once it listens: ``url``, ``model``, ``pid``, ``worker_pid``, ``profile_dir``.
        """
        require_aiohttp()
        settings = settings_of(args)
        config = _engine_config(args)
        return _serve(config, settings, json=args.json)


def require_aiohttp() -> None:
    """Raise :class:`UnavailableError` where the server and the load client cannot run."""
    if importlib.util.find_spec("aiohttp") is None:
        raise UnavailableError("aiohttp is not installed: pip install 'dsv4lab[serve]'")


def settings_of(args: argparse.Namespace) -> ServeSettings:
    """The server's settings. Raises :class:`UsageError`."""
    from dsv4lab.serve.settings import ServeSettings

    model = args.preset if args.checkpoint is None else args.checkpoint.resolve().name
    return ServeSettings(
        model_name=args.served_model_name or model,
        host=args.host,
        port=args.port,
        api_key=api_key(args.api_key),
        max_body_bytes=args.max_body_bytes,
        max_prompt_tokens=args.max_prompt_tokens,
        max_queue=args.max_queue,
        write_timeout_s=args.write_timeout,
        drain_s=args.drain,
        max_restarts=args.max_restarts,
        profile_dir=args.profile_dir,
    )


def _add_server_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument("--host", default="127.0.0.1", help="address (default: 127.0.0.1); others need --api-key")
    group.add_argument("--port", type=int, default=8000, help="port, 0 for any free one (default: 8000)")
    group.add_argument("--api-key", metavar="KEY", help="what clients have to send; @FILE reads it from a file")
    group.add_argument("--served-model-name", metavar="NAME", help="the model's name (default: preset or folder)")
    group.add_argument(
        "--max-queue", type=int, default=256, metavar="N", help="choices that wait beside those that run (default: 256)"
    )
    group.add_argument(
        "--max-prompt-tokens",
        type=model_args.positive("--max-prompt-tokens"),
        metavar="N",
        help="longest prompt (default: what the pool holds)",
    )
    group.add_argument(
        "--max-body-bytes", type=size("--max-body-bytes"), default=8 << 20, metavar="SIZE", help="default: 8MiB"
    )
    group.add_argument(
        "--write-timeout", type=float, default=60.0, metavar="S", help="cut readers that take nothing (default: 60 s)"
    )
    group.add_argument(
        "--drain", type=float, default=30.0, metavar="S", help="time of requests in flight at the end (default: 30 s)"
    )
    group.add_argument(
        "--max-restarts", type=int, default=3, metavar="N", help="new workers after deaths, per hour (default: 3)"
    )
    group.add_argument(
        "--profile-dir",
        type=Path,
        default=Path("traces/serve"),
        metavar="DIR",
        help="where /stop_profile writes, a log directory of TensorBoard (default: traces/serve)",
    )


def api_key(given: str | None) -> str | None:
    """The key of ``--api-key``: as given, or what the file holds that ``@FILE`` names. Raises :class:`UsageError`."""
    if given is None or not given.startswith("@"):
        return given
    path = Path(given[1:])
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise UsageError(f"--api-key {given}: {getattr(error, 'strerror', None) or error}") from None


def _engine_config(args: argparse.Namespace) -> EngineConfig:
    from dsv4lab.engine.api import engine_config

    return engine_config(
        args.preset if args.checkpoint is None else args.checkpoint,
        plan=model_args.plan_setting(args.plan),
        hw_queues=args.hw_queues,
        dtype=args.dtype,
        weights=args.weights,
        seed=args.seed,
        num_layers=args.layers,
        queue_policy=args.queue_policy,
        side_streams=args.side_streams,
        max_running_requests=args.max_running_requests,
        max_total_tokens=args.max_total_tokens,
        **model_args.given_device_fields(args),
        **model_args.given_pool_fields(args),
        **model_args.given_speculation_fields(args),
        **rank_args.given_rank_fields(args),
        **schedule_args.given_schedule_fields(args),
    )


def _serve(config: EngineConfig, settings: ServeSettings, *, json: bool) -> int:
    from dsv4lab.engine.client import EngineClient
    from dsv4lab.serve.run import Running, serve

    with progress(None, "starting a worker") as advance:
        client = EngineClient(config, progress=lambda _fraction, stage: advance(0, note=stage))

    def announce(running: Running) -> None:
        if json:
            emit_json(
                {
                    "url": running.url,
                    "model": settings.model_name,
                    "pid": running.pid,
                    "worker_pid": client.pid,
                    "profile_dir": str(settings.profile_dir),
                }
            )
        note(f"serving {settings.model_name} at {running.url}/v1 (Ctrl-C ends it)")

    with client:
        done = asyncio.run(serve(client, settings, note, announce))
    return 0 if done else _GIVEN_UP
