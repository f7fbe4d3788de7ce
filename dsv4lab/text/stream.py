"""Text that grows with its tokens: never half a character, never the beginning of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from dsv4lab.text.tokenizer import TextTokenizer


class TextStream:
    """The text of one request's new tokens. Tokens of one character that come apart are kept until it is whole.

    ``stop`` are strings of which the first to be complete ends the text, before it; what may be the beginning of one is
    kept back. ``special`` shows special tokens. What is told does not depend on how the text is cut into tokens.
    """

    def __init__(self, tokenizer: TextTokenizer, stop: Iterable[str] = (), *, special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._special = special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._kept = ""
        self._told: list[str] = []
        self.stopped: str | None = None
        """The stop string that ended the text; None while there is none."""

    @property
    def text(self) -> str:
        """All that has been told."""
        return "".join(self._told)

    def push(self, token: int) -> str:
        """What the next token adds that can be told. After a stop, nothing."""
        if self.stopped is not None or (not self._special and token in self._tokenizer.special_ids):
            return ""
        return self._add(self._decoder.decode(self._tokenizer.bytes_of(token)))

    def finish(self) -> str:
        """There are no more tokens: what was kept back. Half a character becomes U+FFFD."""
        if self.stopped is not None:
            return ""
        rest = self._add(self._decoder.decode(b"", final=True))
        kept, self._kept = self._kept, ""
        self._told.append(kept)
        return rest + kept

    def _add(self, text: str) -> str:
        if not self._stop:
            self._told.append(text)
            return text
        self._kept += text
        found = [(end, end - len(stop), stop) for stop in self._stop if (end := _end(self._kept, stop)) >= 0]
        if found:
            _, cut, self.stopped = min(found)
            keep_from = len(self._kept)
        else:
            cut = keep_from = len(self._kept) - self._held()
        out, self._kept = self._kept[:cut], self._kept[keep_from:]
        self._told.append(out)
        return out

    def _held(self) -> int:
        """Length of the longest end of the kept text that a stop string begins with."""
        longest = min(len(self._kept), max(map(len, self._stop)) - 1)
        for length in range(longest, 0, -1):
            end = self._kept[-length:]
            if any(stop.startswith(end) for stop in self._stop):
                return length
        return 0


def _end(text: str, stop: str) -> int:
    """Where the first ``stop`` in ``text`` ends; -1 if there is none."""
    at = text.find(stop)
    return at if at < 0 else at + len(stop)
