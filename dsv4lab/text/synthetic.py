"""A made-up tokenizer in the form of the released ones: byte-level BPE with few merges, and the special tokens.

It is to models with random weights what those weights are: everything runs as with the real one, and means nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from dsv4lab.errors import UsageError
from dsv4lab.text.byte_level import LETTERS
from dsv4lab.text.special import BOS, DSML, END_THINK, EOS, SPECIAL, THINK
from dsv4lab.text.tokenizer import CONFIG_NAME, FILE_NAME, TextTokenizer

SMALLEST = len(LETTERS) + len(SPECIAL)
"""Tokens that there must be: bytes and special ones."""

MOST_MERGES = 512
_SAMPLE = """\
The engine takes a prompt and gives tokens, one after the other, until the answer ends. A prompt is read in chunks; the
rows of its keys and values go to the pool, a ring for the window and pages for the rest. Then the next token is chosen
from what the model says about all of them, and so on. You are a helpful assistant. What is the weather in the city? I
think that it will rain there for three days, and then the sun will shine again. Please write a short story about a
streaming multiprocessor, in the third person. The user asked for a list of numbers: 1, 2, 3, 10, 100, 2026.
def measure(stream, queue): return {"busy_ns": 12, "name": stream, "queue": queue, "values": [1.5, true, null]}
It does not matter whether the streams share a hardware queue as long as nothing waits. Let me see. However, there was
another way to do the same thing in less time, with more of the work hidden. That is why we look at the time line first.
"""


def tokenizer_json(vocab_size: int) -> dict[str, Any]:
    """The content of a ``tokenizer.json`` with at most ``vocab_size`` tokens, the same on every machine.

    BOS and EOS are 0 and 1 and, as released, in the model's own vocabulary too; bytes and merges follow, then the other
    special tokens. Raises :class:`UsageError` if the vocabulary is too small.
    """
    if vocab_size < SMALLEST:
        raise UsageError(f"vocab_size is {vocab_size}: a tokenizer of this format takes {SMALLEST} or more")
    merges = _merges(min(vocab_size - SMALLEST, MOST_MERGES))
    tokens = [BOS, EOS, *LETTERS.values(), *("".join(pair) for pair in merges)]
    tokens += [token for token in SPECIAL if token not in (BOS, EOS)]
    ids = {token: number for number, token in enumerate(tokens)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(ids[token], token) for token in SPECIAL],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for token, number in ids.items() if number < len(ids) - len(SPECIAL) + 2},
            "merges": [" ".join(pair) for pair in merges],
        },
    }


def tokenizer_config() -> dict[str, Any]:
    """The content of the ``tokenizer_config.json`` beside it."""
    return {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS, "add_bos_token": False}


@lru_cache(maxsize=4)
def synthetic_tokenizer(vocab_size: int) -> TextTokenizer:
    """The tokenizer of a preset with that vocabulary."""
    return TextTokenizer(tokenizer_json(vocab_size), tokenizer_config(), "the synthetic tokenizer")


def write_tokenizer(directory: str | Path, vocab_size: int) -> int:
    """Write both files; the number of tokens."""
    data = tokenizer_json(vocab_size)
    for name, content in ((FILE_NAME, data), (CONFIG_NAME, tokenizer_config())):
        Path(directory, name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return len(data["model"]["vocab"].keys() | {entry["content"] for entry in data["added_tokens"]})


def _added(number: int, token: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": token, **flags, "special": token not in (THINK, END_THINK, DSML)}


@lru_cache(maxsize=4)
def _merges(count: int) -> tuple[tuple[str, str], ...]:
    """The first ``count`` merges of the sample's words: the commonest pair each time, the alphabet breaking ties."""
    words = Counter(_words(_SAMPLE))
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, times in words.items():
            for pair in pairwise(word):
                pairs[pair] += times
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = Counter({_merged(word, best): times for word, times in words.items()})
    return tuple(merges)


def _words(text: str) -> list[tuple[str, ...]]:
    from tokenizers.pre_tokenizers import ByteLevel

    return [tuple(word) for word, _ in ByteLevel(add_prefix_space=False, use_regex=True).pre_tokenize_str(text)]


def _merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for letter in word:
        if out and (out[-1], letter) == pair:
            out[-1] += letter
        else:
            out.append(letter)
    return tuple(out)
