"""``dsv4lab memory``: slots, pages and bytes of the KV pool, before anything is allocated."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsv4lab.cli.base import Command
from dsv4lab.cli.model_args import add_pool_arguments, given_pool_fields, positive
from dsv4lab.cli.output import console, emit_json, table
from dsv4lab.config.from_json import load_model_config
from dsv4lab.config.model import ModelConfig
from dsv4lab.config.presets import PRESETS, preset
from dsv4lab.config.resolve import Choices, DeviceFacts, DeviceKind, resolve
from dsv4lab.env import read_env
from dsv4lab.errors import ConfigError, UsageError
from dsv4lab.kv.formats import PoolFormat
from dsv4lab.kv.memory import DEFAULT_FRACTION, DEFAULT_REQUESTS, DEFAULT_SWA_RATIO, MemoryPlan, MemoryWish, plan_memory
from dsv4lab.units import bytes_text

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|[KMGT]i?B)?", re.IGNORECASE)
MTP_WIDTH = 4  # three drafts and the token before them
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


class MemoryCommand(Command):
    """Plan the pool of a GPU from the flags that serving users know. Needs no GPU and no weights."""

    name = "memory"
    help = "plan the KV pool: bytes per token and per request, slots and pages that fit"
    examples = (
        "dsv4lab memory --preset pro --kv-cache-dtype bf16",
        "dsv4lab memory --preset flash --device-memory 141GB --weight-memory 84GB --context-length 131072",
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
        _add_limits(parser)
        _add_wishes(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Print the plan; the keys of ``--json`` are in the README."""
        config = preset(args.preset) if args.checkpoint is None else load_model_config(args.checkpoint)
        plan = plan_memory(config, _form(config, args), _wish(config, args))
        if args.json:
            emit_json({"model": config.name, **plan.to_json()})
        else:
            _print(config.name, plan)
        return 0


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
        help="what weights take of it; auto: as released, in fp8 and fp4 "
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


def _wish(config: ModelConfig, args: argparse.Namespace) -> MemoryWish:
    layers, width = _speculation(config, args)
    return MemoryWish(
        device_memory=args.device_memory,
        weight_memory=_released_bytes(config) if args.weight_memory is None else args.weight_memory,
        mem_fraction_static=args.mem_fraction_static,
        max_running_requests=args.max_running_requests,
        max_total_tokens=args.max_total_tokens,
        context_length=args.context_length,
        page_size=args.page_size,
        swa_full_tokens_ratio=args.swa_full_tokens_ratio,
        verify_tokens=width,
        draft_layers=layers,
    )


def _released_bytes(config: ModelConfig) -> int:
    from dsv4lab.checkpoint.names import expected_tensors
    from dsv4lab.checkpoint.stored import stored_bytes

    return stored_bytes(expected_tensors(config), "fp4")


def weight_size(text: str) -> int | None:
    """An argparse type: bytes as :func:`size` reads them, None for ``auto``."""
    return None if text == "auto" else size("--weight-memory")(text)


def size(option: str) -> Callable[[str], int]:
    """An argparse type: bytes, as a number with or without a unit (GB is 10^9, GiB 2^30)."""

    def parse(text: str) -> int:
        found = _SIZE.fullmatch(text.strip())
        if found is None:
            raise UsageError(f"{option}: got {text!r}, it takes bytes, such as 80GiB, 141GB or 85899345920")
        unit = (found[2] or "B").upper()
        factor = 1 if unit == "B" else (1024 if "I" in unit else 1000) ** _POWERS[unit[0]]
        return int(float(found[1]) * factor) if "." in found[1] else int(found[1]) * factor

    return parse


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
    notes = [f"{requests} of {found['max_running_requests']} requests fit at {context:,} tokens each."]
    if found["available_bytes"] is None:
        notes.append("No --device-memory was given: this is what the requests and tokens asked for take.")
    else:
        notes.append(f"{bytes_text(found['available_bytes'])} are available to the pool.")
    return notes
