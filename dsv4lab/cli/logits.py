"""``dsv4lab logits``: the logits of given tokens, in one forward or in chunks."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dsv4lab.cli.base import Command
from dsv4lab.cli.model_args import PAGE, add_pool_arguments, given_pool_fields, integers
from dsv4lab.cli.output import emit_json, progress, table
from dsv4lab.config.engine import DTYPES
from dsv4lab.config.presets import PRESETS
from dsv4lab.errors import RequestError, UsageError

if TYPE_CHECKING:
    import torch

    from dsv4lab.config.model import ModelConfig
    from dsv4lab.engine.runner import Runner

TOP = 5


class LogitsCommand(Command):
    """One request through the runner, without engine or worker."""

    name = "logits"
    help = "print the logits of given tokens"
    examples = (
        "dsv4lab logits --preset tiny --tokens 5,9,12",
        "dsv4lab logits --checkpoint DIR --tokens 5,9,12 --chunks 2,1 --dtype float32 --json",
    )

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        model = parser.add_mutually_exclusive_group(required=True)
        model.add_argument("--preset", help=f"model with synthetic weights: {', '.join(PRESETS)}")
        model.add_argument("--checkpoint", type=Path, metavar="DIR", help="a checkpoint's folder")
        parser.add_argument("--seed", type=int, default=0, help="seed of synthetic weights (default: 0)")
        parser.add_argument("--dtype", choices=DTYPES, default="float32", help="number format (default: float32)")
        add_pool_arguments(parser)
        parser.add_argument("--tokens", type=token_ids, required=True, metavar="5,9,12", help="token ids")
        parser.add_argument(
            "--chunks",
            type=integers("--chunks"),
            metavar="2,1",
            help="forward sizes, summing to the token count; a later 1 is a decode step (default: one forward)",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Compute and print."""
        tokens: tuple[int, ...] = args.tokens
        chunks: tuple[int, ...] = args.chunks or (len(tokens),)
        if sum(chunks) != len(tokens):
            raise UsageError(f"--chunks: {','.join(map(str, chunks))} sum to {sum(chunks)}, --tokens has {len(tokens)}")
        with progress(None, "loading the model"):
            runner = _load(args, len(tokens), max(chunks))
        try:
            with progress(len(chunks), "computing") as advance:
                rows = []
                for logits in _logits(runner, tokens, chunks):
                    rows += logits.tolist()
                    advance()
        finally:
            runner.close()
        if args.json:
            emit_json({"logits": rows})
        else:
            _print(tokens, rows)
        return 0


def token_ids(text: str) -> tuple[int, ...]:
    """An argparse type: token ids, integers of at least 0 separated by commas."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise UsageError(f"--tokens: got {text!r}, it takes token ids separated by commas")
    return tuple(int(word) for word in words)


def _load(args: argparse.Namespace, tokens: int, largest: int) -> Runner:
    from dsv4lab.checkpoint.source import model_config, model_weights
    from dsv4lab.engine.api import engine_config
    from dsv4lab.engine.placement import DTYPES as TORCH_DTYPES
    from dsv4lab.engine.runner import Runner
    from dsv4lab.engine.warm import warm_cpu_loops

    warm_cpu_loops()
    name = args.preset if args.checkpoint is None else str(args.checkpoint)
    model = model_config(name)
    check_tokens(model, args.tokens)
    config = engine_config(
        name,
        plan="off",
        dtype=args.dtype,
        seed=args.seed,
        streams="serial",
        max_running_requests=1,
        max_total_tokens=-(-tokens // PAGE) * PAGE,
        chunked_prefill_size=largest,
        **given_pool_fields(args),
    )
    return Runner(model, model_weights(name, model, args.seed, TORCH_DTYPES[args.dtype]), config)


def check_tokens(model: ModelConfig, tokens: Sequence[int]) -> None:
    """Raise :class:`RequestError` for a token outside the vocabulary."""
    for at, token in enumerate(tokens):
        if token >= model.vocab_size:
            raise RequestError(
                f"--tokens: token {token} at place {at} is outside the vocabulary, 0..{model.vocab_size - 1}"
            )


def _logits(runner: Runner, tokens: tuple[int, ...], chunks: tuple[int, ...]) -> Iterator[torch.Tensor]:
    """Logits chunk by chunk, float32 ``[chunk, vocab]``."""
    from dsv4lab.kv.metadata import BatchItem

    pages = tuple(range(1, runner.geometry.pages))
    start = 0
    runner.reset_slot(1)
    for size in chunks:
        item = BatchItem(1, pages, start, tokens[start : start + size])
        yield runner.all_logits([item], "decode" if size == 1 and start else "prefill")
        start += size


def _print(tokens: tuple[int, ...], rows: list[list[float]]) -> None:
    """The ``TOP`` likeliest next tokens after each position."""
    cells = []
    for at, (token, row) in enumerate(zip(tokens, rows, strict=True)):
        best = sorted(range(len(row)), key=lambda i, row=row: -row[i])[:TOP]  # type: ignore[misc]
        cells.append([str(at), str(token), *(f"{i}: {row[i]:.3f}" for i in best)])
    table(["position", "token", *(f"top {i + 1}" for i in range(TOP))], cells, left=0)
