"""Whose server a command starts."""

from __future__ import annotations

import re

DSV4LAB, SGLANG, VLLM, OTHER = "dsv4lab", "sglang", "vLLM", "this server"
PORTS = {SGLANG: 30000}
PORT = 8000

_MARKS = (
    (SGLANG, re.compile(r"\bsglang\b")),
    (VLLM, re.compile(r"\bvllm\b")),
    (DSV4LAB, re.compile(r"\bdsv4lab\b")),
)


def framework_of(command: str) -> str:
    """``sglang``, ``vLLM`` or ``dsv4lab`` by the words of ``command``, else ``this server``."""
    return next((name for name, mark in _MARKS if mark.search(command)), OTHER)
