"""A checkpoint's tokenizer: ``tokenizer.json`` through Hugging Face's ``tokenizers``, imported on first use."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4lab.errors import CheckpointError, RequestError
from dsv4lab.text.byte_level import token_bytes
from dsv4lab.text.prompt import Prompt
from dsv4lab.text.special import BOS, EOS, SPECIAL

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE_NAME, CONFIG_NAME = "tokenizer.json", "tokenizer_config.json"


class TextTokenizer:
    """Text to token ids and back. ``data`` is the content of a ``tokenizer.json`` with a byte-level decoder, ``config``
    of a ``tokenizer_config.json``, ``source`` what errors name.

    Raises :class:`CheckpointError` on data that is none, or of another kind.
    """

    def __init__(self, data: Mapping[str, Any], config: Mapping[str, Any], source: str) -> None:
        self.source = source
        self._whole = _make(data, source)
        self._plain = _plain(self._whole, data, source)
        if not _is_byte_level(data.get("decoder")):
            raise CheckpointError(f"{source}: its decoder is not byte-level BPE's, which is the one that is read here")
        vocabulary: dict[str, int] = self._whole.get_vocab(with_added_tokens=True)
        for entry in _added(data):
            if vocabulary.get(entry["content"]) != entry.get("id"):
                raise CheckpointError(
                    f"{source}: added token {entry['content']!r} has id {entry.get('id')} there, and would get "
                    f"{vocabulary.get(entry['content'])}: ids must be without gaps"
                )
        self._ids = vocabulary
        self._bytes: dict[int, bytes] = {}  # of the tokens that were asked for
        named = {name: _named(config, name) for name in ("bos_token", "eos_token", "pad_token")}
        self.bos_id = vocabulary.get(named["bos_token"] or BOS)
        self.eos_id = vocabulary.get(named["eos_token"] or EOS)
        special = {entry["content"] for entry in _added(data) if entry.get("special")}
        tokens = special | {token for token in named.values() if token is not None}
        self.special_ids = frozenset(vocabulary[token] for token in tokens if token in vocabulary)

    def __repr__(self) -> str:
        return f"<TextTokenizer {self.source}: {len(self._ids)} tokens>"

    @property
    def size(self) -> int:
        """One more than the largest token id."""
        return max(self._ids.values(), default=-1) + 1

    def token_id(self, token: str) -> int | None:
        """The id of a token by its spelling, None if it is unknown."""
        return self._ids.get(token)

    def encode(self, text: str) -> list[int]:
        """Token ids of a raw prompt, as Hugging Face's tokenizer has them: what spells a special token is one."""
        ids: list[int] = self._whole.encode(text).ids
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of text in which nothing is special."""
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return ids

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Token ids of a rendered chat: its special tokens by their ids, all else as plain text.

        Raises :class:`RequestError` if the tokenizer lacks one of them, so is not one of these models'.
        """
        ids: list[int] = []
        for text, special in prompt.parts:
            if not special:
                ids += self.encode_plain(text)
            elif (number := self._ids.get(text)) is not None:
                ids.append(number)
            else:
                raise RequestError(f"{self.source} has no token {text}: the chat format of DeepSeek-V4 needs it")
        return ids

    def bytes_of(self, token: int) -> bytes:
        """What a token adds to the text; nothing for ids past the vocabulary."""
        found = self._bytes.get(token)
        if found is None:
            name = self._whole.id_to_token(token)
            found = self._bytes[token] = b"" if name is None else token_bytes(name)
        return found

    def decode(self, tokens: Iterable[int], *, special: bool = True) -> str:
        """The text of tokens; without those that are special, unless ``special``. Broken UTF-8 becomes U+FFFD."""
        shown = (t for t in tokens if special or t not in self.special_ids)
        return b"".join(map(self.bytes_of, shown)).decode("utf-8", "replace")


def load_tokenizer(directory: str | Path) -> TextTokenizer:
    """The tokenizer of the checkpoint in ``directory``. Raises :class:`CheckpointError` where there is none."""
    path = Path(directory) / FILE_NAME
    if not path.is_file():
        raise CheckpointError(
            f"{directory}: no {FILE_NAME} there, so this checkpoint takes token ids and no text; released ones have it"
        )
    config = Path(directory) / CONFIG_NAME
    return TextTokenizer(_read(path), _read(config) if config.is_file() else {}, str(path))


def _read(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from None
    if not isinstance(data, Mapping):
        raise CheckpointError(f"{path}: got {type(data).__name__}, expected an object")
    return data


def _make(data: Mapping[str, Any], source: str) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(json.dumps(data))
    except Exception as error:  # noqa: BLE001 - the library raises plain exceptions
        raise CheckpointError(f"{source}: not a tokenizer that can be read: {error}") from None


def _plain(whole: Tokenizer, data: Mapping[str, Any], source: str) -> Tokenizer:
    """The same tokenizer without added tokens, so that no text becomes one."""
    from tokenizers import Tokenizer

    if getattr(whole.model, "ignore_merges", False):  # then a whole word of the vocabulary is a token, special or not
        return _make(_without_special(data), source)
    plain = Tokenizer(whole.model)
    if whole.normalizer is not None:
        plain.normalizer = whole.normalizer
    if whole.pre_tokenizer is not None:
        plain.pre_tokenizer = whole.pre_tokenizer
    return plain


def _without_special(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data without added tokens, in the model's vocabulary neither."""
    model = data.get("model")
    if not isinstance(model, Mapping) or not isinstance(model.get("vocab"), Mapping):
        return dict(data)
    hidden = {entry["content"] for entry in _added(data) if entry.get("special")} | set(SPECIAL)
    vocabulary = {token: number for token, number in model["vocab"].items() if token not in hidden}
    return {**data, "added_tokens": [], "post_processor": None, "model": {**model, "vocab": vocabulary}}


def _added(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [entry for entry in data.get("added_tokens") or () if isinstance(entry, Mapping) and "content" in entry]


def _is_byte_level(decoder: object) -> bool:
    if not isinstance(decoder, Mapping):
        return False
    if decoder.get("type") == "Sequence":
        inner = decoder.get("decoders") or []
        return len(inner) == 1 and _is_byte_level(inner[0])
    return decoder.get("type") == "ByteLevel"


def _named(config: Mapping[str, Any], name: str) -> str | None:
    """A special token of ``tokenizer_config.json``: text, or an object with it."""
    value = config.get(name)
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None
