"""Parsing what the model writes: the inverse of the encoding, in pieces of any size, and what strays from it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.text.encoding import ChatOptions, encode_chat
from dsv4lab.text.messages import Message, Tool, ToolCall
from dsv4lab.text.parser import Delta, Kind, Turn, TurnParser, parse_turn
from dsv4lab.text.special import ASSISTANT, DSML, EOS, THINK

TOOLS = [Tool("f")]
BLOCK = (
    f'\n\n<{DSML}tool_calls>\n<{DSML}invoke name="f">\n<{DSML}parameter name="a" string="true">x\ny</{DSML}parameter>\n'
    f'<{DSML}parameter name="b" string="false">[1, 2]</{DSML}parameter>\n</{DSML}invoke>\n<{DSML}invoke name="g">\n'
    f"</{DSML}invoke>\n</{DSML}tool_calls>"
)
CALLS = (ToolCall("f", '{"a": "x\\ny", "b": [1, 2]}', "call_0"), ToolCall("g", "{}", "call_1"))

alphabet = st.sampled_from('ab \n\\"<>/é日🙂{},:｜t')
text = st.text(alphabet, max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9**9) | text,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(text, inner, max_size=2),
    max_leaves=4,
)
keys = st.text(st.sampled_from("ab é日_<:"), max_size=4)
calls = st.lists(
    st.tuples(st.text("fg_-", min_size=1, max_size=4), st.dictionaries(keys, values, max_size=3)), max_size=3
)


def turn_of(reasoning: str, content: str, calls: list[tuple[str, dict[str, Any]]]) -> Turn:
    named = ((name, json.dumps(values, ensure_ascii=False)) for name, values in calls)
    return Turn(reasoning, content, tuple(ToolCall(name, text, f"call_{i}") for i, (name, text) in enumerate(named)))


turns = st.builds(turn_of, text, text, calls)
marks = st.sampled_from([*"ab\n<>", THINK, "</think>", EOS, BLOCK, f"<{DSML}", f"</{DSML}parameter>"])


def written(turn: Turn, thinking: bool) -> str:
    """What the model would have written, by our own encoding of the turn as history."""
    options = ChatOptions(thinking=thinking)
    prompt = encode_chat([Message("user", "q"), turn.message(), Message("user", "z")], TOOLS, options).text
    start = ASSISTANT + (THINK if thinking else "</think>")
    answer = prompt.split(start, 1)[1]
    return answer[: answer.index(EOS) + len(EOS)]


def pieces(whole: str, cuts: list[int]) -> list[str]:
    places = sorted({min(c, len(whole)) for c in cuts})
    return [whole[a:b] for a, b in zip([0, *places], [*places, len(whole)], strict=True)]


def told(deltas: list[Delta]) -> dict[tuple[Kind, int], str]:
    out: dict[tuple[Kind, int], str] = {}
    for delta in deltas:
        out[delta.kind, delta.index] = out.get((delta.kind, delta.index), "") + delta.text
    return out


@given(turns, st.booleans(), st.lists(st.integers(0, 300), max_size=40))
def test_parsing_is_the_inverse_of_encoding(turn: Turn, thinking: bool, cuts: list[int]) -> None:
    turn = turn if thinking else Turn("", turn.content, turn.tool_calls)
    whole = written(turn, thinking)
    parser = TurnParser(thinking=thinking)
    deltas = [d for piece in pieces(whole, cuts) for d in parser.feed(piece)] + parser.finish()
    assert parser.turn == turn
    assert parse_turn(whole, thinking=thinking) == turn
    said = told(deltas)
    assert said.get((Kind.REASONING, 0), "") == turn.reasoning
    assert said.get((Kind.CONTENT, 0), "") == turn.content
    for index, call in enumerate(turn.tool_calls):
        assert said[Kind.CALL, index] == call.name
        assert json.loads(said[Kind.ARGUMENTS, index]) == json.loads(call.arguments)


@given(st.lists(marks, max_size=12).map("".join), st.lists(st.integers(0, 900), max_size=30), st.booleans())
def test_pieces_do_not_matter(whole: str, cuts: list[int], thinking: bool) -> None:
    parser = TurnParser(thinking=thinking)
    for piece in pieces(whole, cuts):
        parser.feed(piece)
    parser.finish()
    assert parser.turn == parse_turn(whole, thinking=thinking)


def test_text_is_told_as_soon_as_it_cannot_be_a_mark() -> None:
    parser = TurnParser(thinking=True)
    assert parser.feed("so </thi") == [Delta(Kind.REASONING, "so ")]
    assert parser.feed("s is") == [Delta(Kind.REASONING, "</this is")]
    assert parser.feed("</think>an\n") == [Delta(Kind.CONTENT, "an")]
    assert parser.feed("\n<") == []
    assert parser.feed("b") == [Delta(Kind.CONTENT, "\n\n<b")]
    assert parser.feed(BLOCK[: BLOCK.index("x") + 1]) == [
        Delta(Kind.CALL, "f", 0),
        Delta(Kind.ARGUMENTS, "{", 0),
        Delta(Kind.ARGUMENTS, '"a": "', 0),
        Delta(Kind.ARGUMENTS, "x", 0),
    ]


@pytest.mark.parametrize(
    ("whole", "turn"),
    [
        ("t</think>c" + EOS + "junk", Turn("t", "c")),
        ("no end", Turn("no end")),
        ("t</think>c" + BLOCK + EOS, Turn("t", "c", CALLS)),
        ("t" + BLOCK, Turn("t", "", CALLS)),
        ("t</think>c" + BLOCK[2:], Turn("t", "c", CALLS)),
        ("t</think>c\n\n" + BLOCK, Turn("t", "c\n\n", CALLS)),
        ("t</think>" + BLOCK[2:].replace("\n<", "<").replace(">\n", ">"), Turn("t", "", CALLS)),
        ("t</think>c" + BLOCK + "after", Turn("t", "c", CALLS, "there is text after the tool calls")),
        (
            "t</think>" + BLOCK[: BLOCK.index("[1") + 2],
            Turn("t", "", (ToolCall("f", '{"a": "x\\ny", "b": [1', "call_0"),),
                 "the text ends inside an argument of a tool call"),
        ),
        (
            "t</think>" + BLOCK.replace('string="false"', 'string="maybe"').split("</｜DSML｜invoke")[0],
            Turn("t", "", (ToolCall("f", '{"a": "x\\ny"', "call_0"),), "the text ends inside a tool call"),
        ),
        (
            "t</think>" + BLOCK.replace(f"<{DSML}invoke name=\"g\">", "hm"),
            Turn("t", "", CALLS[:1], "there is text that is no part of a block of tool calls"),
        ),
        ("t</think>a</think>b", Turn("t", "a</think>b")),
    ],
)  # fmt: skip
def test_what_strays_from_the_format(whole: str, turn: Turn) -> None:
    assert parse_turn(whole, thinking=True) == turn


def test_a_block_that_the_prompt_opened() -> None:
    whole = BLOCK.split(">\n", 1)[1]
    assert parse_turn(whole, thinking=False, calling=True) == Turn("", "", CALLS)


@pytest.mark.parametrize("case", [("think</think>hello", True), ("t</think>c" + BLOCK, True), ("c" + BLOCK, False)])
def test_as_the_makers_parser(case: tuple[str, bool]) -> None:
    recipe = pytest.importorskip("deepseek_recipe", reason="deepseek-recipe, the maker's parser, is not installed")
    whole, thinking = case
    assert makers(recipe, whole, thinking) == parse_turn(whole, thinking=thinking)


def makers(recipe: Any, whole: str, thinking: bool) -> Turn:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    body = {"model": "DeepSeek-V4-Pro", "messages": [{"role": "user", "content": "q"}], "tools": tools}
    converted = recipe.ChatCompletionRequest(body).convert(recipe.ConversionOptions())
    generator = recipe.ChatCompletionRequest.chunk_generator(converted, "id", "m")
    stage = recipe.ThinkingInitialStage.ReasoningStart if thinking else None
    processor = recipe.StreamProcessor(generator, recipe.ParsingOptions(thinking_initial_stage=stage))
    chunks = processor.push(recipe.InferenceChunk.ready())
    for letter in whole:
        chunks += processor.push(recipe.InferenceChunk.text(letter, 1))
    chunks += processor.push(recipe.InferenceChunk.finish(recipe.InferenceFinishReason.Stop))
    response = recipe.ChatCompletionResponse("id", "m", 0, 0, 0)
    for chunk in [*chunks, *processor.finish()]:
        response.accumulate(chunk)
    message = json.loads(response.to_json())["choices"][0]["message"]
    calls = [call["function"] for call in message.get("tool_calls") or []]
    return Turn(
        message.get("reasoning_content") or "",
        message.get("content") or "",
        tuple(ToolCall(call["name"], call["arguments"], f"call_{i}") for i, call in enumerate(calls)),
    )
