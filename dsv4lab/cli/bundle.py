"""``dsv4lab bundle``: selfcheck, probe and a short bench of overlap plans in one file that others load and compare."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4lab.cli.base import Command, add_common_options
from dsv4lab.cli.bench_overlap import SHAPES, clean_table, levels_of, result_json, show
from dsv4lab.cli.model_args import positive
from dsv4lab.cli.output import emit_json, note, progress, say
from dsv4lab.cli.probe import print_probe
from dsv4lab.cli.safe import clean, clip, cut
from dsv4lab.errors import UsageError
from dsv4lab.units import seconds_text

if TYPE_CHECKING:
    from dsv4lab.tuning.bundle.bundle import Bundle
    from dsv4lab.tuning.bundle.compare import BundleComparison
    from dsv4lab.tuning.bundle.make import Recipe

_TEXT, _LINE = 60, 300
_UNSAFE = str.maketrans(dict.fromkeys(" /\\()[]{}:;,'\"*?<>|&", "-"))


class BundleCommand(Command):
    """Measure this machine into one file, or read such files."""

    name = "bundle"
    help = "selfcheck, probe and a short bench of overlap plans on this machine, in one file to send and compare"
    examples = (
        "dsv4lab bundle -o mi300x.zip",
        "dsv4lab bundle --device cpu --concurrency 1 --rounds 5",
        "dsv4lab bundle show mi300x.zip",
        "dsv4lab bundle compare h200.zip mi300x.zip --json",
    )

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """What to measure, and the actions ``show`` and ``compare``."""
        _add_recipe(parser)
        actions = parser.add_subparsers(dest="action", metavar="[ACTION]", help="without one: measure this machine")
        shown = actions.add_parser("show", help="what is in a bundle", allow_abbrev=False)
        shown.add_argument("bundle", type=Path, metavar="FILE")
        compared = actions.add_parser("compare", help="two bundles side by side", allow_abbrev=False)
        compared.add_argument("a", type=Path, metavar="A")
        compared.add_argument("b", type=Path, metavar="B")
        for nested in (shown, compared):
            add_common_options(nested, nested=True)

    def run(self, args: argparse.Namespace) -> int:
        """Measure, show or compare: 0, 1 if a part failed, a kernel is wrong or a plan gave other bits.

        JSON of a bundle: ``path``, ``manifest``, ``passes``, ``selfcheck``, ``probe``, ``overlap``, ``result``,
        ``traces`` (docs/bundles.md).
        """
        from dsv4lab.tuning.bundle.bundle import load_bundle

        if args.action == "compare":
            return _compare(load_bundle(args.a), load_bundle(args.b), as_json=args.json)
        bundle = load_bundle(args.bundle if args.action == "show" else _make(args))
        if args.json:
            emit_json(bundle_json(bundle))
        else:
            _show(bundle)
        return 0 if bundle.passes else 1


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="default: dsv4lab-DEVICE.zip")
    parser.add_argument(
        "--device", choices=("auto", "cuda", "hip", "cpu"), default="auto", help="default: the GPU if there is one"
    )
    parser.add_argument("--kernels", default="", metavar="A,B", help="kernels to check (default: all)")
    parser.add_argument("--shape", choices=SHAPES, help="to bench (default: flash-tp8, on the CPU demo)")
    parser.add_argument("--layers", type=positive("--layers"), default=6, metavar="N", help="of it (default: 6)")
    parser.add_argument("--concurrency", metavar="N,N", help="requests of a step (default: 1,4,8, on the CPU 1,4)")
    parser.add_argument(
        "--rounds", type=positive("--rounds"), metavar="N", help="in which plans take turns (default: 15, on the CPU 7)"
    )
    parser.add_argument("--minutes", type=float, default=4.0, help="that the bench may take (default: 4)")


def _make(args: argparse.Namespace) -> Path:
    """Measure into a file; its path."""
    from dsv4lab.tuning.bundle.make import make_bundle

    recipe = _recipe(args)
    path: Path = args.out if args.out is not None else Path(_default_name(recipe))
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"-o {path}: it takes a file in a folder that exists")
    parts: list[str] = []
    with progress(3, "measuring") as advance:

        def tell(part: str, text: str, left_s: float) -> None:
            if part not in parts:
                parts.append(part)
                advance(len(parts) > 1)
                note(f"[{len(parts)}/3] {part}: about {seconds_text(left_s)} left for all of it")
            advance(0, f"{part}: {clip(text, _TEXT)}, about {seconds_text(left_s)} left")

        manifest = make_bundle(recipe, path, tell)
    for part, text in manifest.failures.items():
        note(f"{part} failed: {clip(text, 300)}")
    if recipe.device == "cpu":
        note("no GPU: kernels, probe and plans are those of the CPU device")
    note(f"written to {path}")
    return path


def _recipe(args: argparse.Namespace) -> Recipe:
    from dsv4lab.engine.devices import choose_device
    from dsv4lab.tuning.bundle.make import Recipe
    from dsv4lab.tuning.overlap.settings import Settings

    device = choose_device(args.device).device
    cpu = device == "cpu"
    bench = Settings(
        shape=args.shape or ("demo" if cpu else "flash-tp8"),
        device=device,
        layers=args.layers,
        isl=512 if cpu else 8192,
        concurrency=levels_of(args.concurrency or ("1,4" if cpu else "1,4,8")),
        rounds=args.rounds or (7 if cpu else 15),
        in_a_row=2 if cpu else 8,
        replays=20 if cpu else 200,
        minutes=args.minutes,
    )
    return Recipe(bench, tuple(name for name in args.kernels.split(",") if name))


def _default_name(recipe: Recipe) -> str:
    """``dsv4lab-nvidia-h200.zip``."""
    if recipe.device == "cpu":
        return "dsv4lab-cpu.zip"
    import torch

    return f"dsv4lab-{torch.cuda.get_device_name().lower().translate(_UNSAFE)}.zip"


def bundle_json(bundle: Bundle) -> dict[str, Any]:
    """All of a bundle, traces as the sizes of their timelines."""
    return {
        "path": str(bundle.path),
        "manifest": bundle.manifest.to_json(),
        "passes": bundle.passes,
        "selfcheck": None if bundle.selfcheck is None else [row.to_json() for row in bundle.selfcheck],
        "probe": None if bundle.probe is None else bundle.probe.to_json(),
        "overlap": None if bundle.overlap is None else bundle.overlap.to_json(),
        "result": None if bundle.overlap is None else result_json(bundle.overlap),
        "traces": {
            name: {"rows": len(trace), "streams": list(trace.streams), "wall_ns": trace.stream_busy().wall_ns}
            for name, trace in bundle.traces.items()
        },
    }


def _show(bundle: Bundle) -> None:
    from dsv4lab.tuning.bundle.tables import bad_lines, check_table

    manifest = bundle.manifest
    say(clean(f"{manifest.device}, {manifest.created}, dsv4lab {manifest.dsv4lab}"), style="lab.title")
    names = ("driver", "cuda", "hip", "torch", "triton", "python")
    said = [f"{name} {manifest.machine[name]}" for name in names if manifest.machine.get(name) is not None]
    say(clean(", ".join(said)) + "\n")
    for part, text in manifest.failures.items():
        say(clean(f"{part} failed: {text}"), style="lab.bad")
    if bundle.selfcheck is not None:
        clean_table(check_table(bundle.selfcheck), "Kernels against the references")
        for text in bad_lines(bundle.selfcheck):
            say(cut(text, _LINE), style="lab.bad")
    if bundle.probe is not None:
        print_probe(bundle.probe.to_json())
    if bundle.overlap is not None:
        show(bundle.overlap)
    for name, trace in bundle.traces.items():
        count = len(trace.streams)
        say(clean(f"{name}: {len(trace)} rows on {count} stream{'s' if count > 1 else ''}"))


def _compare(a: Bundle, b: Bundle, *, as_json: bool) -> int:
    found = a.compare(b)
    if as_json:
        emit_json(found.to_json())
    else:
        _show_comparison(found)
    return 0


def _show_comparison(found: BundleComparison) -> None:
    from dsv4lab.tuning.bundle import tables

    say(clean(f"A: {found.devices[0]}, B: {found.devices[1]}") + "\n", style="lab.title")
    if found.facts:
        clean_table(tables.fact_table(found), "What differs", left=3)
    if (counts := tables.counts_table(found))[1]:
        clean_table(counts, "Kernels that passed differently", left=2)
    else:
        say("Kernels that both checked passed the same number of cases.\n")
    if one_sided := tables.one_sided_text(found):
        say(clean(one_sided) + "\n")
    if found.costs:
        clean_table(tables.cost_table(found), "Probes, in microseconds where nothing else is said")
    if found.levels:
        clean_table(tables.level_table(found), "The faster serial program, and the best plan", left=2)
    if not found.same_load:
        say("The two did not bench the same shape, layers, lengths and formats: times are not comparable.")
