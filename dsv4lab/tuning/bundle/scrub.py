"""Texts without what they would tell of a machine's folders and people."""

from __future__ import annotations

import getpass
import platform
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_COMMON = ("root", "user", "admin", "ubuntu", "runner", "localhost")
_PATH = re.compile(r"""(?<![\w/.~])/(?:[^\s"'/:\\,;()<>]+/)+([^\s"'/:\\,;()<>]*)""")
"""An absolute path of at least two parts; URLs have none, since theirs follow a host's name."""


def scrubber() -> Callable[[str], str]:
    """A function that takes folders, the user's and the machine's name out of a text; a path keeps its last part."""
    folders = sorted({str(Path.home()), str(Path.cwd()), tempfile.gettempdir()} - {"/"}, key=len, reverse=True)
    names = [(_user(), "user"), (platform.node(), "host")]
    words = [
        (re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])"), shown)
        for name, shown in names
        if len(name) > 2 and name not in _COMMON
    ]

    def scrub(text: str) -> str:
        for folder in folders:
            text = re.sub(re.escape(folder) + r"(?=[/\s\"',:;)]|$)", "/folder", text)
        text = _PATH.sub(r"\1", text)
        for word, shown in words:
            text = word.sub(shown, text)
        return text

    return scrub


def scrubbed(value: Any, scrub: Callable[[str], str]) -> Any:
    """Plain data with every text in it scrubbed, keys included."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, dict):
        return {scrub(key) if isinstance(key, str) else key: scrubbed(one, scrub) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [scrubbed(one, scrub) for one in value]
    return value


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return ""
