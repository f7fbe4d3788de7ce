"""Text around an engine that knows token ids only: which tokenizer a model has, prompts in words, where they end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsv4lab.config.presets import PRESETS
from dsv4lab.engine import prompts
from dsv4lab.engine.sampling_params import SamplingParams
from dsv4lab.errors import CheckpointError, RequestError, UsageError
from dsv4lab.text.stream import TextStream
from dsv4lab.text.synthetic import synthetic_tokenizer
from dsv4lab.text.tokenizer import TextTokenizer, load_tokenizer


@dataclass(frozen=True, slots=True)
class Given:
    """A prompt as token ids, and whether it was given as text."""

    tokens: tuple[int, ...]
    text: bool = False


def model_tokenizer(model: str, vocab_size: int) -> TextTokenizer:
    """The tokenizer of a checkpoint directory, or a preset's made-up one.

    Raises :class:`CheckpointError` where there is none, or one with more tokens than the model.
    """
    tokenizer = synthetic_tokenizer(vocab_size) if model in PRESETS else load_tokenizer(Path(model))
    if tokenizer.size > vocab_size:
        raise CheckpointError(
            f"{tokenizer.source} has ids up to {tokenizer.size - 1}, the model's vocabulary is {vocab_size}: "
            "they do not belong together"
        )
    return tokenizer


def given_prompts(values: Iterable[Any], tokenizer: Callable[[], TextTokenizer]) -> list[Given]:
    """One prompt or several, each a text or token ids (arrays and tensors are taken). Raises ``RequestError``."""
    if isinstance(values, str):
        values = [values]
    rows = values.tolist() if hasattr(values, "tolist") else list(values)
    if not any(isinstance(row, str) for row in rows):
        return [Given(tokens) for tokens in prompts.batch(rows)]
    return [given_prompt(row, f"prompt {place}", tokenizer) for place, row in enumerate(rows)]


def given_prompt(row: Any, name: str, tokenizer: Callable[[], TextTokenizer]) -> Given:
    """A prompt, a text or token ids; ``name`` is what errors call it. Raises ``RequestError``."""
    if isinstance(row, str):
        return Given(tuple(tokenizer().encode(row)), text=True)
    if not isinstance(row, Iterable):
        raise RequestError(f"{name} is {row!r}: it takes a text or a sequence of token ids")
    return Given(prompts.plain(row, name))


def ending(params: SamplingParams, tokenizer: TextTokenizer) -> SamplingParams:
    """``params`` that stop at the tokenizer's end token too, unless they ignore it."""
    end = tokenizer.eos_id
    if params.ignore_eos or end is None or end in params.stop_token_ids:
        return params
    return replace(params, stop_token_ids=(*params.stop_token_ids, end))


def stream_for(
    params: SamplingParams, text: bool, tokenizer: Callable[[], TextTokenizer], *, special: bool = False
) -> TextStream | None:
    """What makes text of a request's tokens; None where nobody wants it."""
    return TextStream(tokenizer(), params.stop, special=special) if text or params.stop else None


def per_prompt(sampling: SamplingParams | Sequence[SamplingParams] | None, count: int) -> Sequence[SamplingParams]:
    """The parameters of each of ``count`` prompts: one for all, or one each. Raises ``UsageError``."""
    if sampling is None or isinstance(sampling, SamplingParams):
        return [sampling or SamplingParams()] * count
    if len(sampling) != count:
        raise UsageError(f"sampling has {len(sampling)} entries for {count} prompts: give one for all, or one each")
    return sampling
