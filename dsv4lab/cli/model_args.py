"""Arguments that commands which run the engine share: which model, which load, lists of integers, plans."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsv4lab.cli.rank_args import given_rank_fields
from dsv4lab.cli.schedule_args import given_schedule_fields
from dsv4lab.config.engine import (
    DTYPES,
    INDEX_CACHE_DTYPES,
    KV_CACHE_DTYPES,
    KV_LAYOUTS,
    QUEUE_POLICIES,
    SPECULATIVE,
    VERIFICATIONS,
    WEIGHTS,
    EngineConfig,
    OverlapSetting,
)
from dsv4lab.config.presets import PRESETS
from dsv4lab.errors import PlanError, UsageError
from dsv4lab.overlap.plan import resolve_plan

PAGE = 256
SPARE_TOKENS = 96
"""Room beside prompt and new tokens, which profiling needs."""


def add_model_arguments(parser: argparse.ArgumentParser, preset: str) -> None:
    """``--preset`` or ``--checkpoint``, ``--layers``, ``--seed``, ``--dtype``, ``--weights``, and the pool's."""
    model = parser.add_mutually_exclusive_group()
    names = ", ".join(PRESETS)
    model.add_argument("--preset", default=preset, help=f"model with synthetic weights: {names} (default: {preset})")
    model.add_argument("--checkpoint", type=Path, metavar="DIR", help="a checkpoint's folder instead of a preset")
    parser.add_argument(
        "--layers",
        type=positive("--layers"),
        metavar="N",
        help="the first N of a preset, where it does not fit whole (default: all)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of synthetic weights and of the prompts (default: 0)")
    parser.add_argument("--dtype", choices=DTYPES, help="number format (default: float32, on a GPU bfloat16)")
    parser.add_argument(
        "--weights",
        choices=WEIGHTS,
        default="dense",
        help="matrices in --dtype, or as stored: fp8, experts fp4 (default: dense)",
    )
    add_pool_arguments(parser)


def add_pool_arguments(parser: argparse.ArgumentParser) -> None:
    """``--kv-cache-dtype``, ``--index-cache-dtype`` and ``--kv-layout``: how the pool keeps its rows."""
    parser.add_argument(
        "--kv-cache-dtype", choices=KV_CACHE_DTYPES, help="format of KV rows (default: the environment's, or auto)"
    )
    parser.add_argument("--index-cache-dtype", choices=INDEX_CACHE_DTYPES, help="format of index keys (default: auto)")
    parser.add_argument(
        "--kv-layout", choices=KV_LAYOUTS, help="one pool, or the former three (default: the environment's, or unified)"
    )


def given_pool_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The engine's fields of :func:`add_pool_arguments` that were given; environment and defaults have the others."""
    fields = {name: getattr(args, name) for name in ("kv_cache_dtype", "index_cache_dtype", "kv_layout")}
    return {name: value for name, value in fields.items() if value is not None}


def add_load_arguments(parser: argparse.ArgumentParser, prompt_tokens: int, max_new_tokens: int) -> None:
    """``--prompt-tokens`` and ``--max-new-tokens``."""
    parser.add_argument(
        "--prompt-tokens",
        type=positive("--prompt-tokens"),
        default=prompt_tokens,
        metavar="N",
        help=f"tokens of each prompt, drawn at random (default: {prompt_tokens})",
    )
    parser.add_argument(
        "--max-new-tokens",
        type=positive("--max-new-tokens"),
        default=max_new_tokens,
        metavar="N",
        help=f"tokens generated for each prompt (default: {max_new_tokens})",
    )


def add_stream_arguments(parser: argparse.ArgumentParser) -> None:
    """``--queue-policy`` and ``--side-streams``."""
    parser.add_argument(
        "--queue-policy",
        choices=QUEUE_POLICIES,
        default="round_robin",
        help="how streams are mapped to hardware queues (default: round_robin)",
    )
    parser.add_argument(
        "--side-streams",
        type=int,
        metavar="N",
        help="fold the plan's side streams onto this many (default: no folding)",
    )


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """``--device``, ``--no-graphs`` and ``--graph-max-bs``."""
    parser.add_argument(
        "--device", default="cpu", metavar="D", help="cpu, cuda or hip, with :N for a GPU of that number (default: cpu)"
    )
    parser.add_argument("--no-graphs", action="store_true", help="on a GPU: launch decode steps op by op")
    parser.add_argument(
        "--graph-max-bs",
        type=positive("--graph-max-bs"),
        metavar="N",
        help="on a GPU: largest batch that runs as a graph (default: all)",
    )


