"""Arguments about who runs when: chunks, mixed forwards, pages and the prefix cache."""

from __future__ import annotations

import argparse
from typing import Any

from dsv4lab.cli.sizes import size
from dsv4lab.config.engine import PAGE_RESERVATIONS
from dsv4lab.errors import UsageError

FIELDS = (
    "batch_invariant",
    "chunked_prefill_size",
    "enable_mixed_chunk",
    "page_reservation",
    "enable_prefix_cache",
    "prefix_cache_bytes",
)


def add_schedule_arguments(parser: argparse.ArgumentParser) -> None:
    """``--batch-invariant``, and those about chunks, pages and the prefix cache."""
    parser.add_argument(
        "--batch-invariant",
        action="store_true",
        default=None,
        help="give a request the same bits whatever runs beside it, and with or without drafts; slower; on a GPU",
    )
    add_chunk_argument(parser)
    parser.add_argument(
        "--enable-mixed-chunk",
        action="store_true",
        default=None,
        help="let prefill chunks and decoding requests share a forward (default: they alternate)",
    )
    parser.add_argument(
        "--page-reservation",
        choices=PAGE_RESERVATIONS,
        help="give a request its pages as it grows, and stop the youngest where they run out, or all of them at "
        "admission (default: on_demand)",
    )
    parser.add_argument(
        "--enable-prefix-cache",
        action="store_true",
        default=None,
        help="keep pages, with exact snapshots at page boundaries, for prompts that begin alike (default: off)",
    )
    parser.add_argument(
        "--prefix-cache-bytes",
        type=size("--prefix-cache-bytes"),
        metavar="SIZE",
        help="most bytes of its snapshots (default: 256MiB)",
    )


def add_chunk_argument(parser: argparse.ArgumentParser) -> None:
    """``--chunked-prefill-size`` alone."""
    parser.add_argument(
        "--chunked-prefill-size", type=_tokens, metavar="N", help="tokens of a prefill forward (default: 512)"
    )


def given_schedule_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The engine's fields that were given, where a command has these options."""
    fields = {name: getattr(args, name, None) for name in FIELDS}
    return {name: value for name, value in fields.items() if value is not None}


def _tokens(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text)):
        raise UsageError(f"--chunked-prefill-size: got {text!r}, it takes an integer of at least 1")
    return int(text)
