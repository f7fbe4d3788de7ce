"""``dsv4lab bench overlap``: plans against the serial programs on this machine, in one process."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4lab.cli.base import add_common_options
from dsv4lab.cli.model_args import positive
from dsv4lab.cli.output import emit_json, note, say, text_table
from dsv4lab.cli.safe import clean
from dsv4lab.errors import EngineError, UsageError

if TYPE_CHECKING:
    from dsv4lab.tuning.overlap.record import OverlapRecord
    from dsv4lab.tuning.overlap.settings import Settings
    from dsv4lab.tuning.table_text import Table

SHAPES = ("flash", "flash-tp8", "pro", "pro-tp8", "demo", "tiny")
HELP = "overlap plans against the serial programs on this machine, decode step by decode step"


def add_overlap(actions: Any) -> None:
    """The action ``overlap`` of ``dsv4lab bench``."""
    parser = actions.add_parser("overlap", help=HELP, description=HELP, allow_abbrev=False)
    add_common_options(parser, nested=True)
    parser.add_argument(
        "--shape", choices=SHAPES, help="with -tp8: one rank's share of eight (default: flash-tp8, on the CPU demo)"
    )
    parser.add_argument(
        "--layers", type=positive("--layers"), default=12, metavar="N", help="the first N (default: 12)"
    )
    parser.add_argument(
        "--isl", type=positive("--isl"), metavar="N", help="tokens of each request (default: 8192, on the CPU 512)"
    )
    parser.add_argument(
        "--concurrency", metavar="N,N", help="requests of a step (default: 1,2,4,8,16,32,64, on the CPU 1,4,8)"
    )
    parser.add_argument(
        "--plans", metavar="A,B", help="beside off and unfused (default: all presets and their unions with moe)"
    )
    parser.add_argument(
        "--rounds",
        type=positive("--rounds"),
        default=25,
        metavar="N",
        help="in which all plans take turns (default: 25)",
    )
    parser.add_argument(
        "--in-a-row", type=positive("--in-a-row"), default=8, metavar="N", help="steps of each turn (default: 8)"
    )
    parser.add_argument(
        "--replays", type=positive("--replays"), default=1000, metavar="N",
        help="of the best plan, each compared bit for bit (default: 1000, on the CPU 20)",
    )  # fmt: skip
    parser.add_argument("--minutes", type=float, default=8.0, help="what does not fit is left out (default: 8)")
    parser.add_argument("--kv", choices=("bf16", "fp8"), default="bf16", help="KV rows and index keys (default: bf16)")
    parser.add_argument(
        "--device", choices=("auto", "cuda", "hip", "cpu"), default="auto", help="default: the GPU if there is one"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write record, Markdown, traces and probe here")
    parser.add_argument("--show", type=Path, metavar="FILE", help="measure nothing: print a record that --out kept")
    parser.add_argument(
        "--trace", metavar="A,B", help="plans to trace at concurrency 1, 4, 8 and 32, where off always is"
    )


def run_overlap(args: argparse.Namespace) -> int:
    """Measure and print: 0, 1 if a plan gave other bits than the serial program.

    JSON: the record (docs/gpu.md), with ``result`` beside it: per level ``control``, ``best``, ``auto``, ...
    """
    record = _stored(args.show) if args.show is not None else _measured(args)
    if args.json:
        emit_json({**record.to_json(), "result": result_json(record)})
    else:
        show(record)
        if args.out is not None and args.show is None:
            say(clean(f"written to {args.out}: overlap-{record.settings.shape}.json, .md and traces"))
    if record.gate is None or not record.gate.green:
        raise EngineError("the gate is red: plans give other bits than the serial program, so nothing was timed")
    return 0


def _stored(path: Path) -> OverlapRecord:
    from dsv4lab.tuning.overlap.record import load_record

    return load_record(path)


def _measured(args: argparse.Namespace) -> OverlapRecord:
    from dsv4lab.tuning.overlap.bench import bench

    return bench(overlap_settings(args), args.out, note)


def overlap_settings(args: argparse.Namespace) -> Settings:
    """What ``args`` ask for, with the defaults of the device that is here."""
    from dsv4lab.engine.devices import choose_device
    from dsv4lab.tuning.overlap.arms import default_plans
    from dsv4lab.tuning.overlap.settings import Settings

    device = choose_device(args.device).device
    cpu = device == "cpu"
    levels = args.concurrency or ("1,4,8" if cpu else "1,2,4,8,16,32,64")
    return Settings(
        shape=args.shape or ("demo" if cpu else "flash-tp8"),
        device=device,
        layers=args.layers,
        isl=args.isl or (512 if cpu else 8192),
        concurrency=levels_of(levels),
        plans=tuple(args.plans.split(",")) if args.plans else default_plans(),
        rounds=args.rounds,
        in_a_row=args.in_a_row,
        replays=min(args.replays, 20) if cpu else args.replays,
        minutes=args.minutes,
        kv=args.kv,
        traced=tuple(args.trace.split(",")) if args.trace else (),
    )


def levels_of(text: str) -> tuple[int, ...]:
    """The numbers of ``1,4,8``. Raises :class:`UsageError`."""
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise UsageError(f"--concurrency is {text!r}: it takes integers, joined by commas") from None


def show(record: OverlapRecord) -> None:
    """Tables and sentences of a record."""
    from dsv4lab.tuning.overlap import tables
    from dsv4lab.tuning.overlap.reading import read

    views = read(record)
    say(clean(tables.title(record)), style="lab.title")
    say(clean(tables.gate_sentence(record)) + "\n")
    if views:
        title = "Best plan against the faster serial program: TPOT in us, tokens/s per GPU"
        clean_table(tables.short_result_table(views), title)
        title = "Serial programs (side products as one: off; apart: unfused) and plan auto"
        clean_table(tables.control_table(views), title)
        clean_table(tables.hidden_table(views), "Side ops alone, hidden time, byte floor", left=2)
    if record.profiles:
        clean_table(tables.profile_table(record.profiles), "Profile of a step", left=3)
        for text in tables.profile_notes(record.profiles):
            say(clean(text))
    for text in record.left_out:
        say(clean(f"left out: {text}"))


def clean_table(table: Table, title: str, left: int = 1) -> None:
    """Print a table whose cells may come from a file."""
    columns, rows = table
    text_table(columns, [[clean(cell) for cell in row] for row in rows], title=title, left=left)


def result_json(record: OverlapRecord) -> list[dict[str, Any]]:
    """What follows from the record, level by level."""
    from dsv4lab.tuning.overlap.reading import PlanView, read

    def told(view: PlanView | None) -> dict[str, Any] | None:
        if view is None:
            return None
        side = {"side_us": view.times.side_us, "saved_us": view.saved_us, "hidden": view.hidden}
        against = {"vs_control": view.delta.to_json(), "vs_off": view.delta_off.to_json()}
        return {"plan": view.plan, "us": view.us, **against, **side}

    return [
        {
            "concurrency_level": view.concurrency,
            "control": told(view.control),
            "best": told(view.best),
            "auto": told(view.auto),
            "floor_us": view.floor_us,
            "tokens_per_s_per_gpu": list(view.tokens_per_s),
        }
        for view in read(record)
    ]
