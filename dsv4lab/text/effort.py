"""Reasoning effort: which words stand before everything else in thinking mode.

Two generations of released encoders name their levels differently (sgl-project/sglang #33140, vllm-project/vllm
#50684): the first (``preview``) knows the paragraph of ``max`` and nothing for the rest; the second (``official``,
since 0731) calls that paragraph ``high``, and has a stronger one as ``max``. A checkpoint's own encoder tells which it
is.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from dsv4lab.errors import RequestError
from dsv4lab.text.special import ABSOLUTE, BEYOND

OFFICIAL, PREVIEW = "official", "preview"
PROFILES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        OFFICIAL: MappingProxyType({"low": "", "high": ABSOLUTE, "max": BEYOND}),
        PREVIEW: MappingProxyType({"high": "", "max": ABSOLUTE}),
    }
)
"""The prefix of each level that the model knows."""

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_ALIASES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        OFFICIAL: MappingProxyType({"minimal": "low", "medium": "high", "xhigh": "high"}),
        PREVIEW: MappingProxyType({"minimal": "high", "low": "high", "medium": "high", "xhigh": "max"}),
    }
)
"""What DeepSeek's API makes of the other levels of OpenAI's."""

ENCODER = Path("encoding", "encoding_dsv4.py")
_MAX_BYTES = 1 << 20


def effort_prefix(effort: str | None, profile: str) -> str:
    """The words for a level; None is the encoder's own default, which has none. Raises :class:`RequestError`."""
    if effort is None:
        return ""
    if effort not in EFFORTS or effort == "none":
        levels = ", ".join(level for level in EFFORTS if level != "none")
        raise RequestError(f"reasoning_effort is {effort!r}: it takes {levels}, or none, which turns thinking off")
    levels_known = PROFILES[profile]
    return levels_known[_ALIASES[profile].get(effort, effort)]


def detect_profile(directory: Path) -> str:
    """The profile of a checkpoint, by the names that its ``encoding/encoding_dsv4.py`` defines; it is not executed.

    Without one (or one that cannot be read) it is :data:`OFFICIAL`, that of the current releases.
    """
    path = directory / ENCODER
    try:
        if path.stat().st_size > _MAX_BYTES:
            return OFFICIAL
        names = _assigned(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return OFFICIAL
    return PREVIEW if "REASONING_EFFORT_MAX" in names and "REASONING_EFFORT_PROMPTS" not in names else OFFICIAL


def _assigned(source: str) -> set[str]:
    """Names that are assigned at the top level of a module."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names
