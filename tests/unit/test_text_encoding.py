"""The prompt encoding against the maker's own encoder, and against what that recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4lab.errors import RequestError
from dsv4lab.text.effort import OFFICIAL, PREVIEW, detect_profile, effort_prefix
from dsv4lab.text.encoding import ChatOptions, encode_chat
from dsv4lab.text.messages import Message, Tool, ToolCall, messages_of, tools_of
from dsv4lab.text.prompt import Prompt
from dsv4lab.text.special import ABSOLUTE, BEYOND, BOS, DSML, END_THINK, EOS, SPECIAL, TASKS, THINK

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "chat_encoding.json").read_text(encoding="utf-8"))
USER = [{"role": "user", "content": "q"}]

text = st.text(st.sampled_from('ab \n"<>é日🙂{}:/') | st.sampled_from("|"), max_size=6) | st.sampled_from(
    ["<think>", "</think>x", "<｜User｜>", EOS, f"</{DSML}parameter>", f"\n\n<{DSML}tool_calls>"]
)
name = st.text("fgh_-1é ", min_size=1, max_size=5)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9**9) | st.sampled_from([0.5, -2.0, 1e300]) | text,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(text, inner, max_size=2),
    max_leaves=4,
)
arguments = st.dictionaries(text, values, max_size=3).map(lambda v: json.dumps(v, ensure_ascii=False)) | st.just("oops")
users = st.builds(Message, role=st.just("user"), content=text)
turns = st.one_of(
    users,
    st.builds(Message, role=st.sampled_from(["system", "latest_reminder"]), content=text),
    st.builds(
        lambda content, reasoning, calls: Message("assistant", content, reasoning, tuple(calls)),
        text,
        text,
        st.lists(st.builds(ToolCall, name, arguments), max_size=3),
    ),
)
tools = st.lists(st.builds(Tool, name, text, st.dictionaries(name, values, max_size=2)), max_size=2)
options = st.builds(
    ChatOptions,
    thinking=st.booleans(),
    effort=st.sampled_from(["low", "high", "xhigh", "max"]),
    tool_choice=st.sampled_from(["auto", "none"]),
    response_format=st.none() | st.just("json_object") | st.dictionaries(name, values, min_size=1, max_size=2),
)


def answered(messages: list[Message], backwards: bool) -> list[Message]:
    """With ascending ids of the calls, and all results right behind them, first to last or last to first.

    Of other conversations the maker's encoder sorts messages by id; ours leaves them where they are.
    """
    out: list[Message] = []
    fresh = (f"call_{i:03}" for i in range(999))
    for m in messages:
        calls = tuple(replace(c, id=next(fresh)) for c in m.tool_calls)
        out.append(replace(m, tool_calls=calls))
        results = [Message("tool", f"result of {c.id} <", tool_call_id=c.id) for c in calls]
        out += results[::-1] if backwards else results
    return out


def makers(recipe: Any, messages: list[Message], tools: list[Tool], options: ChatOptions) -> Any:
    """The same conversation, rendered by ``deepseek_recipe``."""

    def theirs(m: Message) -> Any:
        if m.role == "assistant":
            calls = [recipe.ToolCall(c.id, c.name, c.arguments) for c in m.tool_calls]
            return recipe.AssistantMessage(m.content, m.reasoning if options.thinks else None, calls or None, m.prefix)
        if m.role == "tool":
            return recipe.ToolMessage(m.content, tool_call_id=m.tool_call_id)
        kinds = {"system": "SystemMessage", "user": "UserMessage", "latest_reminder": "LatestReminderMessage"}
        return getattr(recipe, kinds[m.role])(m.content)

    form = options.response_format
    conversation = recipe.Conversation(
        [theirs(m) for m in messages],
        thinking_mode=options.thinks,
        tools=[recipe.ToolDefinition(t.name, t.description, t.parameters) for t in tools],
        tool_choice=options.tool_choice,
        reasoning_effort=options.effort,
        response_format="json_object" if form == "json_object" else "text",
        response_schema=None if form == "json_object" else form,
    )
    return recipe.DeepseekV4Encoding().render_conversation(conversation)


@settings(max_examples=400)
@given(st.lists(turns, min_size=1, max_size=6), tools, options, st.booleans(), st.booleans())
def test_as_the_makers_encoder(
    messages: list[Message], tools: list[Tool], options: ChatOptions, more: bool, backwards: bool
) -> None:
    recipe = pytest.importorskip("deepseek_recipe", reason="deepseek-recipe, the maker's encoder, is not installed")
    if more and messages[-1].role == "assistant":
        last = messages[-1]
        messages = [*messages[:-1], Message("assistant", last.content, last.reasoning, prefix=True)]
    messages = answered(messages, backwards)
    expected = makers(recipe, messages, tools, options)
    found = encode_chat(messages, tools, options)
    assert found.text == expected.prompt
    assert found.special_ranges == list(expected.special_ranges)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=str)
def test_as_recorded(case: str) -> None:
    """See tests/golden/make_chat_encoding.py."""
    expected = GOLDEN["cases"][case]
    request: dict[str, Any] = expected["request"]
    form = request.get("response_format", {})
    options = ChatOptions(
        effort=request.get("reasoning_effort", "low"),
        tool_choice=request.get("tool_choice", "auto"),
        response_format=form["json_schema"]["schema"] if "json_schema" in form else form.get("type"),
    )
    found = encode_chat(request["messages"], request.get("tools"), options)
    assert found.text == expected["prompt"]
    assert [list(pair) for pair in found.special_ranges] == expected["special"]


def test_the_example_of_the_checkpoints_readme() -> None:
    """The quick start of ``encoding/README.md`` in the released checkpoints."""
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "What is 2+2?"},
    ]
    found = encode_chat(messages, None, ChatOptions(thinking=True)).text
    assert found == f"{BOS}You are a helpful assistant.<｜User｜>What is 2+2?<｜Assistant｜><think>"


@pytest.mark.parametrize(
    ("task", "end"),
    [
        ("query", "<｜User｜>q<｜query｜>"),
        ("authority", "<｜User｜>q<｜authority｜>"),
        ("domain", "<｜User｜>q<｜domain｜>"),
        ("read_url", "<｜User｜>q<｜read_url｜>"),
        ("action", "<｜User｜>q<｜Assistant｜><think><｜action｜>"),
    ],
)
def test_tasks_stand_where_the_checkpoints_readme_has_them(task: str, end: str) -> None:
    assert encode_chat(USER, None, ChatOptions(task=task)).text == BOS + end
    titled = encode_chat([*USER, {"role": "assistant", "content": "a"}], None, ChatOptions(task="title"))
    assert titled.text.endswith(f"a{EOS}<｜title｜>")


@pytest.mark.parametrize(
    ("messages", "options", "reasoning", "calls"),
    [
        (USER, ChatOptions(), True, False),
        (USER, ChatOptions(thinking=False), False, False),
        (USER, ChatOptions(thinking=False, tool_choice="required"), False, True),
        (USER, ChatOptions(task="action"), False, False),
        ([{"role": "user", "content": THINK}], ChatOptions(task="query"), False, False),
        ([*USER, {"role": "assistant", "prefix": True, "reasoning_content": "so"}], ChatOptions(), True, False),
        ([*USER, {"role": "assistant", "prefix": True, "content": "so"}], ChatOptions(), False, False),
    ],
)
def test_a_prompt_tells_what_comes_next(messages: Any, options: ChatOptions, reasoning: bool, calls: bool) -> None:
    prompt = encode_chat(messages, [Tool("f")], options)
    assert (prompt.opens_reasoning, prompt.opens_calls) == (reasoning, calls)


def test_effort_levels_by_profile() -> None:
    official = {e: effort_prefix(e, OFFICIAL) for e in ("minimal", "low", "medium", "high", "xhigh", "max", None)}
    assert official == {
        "minimal": "", "low": "", None: "", "medium": ABSOLUTE, "high": ABSOLUTE, "xhigh": ABSOLUTE, "max": BEYOND,
    }  # fmt: skip
    preview = {e: effort_prefix(e, PREVIEW) for e in ("low", "medium", "high", "xhigh", "max", None)}
    assert preview == {"low": "", "medium": "", "high": "", "xhigh": ABSOLUTE, "max": ABSOLUTE, None: ""}
    prompt = encode_chat(USER, None, ChatOptions(effort="max", profile=PREVIEW)).text
    assert prompt == f"{BOS}{ABSOLUTE}<｜User｜>q<｜Assistant｜><think>"


@pytest.mark.parametrize(
    ("source", "profile"),
    [
        ("REASONING_EFFORT_MAX = (\n'x')\n", PREVIEW),
        ("X = 1\nREASONING_EFFORT_PROMPTS: dict[str, str] = {}\nREASONING_EFFORT_MAX = 1\n", OFFICIAL),
        ("raise SystemExit\n", OFFICIAL),
        ("not python (", OFFICIAL),
        (None, OFFICIAL),
    ],
)
def test_a_checkpoints_own_encoder_tells_its_profile(tmp_path: Path, source: str | None, profile: str) -> None:
    if source is not None:
        (tmp_path / "encoding").mkdir()
        (tmp_path / "encoding" / "encoding_dsv4.py").write_text(source, encoding="utf-8")
    assert detect_profile(tmp_path) == profile


@given(st.lists(st.sampled_from(SPECIAL), min_size=1, max_size=4), text)
def test_nothing_that_a_user_writes_is_special(tokens: list[str], rest: str) -> None:
    words = rest.join(tokens)
    harmless = Prompt(tuple(p._replace(text="w") if not p.special else p for p in _conversation("w").parts))
    found = _conversation(words)
    assert [p.text for p in found.parts if p.special] == [p.text for p in harmless.parts if p.special]
    assert all(not (a.special is b.special is False) for a, b in pairwise(found.parts))
    assert all(p.text in SPECIAL for p in found.parts if p.special)


def _conversation(words: str) -> Prompt:
    messages = [
        Message("system", words),
        Message("user", words),
        Message("assistant", words, words, (ToolCall("f", json.dumps({words: words, "n": [words]}), "1"),)),
        Message("tool", words, tool_call_id="1"),
        Message("user", words),
    ]
    return encode_chat(messages, [Tool("f", words, {"title": words})], ChatOptions(effort="low"))


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([], "messages: it takes a list of at least one message"),
        ("hello", "messages: it takes a list of at least one message"),
        (["hello"], "messages[0] is str: it takes an object"),
        ([{"content": "x"}], "messages[0].role is None: it takes a string"),
        ([{"role": "developer"}], "messages[0].role is 'developer': it takes system, user"),
        ([{"role": "user", "content": 5}], "messages[0].content is 5: it takes a string or a list of text parts"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type is 'image_url'"),
        ([*USER, {"role": "tool", "content": "x"}], "messages[1].tool_call_id is None: it takes a string"),
        ([{"role": "assistant", "prefix": True}, *USER], "messages[0].prefix: the answer can go on from the last"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": 'a"b', "arguments": "{}"}}]}],
            "messages[0].tool_calls[0].function.name is 'a\"b': it takes a name without",
        ),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}], ".function.arguments is None"),
    ],
)
def test_what_is_wrong_is_named(messages: Any, text: str) -> None:
    with pytest.raises(RequestError) as caught:
        messages_of(messages)
    assert text in str(caught.value)


def test_wrong_tools_and_options_are_named() -> None:
    for tools, where in (
        ([{"type": "web"}], "tools[0].type"),
        ([{"type": "function"}], "tools[0].function"),
        (5, "tools"),
    ):
        with pytest.raises(RequestError, match=where.replace("[", r"\[")):
            tools_of(tools)
    for wrong, where in (
        ({"effort": "hard"}, "reasoning_effort is 'hard'"),
        ({"tool_choice": "required"}, "turn thinking off"),
        ({"tool_choice": "f"}, "tool_choice is 'f'"),
        ({"response_format": "xml"}, "response_format is 'xml'"),
        ({"task": "sing"}, "task is 'sing': it takes " + ", ".join(TASKS)),
        ({"profile": "beta"}, "profile is 'beta'"),
    ):
        with pytest.raises(RequestError, match=where):
            ChatOptions(**wrong)
    assert encode_chat(USER, None, ChatOptions(effort="none")).text.endswith(END_THINK)
    assert THINK not in encode_chat(USER, None, ChatOptions(thinking=False)).text


def test_pitfall_45_prompt_encoder_mistakes() -> None:
    """Levels off by one, reasoning dropped beside tools, chat mode left open, tools beside a system text lost."""
    history = [*USER, {"role": "assistant", "content": "a", "reasoning_content": "why"}, *USER]
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert encode_chat(USER, None, ChatOptions(effort="high")).text.startswith(BOS + ABSOLUTE)
    assert encode_chat(USER, None, ChatOptions(effort="max")).text.startswith(BOS + BEYOND)
    assert "why" not in encode_chat(history).text
    assert f"{THINK}why{END_THINK}a" in encode_chat(history, tools).text
    assert encode_chat(USER, None, ChatOptions(thinking=False)).text.endswith(END_THINK)
    system = {"role": "system", "content": "S"}
    assert encode_chat([system, *USER], tools).text.startswith(f"{BOS}S\n\n## Tools\n\n")
