"""``dsv4lab memory``: slots, pages and bytes of the KV pool, before anything is allocated."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsv4lab.cli.base import Command
from dsv4lab.cli.model_args import add_pool_arguments, given_pool_fields, positive
from dsv4lab.cli.output import console, emit_json, table
from dsv4lab.cli.rank_args import add_size_arguments, given_rank_fields
from dsv4lab.cli.sizes import size
from dsv4lab.config.engine import PREFIX_CACHE_BYTES
from dsv4lab.config.from_json import load_model_config
from dsv4lab.config.model import ModelConfig
from dsv4lab.config.presets import PRESETS, preset
from dsv4lab.config.resolve import Choices, DeviceFacts, DeviceKind, resolve
from dsv4lab.env import read_env
from dsv4lab.errors import ConfigError, UsageError
from dsv4lab.kv.formats import PoolFormat
from dsv4lab.kv.memory import DEFAULT_FRACTION, DEFAULT_REQUESTS, DEFAULT_SWA_RATIO, MemoryPlan, MemoryWish, plan_memory
from dsv4lab.parallel.layout import Layout
from dsv4lab.units import bytes_text

MTP_WIDTH = 4  # three drafts and the token before them


class MemoryCommand(Command):
    """Plan the pool of a GPU from the flags that serving users know. Needs no GPU and no weights."""

    name = "memory"
    help = "plan the KV pool: bytes per token and per request, slots and pages that fit"
    examples = (
        "dsv4lab memory --preset pro --kv-cache-dtype bf16",
        "dsv4lab memory --preset flash --device-memory 141GB --weight-memory 84GB --context-length 131072",
        "dsv4lab memory --preset pro --tp-size 8 --device-memory 141GB --weight-memory auto",
        "dsv4lab memory --preset flash --kv-cache-dtype fp8 --index-cache-dtype fp4 --max-running-requests 64 --json",
    )

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Model, formats, what must fit, and into what."""
        model = parser.add_mutually_exclusive_group()
        model.add_argument("--preset", default="flash", help=f"model: {', '.join(PRESETS)} (default: flash)")
        model.add_argument(
            "--checkpoint", type=Path, metavar="DIR", help="a checkpoint's folder; its config.json is read"
        )
        add_pool_arguments(parser)
        add_size_arguments(parser)
        _add_limits(parser)
        _add_wishes(parser)
        _add_prefix_cache(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Print the plan; the keys of ``--json`` are in the README."""
        config = preset(args.preset) if args.checkpoint is None else load_model_config(args.checkpoint)
        layout = layout_of(config, args)
        plan = plan_memory(config, _form(config, args), _wish(config, args, layout))
        ranks = {} if layout.world_size == 1 else rank_facts(config, layout)
        if args.json:
            emit_json({"model": config.name, **plan.to_json(), **ranks})
        else:
            _print(config.name, plan)
            if ranks:
                console().print(_rank_note(ranks))
        return 0


def layout_of(config: ModelConfig, args: argparse.Namespace) -> Layout:
    """The ranks asked for. Raises :class:`ConfigError` if they cannot share the model evenly."""
    sizes = given_rank_fields(args)
    layout = Layout(**sizes)
    if layout.world_size % layout.ep_size:
        raise ConfigError(f"ep_size = {layout.ep_size}: takes a divisor of the {layout.world_size} ranks")
    layout.check(config)
    return layout


def rank_facts(config: ModelConfig, layout: Layout) -> dict[str, int]:
    """What one of several ranks holds: ``weight_bytes_per_rank`` as released; the pool is whole on each."""
    sizes = {"tp_size": layout.tp_size, "dp_size": layout.dp_size, "ep_size": layout.ep_size}
    return {**sizes, "weight_bytes_per_rank": _released_bytes(config, layout)}


def _rank_note(ranks: dict[str, int]) -> str:
    world = ranks["tp_size"] * ranks["dp_size"]
    weights = bytes_text(ranks["weight_bytes_per_rank"])
    pools = "" if ranks["dp_size"] == 1 else f"; the {ranks['dp_size']} groups hold different requests"
    return f"Each of {world} ranks holds {weights} of weights, as released, and a whole pool{pools}."


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device-memory",
        type=size("--device-memory"),
        metavar="SIZE",
        help="memory of the device, such as 141GB or 80GiB (default: no limit; one request of the longest context)",
    )
    parser.add_argument(
        "--weight-memory",
        type=weight_size,
        default=0,
        metavar="SIZE",
        help="what weights take of it; auto: as released, in fp8 and fp4, of one rank "
        "(default: 0: --device-memory is what is free beside them)",
    )
    parser.add_argument(
        "--mem-fraction-static",
        type=fraction("--mem-fraction-static"),
        default=DEFAULT_FRACTION,
        metavar="F",
        help=f"part of it for weights and pool (default: {DEFAULT_FRACTION})",
    )


def _add_wishes(parser: argparse.ArgumentParser) -> None:
    whole = (
        ("--max-running-requests", f"requests at once (default: what fits well, at most {DEFAULT_REQUESTS})"),
        ("--max-total-tokens", "tokens in all pages (default: as many as fit)"),
        ("--context-length", "tokens of one request that must fit (default: no demand)"),
    )
    for name, text in whole:
        parser.add_argument(name, type=positive(name), metavar="N", help=text)
    parser.add_argument(
        "--page-size", type=positive("--page-size"), default=256, metavar="N", help="tokens to a page (default: 256)"
    )
    parser.add_argument(
        "--swa-full-tokens-ratio",
        type=fraction("--swa-full-tokens-ratio"),
        metavar="F",
        help=f"window tokens over all tokens in the three_pool layout, often {DEFAULT_SWA_RATIO}; "
        "a unified pool has a ring per request instead (default: as many as the requests need)",
    )
    parser.add_argument(
        "--speculative", choices=("off", "mtp", "dspark"), default="off", help="plan for a drafter (default: off)"
    )
    parser.add_argument(
        "--speculative-num-draft-tokens",
        type=positive("--speculative-num-draft-tokens"),
        metavar="N",
        help="verify width, for which rings are larger (default: 1 without speculation, 4 for mtp, a block and 1 for "
        "dspark)",
    )


def _add_prefix_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--enable-prefix-cache", action="store_true", help="leave room for its snapshots")
    parser.add_argument(
        "--prefix-cache-bytes",
        type=size("--prefix-cache-bytes"),
        default=PREFIX_CACHE_BYTES,
        metavar="SIZE",
        help="most bytes of the snapshots (default: 256MiB)",
    )


def _form(config: ModelConfig, args: argparse.Namespace) -> PoolFormat:
    """The formats on a GPU: what memory is planned for."""
    settings = resolve(DeviceFacts(DeviceKind.CUDA), read_env(), cli=Choices(**given_pool_fields(args)))
    return PoolFormat.choose(
        config,
        kv=settings.kv_cache_dtype.value,
        index=settings.index_cache_dtype.value,
        layout=settings.kv_layout.value,
        dtype="bfloat16",
        device="cuda",
    )


def _speculation(config: ModelConfig, args: argparse.Namespace) -> tuple[int, int]:
    """Layers of the drafter, and the verify width."""
    width: int | None = args.speculative_num_draft_tokens
    if args.speculative == "off":
        return 0, width or 1
    if args.speculative == "mtp" and config.mtp_layers:
        return config.mtp_layers, width or MTP_WIDTH
    if args.speculative == "dspark" and config.dspark is not None:
        return config.dspark.stages, width or config.dspark.block_size + 1
    raise ConfigError(f"speculative {args.speculative!r}: model {config.name} carries no such drafter")


def _wish(config: ModelConfig, args: argparse.Namespace, layout: Layout) -> MemoryWish:
    layers, width = _speculation(config, args)
    return MemoryWish(
        device_memory=args.device_memory,
        weight_memory=_released_bytes(config, layout) if args.weight_memory is None else args.weight_memory,
        mem_fraction_static=args.mem_fraction_static,
        max_running_requests=args.max_running_requests,
        max_total_tokens=args.max_total_tokens,
        context_length=args.context_length,
        page_size=args.page_size,
        swa_full_tokens_ratio=args.swa_full_tokens_ratio,
        verify_tokens=width,
        draft_layers=layers,
        prefix_cache_bytes=args.prefix_cache_bytes if args.enable_prefix_cache else 0,
    )


def _released_bytes(config: ModelConfig, layout: Layout) -> int:
    """Of one rank."""
    from dsv4lab.checkpoint.names import expected_tensors, held_tensors
    from dsv4lab.checkpoint.stored import stored_bytes
    from dsv4lab.parallel.sharding import Sharding

    tensors = expected_tensors(config)
    return stored_bytes(tensors if layout.world_size == 1 else held_tensors(tensors, Sharding(layout, config)), "fp4")


def weight_size(text: str) -> int | None:
    """An argparse type: bytes as :func:`size` reads them, None for ``auto``."""
    return None if text == "auto" else size("--weight-memory")(text)


def fraction(option: str) -> Callable[[str], float]:
    """An argparse type: a number above 0, at most 1."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0.0 < value <= 1.0:
            raise UsageError(f"{option}: got {text!r}, it takes a number above 0, at most 1")
        return value

    return parse


def _print(model: str, plan: MemoryPlan) -> None:
    found = plan.to_json()
    out = console()
    kinds = f"{found['kv_layout']} layout, {found['kv_cache_dtype']} rows, {found['index_cache_dtype']} index keys"
    out.print(f"[lab.title]{model}[/]: {kinds}\n")
    table(["each", "bytes", ""], _each(found), left=1)
    table(["pool", "count", "bytes", ""], _pool(found), left=1)
    for line in _notes(found):
        out.print(line)


def _each(found: dict[str, Any]) -> list[list[str]]:
    rows = found["ring_rows"]
    states = [("ratio-4 state", "state4_bytes_per_slot"), ("ratio-128 state", "state128_bytes_per_slot")]
    if found["draft_bytes_per_slot"]:
        states.append(("drafter's rows", "draft_bytes_per_slot"))
    parts = [(f"  {rows} window rows a layer", "ring_bytes_per_slot"), *((f"  {n}", key) for n, key in states)]
    lines = [("token", "bytes_per_token"), (f"page of {found['page_size']}", "bytes_per_page")]
    lines += [("request", "bytes_per_slot"), *parts]
    lines += [("KV row", "bytes_per_row"), ("index key", "bytes_per_index_key")]
    if found["prefix_cache_bytes"]:
        lines.append(("snapshot at a page boundary", "bytes_per_snapshot"))
    return [[name, f"{found[key]:,}", bytes_text(found[key])] for name, key in lines]


def _pool(found: dict[str, Any]) -> list[list[str]]:
    lines = (
        ("slots (one reserved)", found["slots"], found["slots_bytes"]),
        ("pages (one reserved)", found["pages"], found["pages_bytes"]),
        ("tokens", found["tokens"], None),
        ("all", None, found["pool_bytes"]),
    )
    return [
        [name, "" if n is None else f"{n:,}", "" if b is None else f"{b:,}", "" if b is None else bytes_text(b)]
        for name, n, b in lines
    ]


def _notes(found: dict[str, Any]) -> list[str]:
    context, requests = found["context_length"], found["full_context_requests"]
    notes = []
    if cache := found["prefix_cache_bytes"]:
        count = cache // found["bytes_per_snapshot"]
        notes.append(f"The prefix cache has {bytes_text(cache)} beside the pool: {count:,} snapshots.")
    notes += [f"{requests} of {found['max_running_requests']} requests fit at {context:,} tokens each."]
    if found["available_bytes"] is None:
        notes.append("No --device-memory was given: this is what the requests and tokens asked for take.")
    else:
        notes.append(f"{bytes_text(found['available_bytes'])} are available to the pool.")
    return notes