def given_device_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The engine's fields of :func:`add_device_arguments`, where a command has them."""
    if not hasattr(args, "device"):
        return {}
    return {"device": args.device, "graphs": not args.no_graphs, "graph_max_bs": args.graph_max_bs}


def add_speculation_arguments(parser: argparse.ArgumentParser) -> None:
    """``--speculative``, ``--draft-tokens``, ``--draft-block``, ``--verification`` and ``--draft-seed``."""
    parser.add_argument(
        "--speculative", choices=SPECULATIVE, default="off", help="decode with a drafter (default: off)"
    )
    parser.add_argument(
        "--draft-tokens",
        type=positive("--draft-tokens"),
        metavar="N",
        help="drafts per step; the verify width is one more (default: 3 for mtp, the whole block for dspark)",
    )
    parser.add_argument(
        "--draft-block",
        type=positive("--draft-block"),
        metavar="N",
        help="tokens of a dspark block (default: the model's)",
    )
    parser.add_argument(
        "--verification",
        choices=VERIFICATIONS,
        default="chain",
        help="how sampled drafts are verified; coupled gives the tokens of plain decoding (default: chain)",
    )
    parser.add_argument(
        "--draft-seed", type=int, metavar="N", help="seed of a synthetic drafter (default: one more than --seed)"
    )


def given_speculation_fields(args: argparse.Namespace) -> dict[str, Any]:
    """Engine fields of the options of :func:`add_speculation_arguments`, where a command has them."""
    return {name: getattr(args, name, None) for name in ("draft_tokens", "draft_block", "draft_seed")} | {
        "speculative": getattr(args, "speculative", "off"),
        "verification": getattr(args, "verification", "chain"),
    }


def engine_config(
    args: argparse.Namespace, concurrency: int, plan: OverlapSetting | None, hw_queues: int | None
) -> EngineConfig:
    """The engine for ``concurrency`` requests of the load in ``args``, with room to spare in the pool.

    Where ``plan`` or ``hw_queues`` is None, the environment and then defaults decide. The environment is checked.
    """
    from dsv4lab.engine.api import engine_config as resolved

    pages = 1 + (args.prompt_tokens + args.max_new_tokens + SPARE_TOKENS - 1) // PAGE
    return resolved(
        args.preset if args.checkpoint is None else args.checkpoint,
        plan=plan,
        hw_queues=hw_queues,
        dtype=args.dtype,
        weights=args.weights,
        seed=args.seed,
        num_layers=args.layers,
        queue_policy=args.queue_policy,
        side_streams=args.side_streams,
        max_running_requests=concurrency,
        max_total_tokens=2 * concurrency * pages * PAGE,
        **given_device_fields(args),
        **given_pool_fields(args),
        **given_speculation_fields(args),
        **given_rank_fields(args),
        **given_schedule_fields(args),
    )


def missing(option: str, needed: str) -> UsageError:
    """The error of an option that makes no sense without ``needed``."""
    return UsageError(f"{option}: it needs {needed}")


def positive(option: str) -> Callable[[str], int]:
    """An argparse type: one integer of at least 1."""

    def parse(text: str) -> int:
        values = integers(option)(text)
        if len(values) != 1:
            raise UsageError(f"{option}: got {text!r}, it takes one integer")
        return values[0]

    return parse


def integers(option: str) -> Callable[[str], tuple[int, ...]]:
    """An argparse type: integers of at least 1, separated by commas."""

    def parse(text: str) -> tuple[int, ...]:
        words = [word.strip() for word in text.split(",")]
        if not all(word.isascii() and word.isdigit() and len(word) < 10 and int(word) for word in words):
            raise UsageError(f"{option}: got {text!r}, it takes integers of at least 1, separated by commas")
        return tuple(int(word) for word in words)

    return parse


def plan_setting(text: str | None) -> OverlapSetting | None:
    """A plan's preset name, or the plan in the JSON file that ``text`` names; None stays None.

    Raises :class:`PlanError` for an unknown preset, an unreadable file or a malformed plan.
    """
    if text is None:
        return None
    path = Path(text)
    if path.suffix != ".json" and len(path.parts) == 1:
        resolve_plan(text)
        return text
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise PlanError(f"plan file {path}: {error.strerror}") from None
    except ValueError as error:
        raise PlanError(f"plan file {path}: not JSON: {error}") from None
    if not isinstance(data, dict):
        raise PlanError(f"plan file {path}: got {type(data).__name__}, expected an object with name and rules")
    resolve_plan(data)
    return data


def plan_name(setting: OverlapSetting) -> str:
    """The name that a plan setting goes by."""
    return setting if isinstance(setting, str) else str(setting.get("name", "unnamed"))
