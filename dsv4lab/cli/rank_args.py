"""Arguments of runs over several ranks."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dsv4lab.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsv4lab.config.engine import EngineConfig

SIZES = (
    ("tp_size", "ranks that share the heads of each request's attention"),
    ("dp_size", "groups of such ranks, with requests and pools of their own"),
    ("ep_size", "parts that the experts are dealt into; 1 splits every expert over all ranks"),
)


def add_size_arguments(parser: argparse.ArgumentParser) -> None:
    """``--tp-size`` (or ``--tp``), ``--dp-size``, ``--ep-size``."""
    for name, text in SIZES:
        option = f"--{name.replace('_', '-')}"
        short = option.removesuffix("-size")
        parser.add_argument(option, short, type=_size(option), metavar="N", help=f"{text} (default: 1)")


def add_rank_arguments(parser: argparse.ArgumentParser) -> None:
    """The sizes, and how their experts run."""
    add_size_arguments(parser)
    parser.add_argument(
        "--enforce-shared-experts-fusion",
        dest="shared_expert_fusion",
        action="store_true",
        default=None,
        help="run the shared expert as one more routed expert",
    )


def given_rank_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The engine's fields that were given, where a command has these options."""
    fields = {name: getattr(args, name, None) for name in (*(name for name, _ in SIZES), "shared_expert_fusion")}
    return {name: value for name, value in fields.items() if value is not None}


def told_sizes(config: EngineConfig) -> dict[str, int]:
    """``tp_size``, ``dp_size`` and ``ep_size`` for a JSON document, of a run over several ranks."""
    return {name: getattr(config, name) for name, _ in SIZES} if config.world_size > 1 else {}


def _size(option: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and 0 < len(text) < 4 and int(text)):
            raise UsageError(f"{option}: got {text!r}, it takes an integer of at least 1")
        return int(text)

    return parse
