"""``dsv4lab checkpoint``: write one with random weights, or say what one holds and whether it loads."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from dsv4lab.cli.base import Command, add_common_options
from dsv4lab.cli.output import console, emit_json, progress, table
from dsv4lab.cli.safe import clip
from dsv4lab.cli.sizes import size
from dsv4lab.config.presets import PRESETS, preset
from dsv4lab.errors import CheckpointError
from dsv4lab.units import bytes_text

if TYPE_CHECKING:
    from dsv4lab.checkpoint.inspect import Inspection

FORMATS = ("deepseek", "hf")
WEIGHTS = ("float32", "bfloat16", "fp8", "fp4")
DEFAULT_WEIGHTS = {"deepseek": "fp4", "hf": "float32"}


class CheckpointCommand(Command):
    """Subcommands of ``dsv4lab checkpoint``."""

    name = "checkpoint"
    help = "write a checkpoint of random weights, or inspect one"
    examples = (
        "dsv4lab checkpoint synth --preset tiny --format deepseek DIR",
        "dsv4lab checkpoint synth --preset tiny --format hf --weights bfloat16 --max-shard-size 500KB DIR",
        "dsv4lab checkpoint synth --preset tiny --format deepseek --draft dspark --tokenizer DIR",
        "dsv4lab checkpoint inspect DIR --json",
    )

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Add the actions."""
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        text = "write a checkpoint of random weights, config.json included"
        synth = actions.add_parser("synth", help=text, description=text, allow_abbrev=False)
        add_common_options(synth, nested=True)
        _add_synth(synth)
        text = "what a checkpoint holds, by part and number format, and whether it loads"
        inspect = actions.add_parser("inspect", help=text, description=text, allow_abbrev=False)
        add_common_options(inspect, nested=True)
        inspect.add_argument("directory", type=Path, metavar="DIR", help="the checkpoint's folder")

    def run(self, args: argparse.Namespace) -> int:
        """Carry out the action; the keys of ``--json`` are in the README."""
        return _synth(args) if args.action == "synth" else _inspect(args)


def _add_synth(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="where to; no checkpoint may be there yet")
    parser.add_argument("--preset", default="tiny", help=f"model: {', '.join(PRESETS)} (default: tiny)")
    parser.add_argument(
        "--format", choices=FORMATS, default="deepseek", help="names and config.json as released, or as transformers'"
    )
    parser.add_argument(
        "--weights",
        choices=WEIGHTS,
        help="fp4: e4m3 with scales of 128 by 128, experts in e2m1 with scales of 1 by 32, as released; fp8: experts "
        "in e4m3 too; float32: what --preset itself runs with (default: fp4 for deepseek, float32 for hf)",
    )
    parser.add_argument("--draft", choices=("mtp", "dspark"), help="draft layers to add (default: none)")
    parser.add_argument("--tokenizer", action="store_true", help="add a made-up tokenizer, so that text can be tried")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (default: 0)")
    parser.add_argument(
        "--max-shard-size", type=size("--max-shard-size"), default=4 * 2**30, metavar="SIZE", help="default: 4GiB"
    )


def _synth(args: argparse.Namespace) -> int:
    from dsv4lab.checkpoint.stored import stored_bytes
    from dsv4lab.checkpoint.synth import synthetic_tensors, write_synthetic
    from dsv4lab.text.synthetic import write_tokenizer

    config, weights = preset(args.preset), args.weights or DEFAULT_WEIGHTS[args.format]
    tensors = synthetic_tensors(config, args.draft)
    _check_disk(args.directory, stored_bytes(tensors, weights))
    with progress(len(tensors), "writing") as advance:
        total = write_synthetic(
            args.directory,
            config,
            seed=args.seed,
            layout=args.format,
            weights=weights,
            draft=args.draft,
            max_shard_bytes=args.max_shard_size,
            progress=lambda _done, _total: advance(),
        )
    tokens = write_tokenizer(args.directory, config.vocab_size) if args.tokenizer else None
    files = len(list(args.directory.glob("*.safetensors")))
    found = {"directory": str(args.directory), "model": config.name, "format": args.format, "weights": weights}
    found |= {"draft": args.draft, "seed": args.seed, "tensors": len(tensors), "files": files, "bytes": total}
    found |= {"tokenizer": tokens}
    if args.json:
        emit_json(found)
    else:
        out = f"{config.name} in {weights}, {len(tensors)} weights in {files} files, {bytes_text(total)}"
        out += "" if tokens is None else f", a tokenizer of {tokens}"
        console().print(f"[lab.good]written[/] to {clip(str(args.directory), 200)}: {out}")
    return 0


def _check_disk(directory: Path, need: int) -> None:
    place = next((p for p in (directory, *directory.absolute().parents) if p.exists()), None)
    free = shutil.disk_usage(place).free if place is not None else need
    if need > free:
        raise CheckpointError(f"{directory}: the weights take {bytes_text(need)}, {bytes_text(free)} are free there")


def _inspect(args: argparse.Namespace) -> int:
    from dsv4lab.checkpoint.inspect import inspect_checkpoint

    found = inspect_checkpoint(args.directory)
    if args.json:
        emit_json(found.to_json())
    else:
        _print(found)
    if found.problem is not None:
        raise CheckpointError(found.problem)
    return 0


def _print(found: Inspection) -> None:
    c, out = found.config, console()
    kinds = [c.kind(layer).label for layer in range(c.num_hidden_layers)]
    layers = ", ".join(f"{kinds.count(kind)} {kind.upper()}" for kind in ("swa", "csa", "hca"))
    out.print(f"[lab.title]{clip(c.name, 80)}[/]: {c.num_hidden_layers} layers ({layers}), hidden {c.hidden_size}")
    out.print(
        f"{c.num_attention_heads} heads of {c.head_dim}, {c.n_routed_experts} experts of {c.moe_intermediate_size} "
        f"({c.num_experts_per_tok} per token, {c.num_hash_layers} hash layers), vocabulary {c.vocab_size}, "
        f"index top-{c.index_topk}, context {c.max_position_embeddings}\n"
    )
    rows = [
        [group.part, clip(group.dtype, 20), f"{group.tensors:,}", bytes_text(group.bytes)] for group in found.groups
    ]
    total = sum(group.tensors for group in found.groups)
    table(["part", "dtype", "tensors", "size"], [*rows, ["all", "", f"{total:,}", bytes_text(found.bytes)]], left=2)
    out.print(f"experts in {clip(found.weights, 20)}, {found.files} files, draft layers: {found.draft or 'none'}")
    if found.problem is None:
        out.print("[lab.good]loads[/]: every tensor has the name, shape and dtype that the configuration asks for")
