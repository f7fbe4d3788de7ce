"""Tokenizer files, special tokens told from text, and text that grows with its tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from dsv4lab.errors import CheckpointError, RequestError, UsageError
from dsv4lab.text.encoding import encode_chat
from dsv4lab.text.prompt import Part, Prompt
from dsv4lab.text.special import BOS, EOS, SPECIAL, THINK, USER
from dsv4lab.text.stream import TextStream
from dsv4lab.text.synthetic import SMALLEST, synthetic_tokenizer, tokenizer_json, write_tokenizer
from dsv4lab.text.tokenizer import TextTokenizer, load_tokenizer

TOKENIZER = synthetic_tokenizer(512)
FAMILY = "👩‍👩‍👧‍👦"
texts = st.text(max_size=30) | st.lists(
    st.sampled_from(["the ", "é", "日本", "🙂", FAMILY, "\n\n", "</", *SPECIAL]), max_size=8
).map("".join)
strings = st.text(st.sampled_from("abc"), max_size=14)
stops = st.lists(st.text(st.sampled_from("abc"), min_size=1, max_size=4), min_size=1, max_size=3)


def test_ids_are_those_of_the_file() -> None:
    data = tokenizer_json(512)
    ids = data["model"]["vocab"] | {entry["content"]: entry["id"] for entry in data["added_tokens"]}
    assert sorted(ids.values()) == list(range(512))
    assert {token: TOKENIZER.token_id(token) for token in ids} == ids
    assert (TOKENIZER.bos_id, TOKENIZER.eos_id, TOKENIZER.size) == (0, 1, 512)
    assert {0, 1} < TOKENIZER.special_ids
    assert TOKENIZER.token_id(THINK) not in TOKENIZER.special_ids


def test_the_synthetic_one_is_the_same_each_time_and_has_a_least_size() -> None:
    assert tokenizer_json(300) == tokenizer_json(300)
    assert synthetic_tokenizer(SMALLEST).size == SMALLEST
    assert len(TOKENIZER.encode("the streams wait for the queue")) < 20
    with pytest.raises(UsageError, match=f"takes {SMALLEST} or more"):
        tokenizer_json(SMALLEST - 1)


@given(texts)
def test_there_and_back(text: str) -> None:
    plain = TOKENIZER.encode_plain(text)
    assert TOKENIZER.decode(plain) == text
    assert not any(token in plain for token in map(TOKENIZER.token_id, SPECIAL))
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(texts, texts)
def test_a_prompt_equals_hugging_faces_where_no_text_spells_a_special_token(first: str, second: str) -> None:
    for token in SPECIAL:
        first, second = first.replace(token, ""), second.replace(token, "")
    if any(token in first or token in second for token in SPECIAL):
        return
    prompt = encode_chat([{"role": "system", "content": first}, {"role": "user", "content": second}])
    theirs = Tokenizer.from_str(json.dumps(tokenizer_json(512)))
    assert TOKENIZER.encode_prompt(prompt) == theirs.encode(prompt.text, add_special_tokens=False).ids


@given(texts, texts)
def test_token_ids_of_a_prompt_are_the_makers(first: str, second: str) -> None:
    recipe = pytest.importorskip("deepseek_recipe", reason="deepseek-recipe, the maker's encoder, is not installed")
    theirs = recipe.DeepseekV4Encoding().with_tokenizer(recipe.Tokenizer.from_str(json.dumps(tokenizer_json(512))))
    conversation = recipe.Conversation(
        [recipe.SystemMessage(first), recipe.UserMessage(second)], thinking_mode=True, reasoning_effort="low"
    )
    prompt = encode_chat([{"role": "system", "content": first}, {"role": "user", "content": second}])
    assert TOKENIZER.encode_prompt(prompt) == theirs.encode(conversation)


def test_what_a_user_spells_is_text_and_what_the_format_has_is_special() -> None:
    prompt = Prompt((Part(BOS, True), Part(USER, True), Part(f"{EOS}{USER}"), Part(THINK, True)))
    ids = TOKENIZER.encode_prompt(prompt)
    assert [ids[0], ids[1], ids[-1]] == [TOKENIZER.token_id(t) for t in (BOS, USER, THINK)]
    assert not set(ids[2:-1]) & {TOKENIZER.token_id(t) for t in SPECIAL}
    assert TOKENIZER.decode(ids) == prompt.text
    assert TOKENIZER.encode(EOS) == [1]


def test_a_special_token_in_the_models_own_vocabulary_is_hidden_too() -> None:
    data = tokenizer_json(512)
    assert data["model"]["vocab"][EOS] == 1
    data["model"]["ignore_merges"] = True
    found = TextTokenizer(data, {}, "x")
    assert (found.eos_id, found.encode(EOS)) == (1, [1])
    assert 1 not in found.encode_plain(EOS)


def test_files(tmp_path: Path) -> None:
    assert write_tokenizer(tmp_path, 512) == 512
    found = load_tokenizer(tmp_path)
    assert found.encode("Hello 🙂") == TOKENIZER.encode("Hello 🙂")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": THINK}, "bos_token": None}))
    assert load_tokenizer(tmp_path).eos_id == TOKENIZER.token_id(THINK)


def test_ids_that_would_move_are_an_error() -> None:
    data = tokenizer_json(512)
    del data["model"]["vocab"][EOS]
    with pytest.raises(CheckpointError, match="added token '<｜end▁of▁sentence｜>' has id 1 there, and would get"):
        TextTokenizer(data, {}, "x")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, r"no tokenizer.json there, so this checkpoint takes token ids and no text"),
        ("{", "tokenizer.json: not JSON"),
        ("[]", "tokenizer.json: got list, expected an object"),
        ("{}", "tokenizer.json: not a tokenizer that can be read"),
        (json.dumps({**tokenizer_json(300), "decoder": {"type": "Fuse"}}), "its decoder is not byte-level"),
    ],
)
def test_files_that_are_no_tokenizer(tmp_path: Path, content: str | None, text: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=text):
        load_tokenizer(tmp_path)


def test_a_tokenizer_without_the_formats_tokens() -> None:
    data: dict[str, Any] = tokenizer_json(300)
    missing = data["added_tokens"].pop()["content"]
    found = TextTokenizer(data, {}, "other/tokenizer.json")
    with pytest.raises(RequestError, match=f"other/tokenizer.json has no token {missing}"):
        found.encode_prompt(Prompt((Part(missing, True),)))


@given(st.lists(st.integers(0, 600), max_size=40))
@example([0, 225, 160, 3])
def test_streamed_text_is_the_whole_text(tokens: list[int]) -> None:
    for special in (False, True):
        stream = TextStream(TOKENIZER, special=special)
        said = [stream.push(token) for token in tokens] + [stream.finish()]
        assert "".join(said) == stream.text == TOKENIZER.decode(tokens, special=special)


@given(texts)
def test_no_half_characters(text: str) -> None:
    stream = TextStream(TOKENIZER, special=True)
    pieces = [stream.push(token) for byte in text.encode() for token in [_byte_token(byte)]]
    assert stream.finish() == ""
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


def test_half_a_character_at_the_end_is_replaced() -> None:
    stream = TextStream(TOKENIZER)
    assert [stream.push(_byte_token(b)) for b in "🙂".encode()[:3]] == ["", "", ""]
    assert stream.finish() == "\ufffd"


@given(strings, stops, st.lists(st.integers(1, 5), min_size=1, max_size=14))
@example("abcd", ["bc", "abca"], [3])
def test_stop_strings(text: str, stop: list[str], sizes: list[int]) -> None:
    """Against a scan letter by letter, with tokens of every length."""
    end = next((i for i in range(1, len(text) + 1) if any(text[:i].endswith(s) for s in stop)), None)
    cut = text if end is None else text[: end - max(len(s) for s in stop if text[:end].endswith(s))]
    words = Words()
    stream = TextStream(words, stop)  # type: ignore[arg-type]
    told, start, at = "", 0, 0
    for size in [*sizes, *[1] * len(text)]:
        if at < len(text) and stream.stopped is None:
            start, at = at, at + size
            told += stream.push(words.token(text[start:at]))
            assert cut.startswith(told)
    told += stream.finish()
    assert told == stream.text == cut
    assert (stream.stopped is not None) == (end is not None)
    if end is not None:
        assert start < end <= at
        assert stream.push(words.token("zzz")) == stream.finish() == ""


def test_text_is_told_unless_a_stop_string_may_have_begun() -> None:
    words = Words()
    stream = TextStream(words, ["END"])  # type: ignore[arg-type]
    assert [stream.push(words.token(w)) for w in ("a", "bE", "N", "x", "EN")] == ["a", "b", "", "ENx", ""]
    assert stream.finish() == "EN"


class Words:
    """A tokenizer whose tokens are whatever texts it is asked for."""

    special_ids: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self._texts: list[bytes] = []

    def token(self, text: str) -> int:
        self._texts.append(text.encode())
        return len(self._texts) - 1

    def bytes_of(self, token: int) -> bytes:
        return self._texts[token]


def _byte_token(byte: int) -> int:
    return next(t for t in range(2, 258) if TOKENIZER.bytes_of(t) == bytes([byte]))
