"""``dsv4lab run --profile DIR``: decode steps of the same load under a profiler, into a file, and what that changed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from dsv4lab.cli.output import note, table
from dsv4lab.cli.trace_load import show_warnings
from dsv4lab.errors import UsageError
from dsv4lab.units import ns_text, ratio_text

if TYPE_CHECKING:
    from dsv4lab.engine.client import EngineClient
    from dsv4lab.engine.results import Profile

STEPS = 16


def add_profile_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the profile goes, and what records it."""
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="DIR",
        help=f"after the load, profile {STEPS} decode steps of one like it, and write the trace into this folder",
    )
    parser.add_argument(
        "--capture",
        choices=("torch", "ops"),
        help="what records the profile: torch's profiler, or the engine's own times (default: torch on a GPU)",
    )


def check_profile_arguments(args: argparse.Namespace) -> None:
    """Raise :class:`UsageError` for a way to record what is not recorded."""
    if args.capture is not None and args.profile is None:
        raise UsageError("--capture: it says how --profile DIR records")


def profiled(client: EngineClient, args: argparse.Namespace) -> Profile | None:
    """The profile that was asked for, if one was."""
    if args.profile is None:
        return None
    return client.profile(
        STEPS,
        concurrency=args.concurrency,
        prompt_tokens=args.prompt_tokens,
        capture=args.capture,
        directory=args.profile,
    )


def profile_document(profile: Profile) -> dict[str, Any]:
    """``trace``, ``steps``, ``stream_busy`` (as ``trace summary``), ``cost`` (null unless torch's profiler recorded),
    ``warnings``.
    """
    return {
        "trace": str(profile.path),
        "steps": len(profile.steps),
        "stream_busy": profile.timeline.stream_busy().to_json(),
        "cost": None if profile.cost is None else profile.cost.to_json(),
        "warnings": list(profile.warnings),
    }


def show_profile(profile: Profile) -> None:
    """Busy time by stream, the file, and whether profiling changed the step."""
    busy = profile.timeline.stream_busy()
    rows = [
        (s.stream, ns_text(s.busy_ns), "-" if s.role == "main" else ns_text(s.hidden_ns), str(s.events))
        for s in busy.streams
    ]
    title = (
        f"Profile of {len(profile.steps)} decode steps: {ratio_text(busy.concurrency)} concurrency "
        f"on {ns_text(busy.wall_ns)} wall"
    )
    table(("stream", "busy", "hidden", "rows"), rows, title=title, left=1)
    note(f"trace: {escape(str(profile.path))}")
    if profile.cost is not None and not profile.cost.changed:
        note(profile.cost.text)
    show_warnings(profile.warnings)
