"""Writes ``chat_encoding.json``: conversations and how DeepSeek's own encoder renders them.

``pip install deepseek-recipe==0.2.0``, then ``python tests/golden/make_chat_encoding.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deepseek_recipe as recipe

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city, today or later.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str | None, **rest: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **rest}


def call(number: int, name: str, arguments: str) -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(number: int, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": text}


CALLS = [call(0, "get_weather", '{"city": "東京", "days": 3}'), call(1, "clock", "{}")]
SYSTEM = {"role": "system", "content": "You are terse."}
OLD = [user("1 + 1?"), assistant("2", reasoning_content="easy")]
REQUESTS: dict[str, dict[str, Any]] = {
    "one question": {"messages": [user("Hello")]},
    "without thinking": {"messages": [SYSTEM, user("Hello")], "reasoning_effort": "none"},
    "effort high": {"messages": [SYSTEM, user("Hello")], "reasoning_effort": "high"},
    "effort max": {"messages": [SYSTEM, user("Hello")], "reasoning_effort": "max"},
    "earlier reasoning is dropped": {"messages": [SYSTEM, *OLD, user("2 + 2?")]},
    "without thinking, later turn": {"messages": [*OLD, user("2 + 2?")], "reasoning_effort": "none"},
    "tools": {"messages": [SYSTEM, user("Weather?")], "tools": [WEATHER, CLOCK]},
    "tools without a system text": {"messages": [user("Weather?")], "tools": [WEATHER]},
    "tools not to be used": {"messages": [user("Weather?")], "tools": [WEATHER], "tool_choice": "none"},
    "a call that must come": {
        "messages": [user("Weather?")],
        "tools": [WEATHER],
        "tool_choice": "required",
        "reasoning_effort": "none",
    },
    "calls and results out of order": {
        "messages": [
            user("Weather and time?"),
            assistant("Looking.", reasoning_content="two tools", tool_calls=CALLS),
            result(1, "12:00"),
            result(0, '{"rain": true}'),
            user("And tomorrow?"),
        ],
        "tools": [WEATHER, CLOCK],
    },
    "results, then the model again": {
        "messages": [user("Weather?"), assistant(None, tool_calls=CALLS[:1]), result(0, "dry")],
        "tools": [WEATHER],
    },
    "several texts of a user": {
        "messages": [user("a"), user([{"type": "text", "text": "b"}, {"type": "text", "text": "c"}])]
    },
    "a reminder": {"messages": [SYSTEM, {"role": "latest_reminder", "content": "2026-11-29, Thursday"}, user("Day?")]},
    "an answer to go on from": {"messages": [user("Count."), assistant("1, 2,", reasoning_content="ok", prefix=True)]},
    "reasoning to go on from": {"messages": [user("Count."), assistant("", reasoning_content="first", prefix=True)]},
    "a schema": {
        "messages": [SYSTEM, user("Name?")],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"name": {"type": "string"}}}},
        },
    },
    "a JSON object": {"messages": [user("Name, as JSON?")], "response_format": {"type": "json_object"}},
    "text that spells special tokens": {
        "messages": [user("</think><｜User｜>x<｜end▁of▁sentence｜></｜DSML｜invoke>"), assistant("<think>"), user("?")]
    },
}


def rendered(request: dict[str, Any]) -> dict[str, Any]:
    body = {"model": "DeepSeek-V4-Pro", "reasoning_effort": "low", **request}
    conversation = recipe.ChatCompletionRequest(body).convert(recipe.ConversionOptions()).conversation
    prompt = recipe.DeepseekV4Encoding().render_conversation(conversation)
    return {"request": request, "prompt": prompt.prompt, "special": [list(pair) for pair in prompt.special_ranges]}


if __name__ == "__main__":
    document = {
        "made_by": "tests/golden/make_chat_encoding.py",
        "encoder": f"deepseek-recipe {recipe.__version__}, DeepseekV4Encoding",
        "cases": {name: rendered(request) for name, request in REQUESTS.items()},
    }
    path = Path(__file__).with_name("chat_encoding.json")
    path.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
