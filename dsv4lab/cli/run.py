"""``dsv4lab run``: one synthetic load on one setting, or prompts and a chat in words."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from dsv4lab.cli import model_args, rank_args, run_profile, schedule_args, text_args
from dsv4lab.cli.base import Command
from dsv4lab.cli.output import console, emit_json, note, progress, table
from dsv4lab.cli.run_json import busy_of, document, extras
from dsv4lab.errors import UsageError
from dsv4lab.units import ns_text, ratio_text

if TYPE_CHECKING:
    from dsv4lab.config.engine import EngineConfig
    from dsv4lab.engine.results import GenerateResult, Profile
    from dsv4lab.timeline.records import BusySummary

PROMPT_TOKENS = 256
_SHOWN_TOKENS = 12


class RunCommand(Command):
    """Generate, and say how long it took and what the streams did."""

    name = "run"
    help = "run a synthetic load, prompts or a chat: tokens, TTFT, TPOT and the busy time of each stream"
    examples = (
        "dsv4lab run --preset tiny",
        "dsv4lab run --preset demo --concurrency 4 --plan hip --hw-queues 2",
        "dsv4lab run --concurrency 4 --prompt-tokens 300 --max-new-tokens 32 --plan hip --hw-queues 4 --json",
        "dsv4lab run --preset tiny --speculative mtp --draft-tokens 3 --json",
        "dsv4lab run --preset tiny --tp-size 2 --plan hip",
        "dsv4lab run --preset demo --plan hip --profile traces/run --capture torch",
        "dsv4lab run --preset tiny --concurrency 4 --dp-size 2 --ep-size 2 --json",
        "dsv4lab run --checkpoint path/to/model --plan my-plan.json --prompt-tokens 64",
        "dsv4lab run --checkpoint path/to/model --prompt 'Once upon a time' --temperature 0.8 --top-p 0.95",
        "dsv4lab run --checkpoint path/to/model --chat 'What is 2 + 2?' --reasoning-effort high",
    )

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Model, load, and what it runs on."""
        model_args.add_model_arguments(parser, preset="tiny")
        parser.add_argument(
            "--concurrency",
            type=model_args.positive("--concurrency"),
            metavar="N",
            help="requests in flight at once (default: 1)",
        )
        model_args.add_load_arguments(parser, prompt_tokens=PROMPT_TOKENS, max_new_tokens=32)
        parser.set_defaults(prompt_tokens=None)  # so that one that makes no sense is noticed
        parser.add_argument(
            "--plan",
            help="overlap plan: a preset (off, hip, cuda) or a JSON file (default: the environment's, else off)",
        )
        parser.add_argument(
            "--hw-queues",
            type=model_args.positive("--hw-queues"),
            metavar="N",
            help="hardware queues (default: GPU_MAX_HW_QUEUES, else 4)",
        )
        model_args.add_device_arguments(parser)
        model_args.add_stream_arguments(parser)
        model_args.add_speculation_arguments(parser)
        rank_args.add_rank_arguments(parser)
        schedule_args.add_schedule_arguments(parser)
        text_args.add_prompt_arguments(parser)
        text_args.add_sampling_arguments(parser)
        run_profile.add_profile_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Run it. JSON: ``tokens``, ``ttft_ms``, ``tpot_ms``, ``concurrency_level``, ``plan``, ``hw_queues``,
        ``stream_busy`` (as ``trace summary``), ``tokens_per_s``; with a drafter ``accepted_per_step``, with
        ``--logprobs`` ``logprobs`` too, with ``--profile`` ``profile``. With ``--prompt`` also ``texts`` and
        ``finish_reasons``.
        """
        run_profile.check_profile_arguments(args)
        if args.prompt is not None or args.chat is not None or args.messages is not None:
            from dsv4lab.cli.run_text import run_text

            for option in ("concurrency", "prompt_tokens", "profile"):
                if getattr(args, option) is not None:
                    raise UsageError(
                        f"--{option.replace('_', '-')}: it is for synthetic loads, and the prompts are given"
                    )
            return run_text(args)
        text_args.conversation(args)
        args.concurrency, args.prompt_tokens = args.concurrency or 1, args.prompt_tokens or PROMPT_TOKENS
        config = model_args.engine_config(
            args, args.concurrency, plan=model_args.plan_setting(args.plan), hw_queues=args.hw_queues
        )
        result, more, profile = _load(config, args)
        if args.json:
            if profile is not None:
                more["profile"] = run_profile.profile_document(profile)
            emit_json(document(result, config, args.concurrency) | more)
        else:
            _print(result, busy_of(result), config, args.concurrency)
            if (accepted := more.get("accepted_per_step")) is not None:
                note(f"{config.speculative}: {accepted:.2f} drafts accepted per step")
            if (cache := more.get("prefix_cache")) is not None:
                hits, queries, saved = cache["hits"], cache["queries"], cache["tokens_saved"]
                note(f"prefix cache: {hits} of {queries} requests hit, {saved} tokens saved")
            if profile is not None:
                run_profile.show_profile(profile)
        return 0


def _load(config: EngineConfig, args: argparse.Namespace) -> tuple[GenerateResult, dict[str, Any], Profile | None]:
    """The load's result, what else there is to tell of it, and the profile behind it."""
    from dsv4lab.engine.client import EngineClient

    params = text_args.sampling_params(args)
    with (
        progress(args.concurrency * args.max_new_tokens, "starting a worker") as advance,
        EngineClient(config, progress=lambda _fraction, stage: advance(0, note=stage)) as client,
    ):
        advance(0, note="generating")
        result = client.load(
            args.concurrency,
            args.prompt_tokens,
            args.max_new_tokens,
            args.seed,
            sampling=params,
            profile=True,
            on_token=lambda _place, _token: advance(1),
        )
        more = extras(client, params.logprobs, result.requests)
        if args.profile is not None:
            advance(0, note="profiling")
        return result, more, run_profile.profiled(client, args)


def _print(result: GenerateResult, busy: BusySummary, config: EngineConfig, concurrency: int) -> None:
    plan, queues = model_args.plan_name(config.plan), config.hw_queues
    title = f"{config.model}: plan {plan}, hardware queues {queues}, concurrency level {concurrency}"
    times = (_ms(result.ttft_ms), _ms(result.tpot_ms), f"{result.tokens_per_s:.1f}", f"{result.wall_s:.2f} s")
    table(("TTFT", "TPOT", "tokens/s", "wall"), [times], title=escape(title), left=0)
    rows = [
        (
            stream.stream,
            stream.queue or "-",
            ns_text(stream.busy_ns),
            f"{100 * stream.busy_ns / busy.wall_ns:.1f} %",
            "-" if stream.role == "main" else ns_text(stream.hidden_ns),
            str(stream.events),
        )
        for stream in busy.streams
    ]
    title = f"Streams, prefill and decode: {ratio_text(busy.concurrency)} concurrency on {ns_text(busy.wall_ns)} wall"
    table(("stream", "queue", "busy", "of wall", "hidden", "ops"), rows, title=title, left=2)
    out = console()
    for place, tokens in enumerate(result.tokens):
        more = " ..." if len(tokens) > _SHOWN_TOKENS else ""
        out.print(f"request {place}: {len(tokens)} new tokens: {' '.join(map(str, tokens[:_SHOWN_TOKENS]))}{more}")


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} ms"
