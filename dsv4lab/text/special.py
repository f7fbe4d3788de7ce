"""Strings that the released models were trained on, exact to the byte.

Sources: ``encoding/README.md`` and ``encoding/encoding_dsv4.py`` of the released checkpoints (the latter is carried in
``sgl-project/sglang``, ``python/sglang/srt/entrypoints/openai/encoding_dsv4.py``), and what the maker's package
``deepseek-recipe`` 0.2.0 (``deepseek-ai/deepseek-recipe``) renders.
"""

from __future__ import annotations

import re

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
REMINDER = "<｜latest_reminder｜>"
THINK = "<think>"
END_THINK = "</think>"
DSML = "｜DSML｜"

TASKS = {
    "action": "<｜action｜>",
    "authority": "<｜authority｜>",
    "domain": "<｜domain｜>",
    "query": "<｜query｜>",
    "read_url": "<｜read_url｜>",
    "title": "<｜title｜>",
}
"""Tokens that ask for a short answer about the conversation instead of the next turn."""

SPECIAL = (BOS, EOS, USER, ASSISTANT, REMINDER, THINK, END_THINK, DSML, *TASKS.values())
"""All of them. A tokenizer that lacks one cannot encode this format."""

PATTERN = re.compile("|".join(map(re.escape, (THINK, END_THINK, DSML))))
"""Special tokens inside fixed texts."""

ABSOLUTE = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n"
)
BEYOND = (
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the "
    "problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying "
    "cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are certain "
    "that no assumption remains unchecked and no error remains undiscovered.\n\n"
)

TOOLS_BEFORE = f"""\
## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \
"<{DSML}tool_calls>" block like the following:

<{DSML}tool_calls>
<{DSML}invoke name="$TOOL_NAME">
<{DSML}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML}parameter>
...
</{DSML}invoke>
<{DSML}invoke name="$TOOL_NAME2">
...
</{DSML}invoke>
</{DSML}tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, \
objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {THINK}), you MUST output your complete reasoning inside \
{THINK}...{END_THINK} BEFORE any tool calls or final response.

Otherwise, output directly after {END_THINK} with tool calls or final response.

### Available Tool Schemas

"""
TOOLS_AFTER = "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"

SCHEMA_BEFORE = "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
JSON_OBJECT = (
    "You are a helpful assistant designed to output JSON.\n## Response Format:\n\nReply with JSON object ONLY."
)
