"""Text through a client: prompts in words, stop strings, chats, log-probabilities. The worker has no model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4lab.engine.chat import ChatHandle
from dsv4lab.engine.client import EngineClient
from dsv4lab.engine.request import FinishReason, SamplingParams
from dsv4lab.engine.texts import model_tokenizer
from dsv4lab.errors import CheckpointError, RequestError, TimeoutExceededError
from dsv4lab.text.encoding import ChatOptions, encode_chat
from dsv4lab.text.parser import Delta, Kind
from dsv4lab.text.stream import TextStream
from dsv4lab.text.synthetic import write_tokenizer

WAIT_S = 120.0
QUESTION = "What is the weather? 🙂"
MESSAGES = [{"role": "user", "content": QUESTION}]
HOT = SamplingParams(temperature=1.0, seed=5)


def test_a_text_is_its_tokens(client: EngineClient) -> None:
    tokens = client.tokenizer.encode(QUESTION)
    assert client.tokenizer.decode(tokens) == QUESTION
    words, ids = client.generate([QUESTION, tokens], max_new_tokens=20).tokens
    assert words == ids
    mixed = client.generate([QUESTION, tokens, "the queue"], max_new_tokens=20, sampling=HOT)
    assert mixed.tokens[0] == mixed.tokens[1]
    assert mixed.texts is not None
    assert mixed.texts[0] == client.tokenizer.decode(mixed.tokens[0], special=False)
    assert mixed.texts[1] == ""
    assert client.generate(QUESTION, max_new_tokens=3).tokens == [words[:3]]
    assert client.generate(tokens, max_new_tokens=3).texts is None


def test_pieces_are_the_text(client: EngineClient) -> None:
    handle = client.submit(QUESTION, max_new_tokens=60, sampling=HOT)
    pieces = list(handle.pieces())
    assert "".join(pieces) == handle.text == client.tokenizer.decode(handle.tokens, special=False)
    assert len(pieces) > 10
    assert list(handle.pieces()) == pieces


def test_a_stop_string_is_cut_and_ends_the_request_at_its_token(client: EngineClient) -> None:
    whole = client.generate(QUESTION, max_new_tokens=40, sampling=HOT)
    assert whole.texts is not None
    tokens, text = whole.tokens[0], whole.texts[0]
    stream = TextStream(client.tokenizer)
    pieces = [stream.push(token) for token in tokens]
    plain = [piece.isascii() and piece.isprintable() and piece != "" for piece in pieces]
    at = next(n for n in range(8, 39) if plain[n] and plain[n + 1])
    stop = pieces[at][-1] + pieces[at + 1][0]  # over the border of two tokens
    first = text.index(stop)
    used = next(n for n in range(1, 41) if len("".join(pieces[:n])) >= first + len(stop))
    stopping = replace(HOT, stop=(stop, "@@@@"))
    other, cut = client.generate([QUESTION] * 2, max_new_tokens=40, sampling=[HOT, stopping]).tokens
    assert (other, cut) == (tokens, tokens[:used])
    result = client.generate([client.tokenizer.encode(QUESTION)], max_new_tokens=40, sampling=stopping)
    assert result.texts == [text[:first]]
    assert (result.requests[0].finish_reason, result.requests[0].tokens) == (FinishReason.STOP, used)
    handle = client.submit(QUESTION, max_new_tokens=2000, sampling=stopping)
    assert "".join(handle.pieces()) == text[:first]
    assert handle.result(WAIT_S) == tokens[:used]
    client.generate([[30, 31]], max_new_tokens=2)  # the worker has heard of the end by now
    assert client.pool_snapshot().requests == ()


def test_the_end_token_ends_a_text_unless_it_is_ignored(client: EngineClient) -> None:
    handle = client.submit(QUESTION, max_new_tokens=4)
    handle.result(WAIT_S)
    assert client.tokenizer.eos_id in handle.replay().sampling.stop_token_ids
    handle = client.submit(QUESTION, max_new_tokens=4, sampling=SamplingParams(ignore_eos=True))
    handle.result(WAIT_S)
    assert handle.replay().sampling.stop_token_ids == ()
    handle = client.submit([30, 31], max_new_tokens=4)
    handle.result(WAIT_S)
    assert handle.replay().sampling.stop_token_ids == ()


@pytest.mark.parametrize("options", [ChatOptions(), ChatOptions(thinking=False), ChatOptions(effort="max")])
def test_a_chat_streams_the_turn_that_it_gives(client: EngineClient, options: ChatOptions) -> None:
    deltas: list[Delta] = []
    found = client.chat(MESSAGES, options=options, max_new_tokens=40, sampling=HOT, on_delta=deltas.append)
    again = client.chat(MESSAGES, options=options, max_new_tokens=40, sampling=HOT)
    assert (found.turn, found.tokens) == (again.turn, again.tokens)
    for kind, text in ((Kind.REASONING, found.turn.reasoning), (Kind.CONTENT, found.turn.content)):
        assert "".join(d.text for d in deltas if d.kind is kind) == text
    assert bool(found.turn.reasoning) == options.thinks
    assert found.text == client.tokenizer.decode(found.tokens)
    prompt = encode_chat(MESSAGES, None, options)
    assert found.prompt_tokens == len(client.tokenizer.encode_prompt(prompt))
    assert found.request.tokens == len(found.tokens) <= 40


def test_a_chat_that_is_late_is_given_up() -> None:
    class Endless:
        """A request whose text never ends."""

        def pieces(self) -> Iterator[str]:
            while True:
                yield "word "

        def result(self, timeout_s: float | None) -> list[int]:
            raise TimeoutExceededError(f"not within {timeout_s}")

    handle = ChatHandle(Endless(), thinking=False, calling=False)  # type: ignore[arg-type]
    seen: list[Delta] = []
    with pytest.raises(TimeoutExceededError, match=r"not within 0\.0"):
        handle.follow(seen.append, 0.0)
    assert seen == [Delta(Kind.CONTENT, "word ")]


def test_what_a_chat_says_wrong_is_named(client: EngineClient) -> None:
    with pytest.raises(RequestError, match=r"messages\[0\].role is 'robot'"):
        client.chat([{"role": "robot", "content": "x"}])
    with pytest.raises(RequestError, match=r"tools\[0\].type"):
        client.chat(MESSAGES, tools=[{"type": "web"}])


def test_logprobs_in_results_and_handles(client: EngineClient) -> None:
    asked = client.generate([[30, 31], [40]], max_new_tokens=5, sampling=[SamplingParams(logprobs=2), HOT])
    found = asked.requests[0].logprobs
    assert [entry.token for entry in found] == asked.tokens[0]
    assert all(entry.top[0] == (entry.token, entry.logprob) for entry in found)
    assert asked.requests[1].logprobs == ()
    handle = client.submit([30, 31], max_new_tokens=5, sampling=SamplingParams(logprobs=2))
    handle.result(WAIT_S)
    assert tuple(handle.logprobs) == found


def test_a_restart_goes_on_with_text_and_logprobs(client: EngineClient) -> None:
    params = replace(HOT, logprobs=1, repetition_penalty=1.3, stop=("@@@@",))
    whole = client.generate([QUESTION], max_new_tokens=300, sampling=params)
    handle = client.submit(QUESTION, max_new_tokens=300, sampling=params)
    pieces = handle.pieces()
    head = next(pieces)
    client.restart()
    assert head + "".join(pieces) == handle.text
    assert whole.texts == [handle.text]
    assert handle.result(WAIT_S) == whole.tokens[0]
    assert tuple(handle.logprobs) == whole.requests[0].logprobs


def test_a_checkpoint_without_or_with_anothers_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="takes token ids and no text"):
        model_tokenizer(str(tmp_path), 512)
    write_tokenizer(tmp_path, 512)
    assert model_tokenizer(str(tmp_path), 600).size == 512
    with pytest.raises(CheckpointError, match="has ids up to 511, the model's vocabulary is 511"):
        model_tokenizer(str(tmp_path), 511)
